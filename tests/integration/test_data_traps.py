"""What is easily done with data, and would go wrong in silence: it works, or it is told."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit import late
from kit.late import pandas as pd
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import headrace as hr
from headrace.data.ragged import Ragged
from headrace.testing import dense_table, ragged_table

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(dim=1)


def make(**options: Any) -> hr.Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    options = {"batch_size": 8} | options
    return hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.01), **options)


class Elsewhere(hr.Table):
    """Rows that are not in memory, so that a thread reads them."""

    streams = (hr.Stream("x", (3,)), hr.Stream("y"))

    def __len__(self) -> int:
        return len(X)

    def take(self, indices: Tensor) -> hr.Batch:
        return hr.Batch({"x": X[indices], "y": Y[indices]})


# --- a batch is nobody else's memory -----------------------------------------------------------------------


WIDE = 16  # float32: a row of 64 bytes, so that batches need not be copied for the sake of their addresses


class Slices(hr.Source):
    """Gives views of what it keeps."""

    streams = (hr.Stream("x", (WIDE,)), hr.Stream("y"))

    def __init__(self, x: Tensor) -> None:
        self.x, self.at = x, 0

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        rows, self.at = self.x[self.at : self.at + 8], self.at + 8
        return hr.Batch({"x": rows, "y": torch.zeros(len(rows))}) if len(rows) else None

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def as_stored(x: Tensor) -> hr.Reader:
    return hr.Reader(hr.ArrayTable({"x": x, "y": torch.zeros(len(x))}), "none")


def cut(x: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(rows, torch.zeros(len(rows))) for rows in x.split(8)]


class Views(TensorDataset):
    def __getitem__(self, row: Any) -> Any:
        return tuple(column[8 * row : 8 * row + 8] for column in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0]) // 8


USES: dict[str, Any] = {
    "predict": lambda trainer, x: trainer.predict(x),
    "validate": lambda trainer, x: trainer.validate((x, torch.zeros(len(x)))),
    "step": lambda trainer, x: trainer.step((x, torch.zeros(len(x)))),
    "val": lambda trainer, x: trainer.fit((x.clone(), torch.zeros(len(x))), val=(x, torch.zeros(len(x))), steps=1),
    "order none": lambda trainer, x: trainer.fit(as_stored(x), epochs=1),
    "epochs of a reader": lambda trainer, x: trainer.fit(hr.take(as_stored(x), 16), epochs=1),
    "joined": lambda trainer, x: trainer.predict(hr.zip({"x": x})),
    "end to end": lambda trainer, x: trainer.predict(hr.concat({"x": x[:8]}, {"x": x[8:]})),
    "a part": lambda trainer, x: trainer.predict(hr.take({"x": x}, 24)),
    "a source": lambda trainer, x: trainer.fit(Slices(x), epochs=1),
    "batches in memory": lambda trainer, x: trainer.fit(cut(x), epochs=1),
    "a loader of batches": lambda trainer, x: trainer.fit(
        DataLoader(Views(x, torch.zeros(len(x))), batch_size=None), epochs=1
    ),
    "lent": lambda trainer, x: [trainer.model(rows["x"]) for rows in hr.as_dataset({"x": x}, 8, order="none")],
    "a source, lent": lambda trainer, x: [trainer.model(rows["x"]) for rows in hr.as_dataset(Slices(x), 8)],
    "a reader": lambda trainer, x: trainer.model(as_stored(x).next_batch(8)["x"]),
    "a map on the device": lambda trainer, x: trainer.predict(
        hr.map({"x": x}, lambda fields: {"x": fields["x"].relu_()}, where="device")
    ),
}


def in_place(use: str) -> hr.Trainer:
    """A model that writes into what it is given."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDE, 1), nn.Flatten(0))
    size = None if use in ("batches in memory", "a loader of batches") else 8
    return hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.01), batch_size=size)


@pytest.mark.parametrize("use", USES)
def test_a_model_that_works_in_place_leaves_the_data_as_they_are(use: str) -> None:
    x = torch.randn(32, WIDE)
    before = x.clone()
    with torch.no_grad() if "lent" in use or use == "a reader" else torch.enable_grad():
        USES[use](in_place(use), x)
    assert torch.equal(x, before)


def test_a_model_that_works_in_place_leaves_memory_that_cannot_be_written_as_it_is(tmp_path: Path) -> None:
    """A file that is mapped for reading, and the bytes of a constant."""
    x = np.random.default_rng(0).standard_normal((32, WIDE)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    mapped, constant = np.load(tmp_path / "x.npy", mmap_mode="r"), np.frombuffer(x.tobytes(), np.float32)
    expected = in_place("predict").predict(x.copy())
    for data in (mapped, constant.reshape(x.shape), tmp_path / "x.npy"):
        assert torch.equal(in_place("predict").predict(data), expected)
    assert np.array_equal(mapped, x)
    assert np.array_equal(constant, x.reshape(-1))


def test_a_table_may_say_that_its_rows_are_copies() -> None:
    """Nothing is copied twice; without a word, a table with `rows` of its own is taken to give views."""

    class Views(Elsewhere):
        def rows(self, start: int, stop: int) -> hr.Batch:
            return hr.Batch({"x": X[start:stop], "y": Y[start:stop]})

    class Copies(Views):
        aliases = False

    given = [next(iter(hr.Feed(hr.Reader(kind(), "none"), batch_size=40)))["x"] for kind in (Views, Copies)]
    assert [rows.data_ptr() == X.data_ptr() for rows in given] == [False, True]
    assert not Elsewhere().aliases


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions")  # torch's, at the making of one
@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8])
def test_quantized_rows_are_refused(dtype: torch.dtype) -> None:
    x = torch.quantize_per_tensor(torch.randn(200, 3), 0.1, 0, dtype)
    for use in (
        lambda: make().fit((x, torch.zeros(200)), epochs=1),
        lambda: make().predict(x),
        lambda: make().step((x, torch.zeros(200))),
        lambda: make(batch_size=None).fit([(x, torch.zeros(200))], epochs=1),
    ):
        with pytest.raises(hr.DataError, match=r"stream 'x' is quantized .*dequantize\(\)"):
            use()


# --- maps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drawn", [False, True])
def test_a_map_that_works_in_place_leaves_the_data_as_they_are(drawn: bool) -> None:
    x = torch.zeros(200, 2)

    def plain(fields: Any) -> Any:
        return {"x": fields["x"].sub_(1)}

    def with_draws(fields: Any, draws: hr.Draws) -> Any:
        return {"x": fields["x"].sub_(1)}

    table = hr.map({"x": x}, with_draws if drawn else plain)
    for order in ("none", "full"):
        for batch in hr.Feed(hr.Reader(table, order), batch_size=16):
            assert (batch["x"] == -1).all()
    assert not x.any()


def test_a_map_that_draws_from_a_global_generator_is_refused() -> None:
    def noisy(fields: Any) -> Any:
        return {**fields, "x": fields["x"] + torch.randn_like(fields["x"])}

    with pytest.raises(hr.ConfigError, match=r"noisy draws random numbers.*second parameter"):
        hr.map((X, Y), noisy)


def test_a_frozen_model_in_a_map_is_not_trained_through() -> None:
    extractor = nn.Linear(3, 3)
    trainer = make()
    trainer.fit(hr.map((X, Y), lambda fields: {**fields, "x": extractor(fields["x"])}), epochs=2, progress=False)
    assert extractor.weight.grad is None


def test_an_augmentation_that_changes_lengths_cannot_be_sized_by_items() -> None:
    def doubled(fields: Any, draws: hr.Draws) -> Any:
        words = fields["words"]
        return {**fields, "words": Ragged(words.values.repeat_interleave(2), 2 * words.bounds)}

    table = hr.map(ragged_table("words", [1, 2, 3, 4]), doubled)
    with pytest.raises(hr.SourceError, match="changes the lengths of 'words'"):
        hr.Reader(table, count="words")


def test_items_have_draws_of_their_own_wherever_they_are_read() -> None:
    def noisy(fields: Any, draws: hr.Draws) -> Any:
        words = fields["words"]
        return {**fields, "words": words.with_values(words.values + draws.items(words).uniform())}

    table = hr.map(ragged_table("words", [3, 0, 1, 2]), noisy)
    whole = hr.Reader(table).next_batch(4)["words"].values
    reader = hr.Reader(table)
    parts = torch.cat([reader.next_batch(1)["words"].values for _ in range(4)])
    assert torch.equal(whole, parts)
    assert len(whole.frac().unique()) == 6


def test_a_mix_and_any_reader_may_be_mapped_and_sized() -> None:
    words = ragged_table("words", [1, 2, 3, 4])
    mixed = hr.map(hr.mix([words, words], [1, 2], rows=30, count="words"), lambda fields, draws: fields)
    batch = mixed.next_batch(9)
    assert batch.items("words") <= 9
    assert mixed.state_dict()["count"] == "words"


def test_a_step_does_not_take_rows_from_before_their_map() -> None:
    with pytest.raises(hr.ConfigError, match="belongs to epochs"):
        make().step(hr.map((X, Y), lambda fields, draws: fields))


# --- one source, two readers of it ---------------------------------------------------------------------------


def test_the_source_that_is_trained_on_is_not_validated_on_at_the_same_time() -> None:
    reader = hr.Reader(Elsewhere())
    with pytest.raises(hr.ConfigError, match="the val data are the very Reader that is trained on"):
        make().fit(reader, reader, epochs=1, progress=False)


def test_a_reader_that_was_looked_into_is_scored_and_predicted_whole() -> None:
    reader = hr.Reader(Elsewhere(), "none")
    trainer = make()
    expected = trainer.validate(Elsewhere()), trainer.predict(Elsewhere())
    reader.next_batch(7)
    assert trainer.validate(reader) == expected[0]
    assert torch.equal(trainer.predict(reader), expected[1])
    assert reader.state_dict()["position"] == 7


class Pulled(hr.Source):
    """Goes on and on; it cannot say where it stands."""

    streams = Elsewhere.streams
    at = 0

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        start, self.at = self.at, min(self.at + size, len(X))
        if start == len(X):
            self.at = 0
            return None
        return hr.Batch({"x": X[start : self.at], "y": Y[start : self.at]})


def test_a_limit_on_what_cannot_be_rewound_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="Pulled without state_dict: limit= scores other rows each time"):
        make().validate(Pulled(), limit=8)


# --- what comes and goes ---------------------------------------------------------------------------------


def test_outputs_that_are_packed_are_not_joined() -> None:
    class Packs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, words: Ragged) -> Any:
            return words.packed()

    model = Packs()
    trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.1), batch_size=2)
    with pytest.raises(hr.DataError, match=r"PackedSequence.*with_padded"):
        trainer.predict({"words": Ragged.of([[1.0, 2.0], [3.0], [4.0], [5.0]])})


class Graph:
    """As much as is asked of a field of another kind."""

    def to(self, device: Any) -> "Graph":
        return self


def test_an_object_with_nothing_but_to_travels() -> None:
    moved = hr.Batch({"graph": Graph(), "y": Y[:4]}).to(torch.device("cpu"))
    assert isinstance(moved["graph"], Graph)


def test_sequences_of_sample_dicts_are_made_a_batch() -> None:
    model = nn.EmbeddingBag(9, 1)

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = model

        def forward(self, words: Ragged) -> Tensor:
            return self.bag(words.values, words.offsets[:-1])[:, 0]

    trainer = hr.Trainer(Bag(), hr.MSE(), torch.optim.SGD(model.parameters(), 0.1))
    samples = [{"words": [1, 2, 3], "y": 1.0}, {"words": [4], "y": 0.0}]
    assert trainer.step(samples)["total_loss"] > 0


def test_codes_of_other_strings_are_neither_scored_nor_predicted() -> None:
    def frame(strings: list[str]) -> hr.ArrayTable:
        codes = torch.arange(30) % len(strings)
        return hr.ArrayTable({"x": X[:30], "kind": codes, "y": Y[:30]}, categories={"kind": strings})

    trainer = make(inputs="x")
    trainer.fit(frame(["a", "b", "c"]), epochs=1, progress=False)
    trainer.validate(frame(["a", "b", "c"]))
    for call in (trainer.validate, trainer.predict):
        with pytest.raises(hr.DataError, match="other categories in 'kind'"):
            call(frame(["b", "c"]))


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
@pytest.mark.parametrize("ignored", [None, 1])
def test_labels_may_be_unsigned_numbers(dtype: str, ignored: int | None) -> None:
    def trained(labels: np.ndarray) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        loss = hr.CrossEntropy(ignore_index=ignored)
        trainer = hr.Trainer(model, loss, torch.optim.SGD(model.parameters(), 0.1), batch_size=8)
        trainer.fit((X, labels), epochs=1, progress=False)
        return [*model.parameters()]

    for labels in (np.arange(40) % 3, np.eye(3)[np.arange(40) % 3]):
        if labels.ndim == 1 or ignored is None:
            assert all(map(torch.equal, trained(labels.astype(dtype)), trained(labels.astype("int64"))))
    with pytest.raises(hr.DataError, match=r"row 2: label 3 is out of range for a model with 3 outputs \(1 such"):
        trained(np.array([0, 1, 3] + [2] * 37, dtype))


def test_values_that_a_mask_hides_are_not_used() -> None:
    hidden = np.zeros((40, 3), bool)
    x = np.ma.masked_array(X.numpy(), hidden)
    assert torch.equal(make().predict(x), make().predict(X))
    x[2, 1] = x[7, 0] = np.ma.masked
    told = "2 masked values, the first in row 2. .*fill them"
    for call in (make().fit, make().step):
        with pytest.raises(hr.DataError, match=rf"stream 'x' has {told}"):
            call((x, Y))
    for broken in (lambda: hr.Ragged.of([x]), lambda: make().step([{"x": x[2], "y": 1.0}])):
        with pytest.raises(hr.DataError, match=r"masked values, the first in row"):
            broken()
    with pytest.raises(hr.DataError, match="a sample of 'x' has 1 masked"):
        make().fit(hr.from_dataset([(row, 1.0) for row in x[1:]]), progress=False)
    with pytest.raises(hr.DataError, match=f"'x' has {told}"):
        make(batch_size=None).fit([{"x": x, "y": Y}], progress=False)


def test_sparse_tensors_of_torch_are_sparse_rows_as_those_of_scipy_are() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(3.0))

        def forward(self, x: hr.Sparse) -> Tensor:
            return x.to_dense() @ self.weight

    model = Bag()
    trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.1))
    dense = X * (X > 0)
    for sparse in (dense.to_sparse(), late.sparse.coo_matrix(dense.numpy())):
        assert torch.equal(trainer.predict(sparse), dense @ torch.arange(3.0))
    for odd, kind in (
        (torch.zeros(4, 2, 2).to_sparse(), "sparse_coo"),
        (torch.nested.nested_tensor([torch.zeros(2)] * 4, layout=torch.jagged), "nested"),
    ):
        with pytest.raises(hr.DataError, match=rf"stream 'x' is a .*{kind} tensor.* Make it dense"):
            trainer.predict(odd)


@pytest.mark.parametrize("whole", [np.int64, np.uint8])
def test_numbers_of_rows_may_be_those_of_numpy(whole: Any, tmp_path: Path) -> None:
    table = hr.ArrayTable({"x": X, "y": Y})
    sizes = {0: whole(4), "8 samples": whole(8)}
    options = {"batch_size": sizes, "microbatch": whole(2), "macrobatch": whole(16), "seed": whole(3)}
    trainer = make(**options)
    reader = hr.Reader(table, "blocks", whole(1), block=whole(5), mix=whole(2), max_samples=whole(30))
    trainer.fit(reader, epochs=whole(1), run=tmp_path / "run", logs=False, progress=False)
    assert trainer.predict(X, batch_size=whole(8)).shape == (40,)
    trainer.validate(table, batch_size=whole(8), limit=whole(8))
    assert len(hr.skip(hr.take(table, whole(9)), whole(4))) == 5
    assert hr.mix([table, table], [1, 1], rows=whole(7)).next_batch(whole(9)).rows == 7
    assert next(iter(hr.as_dataset(table, batch_size=whole(4))))["x"].shape == (4, 3)
    for size in (whole(0), np.float64(8), np.True_):
        with pytest.raises(hr.ConfigError, match="batch_size= is a whole number greater than 0"):
            make(batch_size=size)
    with pytest.raises(hr.ConfigError, match="block= is a number of rows, at least 1, got 0"):
        hr.Reader(table, "blocks", block=0)


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        ([], "a batch has at least one row, got an empty list"),
        ([{"x": X[0], "file": "a.png"}], "stream 'file': sample 0 holds text, .* or leave it out"),
        ([{"x": X[0]}, {"x": None}], "stream 'x': sample 1 holds a NoneType"),
        ([{"x": [[1.0], [2.0, 3.0]]}], "stream 'x': sample 0 holds a list"),
        ([{"x": torch.zeros(3, 4, 5)}, {"x": torch.zeros(3, 5, 4)}], r"sample 1 has the shape \[3, 5, 4\], sample 0"),
        ([{"x": torch.zeros(3)}, {"x": torch.zeros(())}], r"sample 1 has the shape \[\], sample 0 has \[3\]"),
    ],
)
def test_samples_that_make_no_batch_are_named(samples: Any, told: str) -> None:
    with pytest.raises(hr.DataError, match=told):
        make().step(samples)


@pytest.mark.parametrize("nothing", [[], ()])
def test_an_empty_list_is_no_data(nothing: Any) -> None:
    for call in (make().fit, make().validate, make().predict):
        with pytest.raises(hr.DataError, match=f"the {type(nothing).__name__} is empty: there is nothing to read"):
            call(nothing)


def test_rows_of_other_lengths_in_the_validation_data_are_said_to_be_sequences() -> None:
    told = r"the val data have y: float32\[2, 4\] where .*hr\.Ragged\.of\(rows\), .*sequences=\('y',\)"
    train, val = ([{"x": X[0], "y": torch.zeros(boxes, 4)}] * 2 for boxes in (1, 2))
    with pytest.raises(hr.DataError, match=told):
        make().fit(hr.from_dataset(train), val=hr.from_dataset(val), progress=False)
    with pytest.raises(hr.DataError, match=r"where the training data have y: sequences.*hr\.Ragged\.of"):
        make().fit({"x": X, "y": hr.Ragged.of([[1.0, 2.0]] * 40)}, val=(X, Y), progress=False)


def test_sequences_where_a_model_takes_a_tensor_have_a_view_that_is_one() -> None:
    rows = {"x": hr.Ragged.of(list(X)), "y": Y}
    with pytest.raises(hr.DataError, match=r"inputs='x\.padded'"):
        make().fit(rows, progress=False)
    make(inputs="x.padded").fit(rows, epochs=1, progress=False)


def test_streams_of_one_name_are_told_how_to_get_another(tmp_path: Path) -> None:
    paths = [tmp_path / "x.npy", tmp_path / "y.npy"]
    for path, array in zip(paths, (X, Y), strict=True):
        np.save(path, array.numpy())
    with pytest.raises(hr.DataError, match=r"table 0 and table 1 both have a stream 'x'.*columns=\{'y': 'x'\}"):
        hr.zip(*paths)
    both = hr.zip(paths[0], hr.open_table(paths[1], columns={"y": "x"}))
    make().fit(both, epochs=1, progress=False)
    with pytest.raises(hr.DataError, match=r"stream 'x': expected a tensor .* got a PosixPath.*np\.load"):
        make().fit(dict(zip("xy", paths, strict=True)), progress=False)


def test_what_is_in_memory_is_not_opened_as_a_file() -> None:
    frame = pd.DataFrame({"x": [1.0, 2.0], "kind": ["a", "b"]})
    for data in (frame, X.numpy(), None, {"x": X}):
        with pytest.raises(hr.DataError, match=r"expected a path.* got a \w+\. What is in memory .*hr\.concat"):
            hr.open_table(data)
    for data in (frame, X):
        with pytest.raises(hr.DataError, match="ArrayTable takes columns by name"):
            hr.ArrayTable(data)
    assert hr.concat(frame).categories == {"kind": ["a", "b"]}


def test_nulls_may_be_in_columns_that_are_left_out(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0], "note": [None, 1.0]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(hr.DataError, match=r"column 'note' .*leave out a .*frame\.drop\(columns='note'\)"):
        make().predict(frame)
    with pytest.raises(hr.DataError, match=r"column 'note' of .*leave out a .*columns= says which are read"):
        make().predict(tmp_path / "t.csv")


@pytest.mark.parametrize("text", ["1 KB", "64 mb", "2kb", "100 B"])
def test_bytes_are_written_in_small_or_large_letters(text: str) -> None:
    make(macrobatch=text).fit((X, Y), epochs=1, progress=False)


def test_bytes_of_no_known_unit_are_told_which_there_are() -> None:
    with pytest.raises(hr.ConfigError, match="bytes in B, kB, MB or GB, as in '64 MB'; got '1 TB'"):
        make(macrobatch="1 TB").fit((X, Y), epochs=1, progress=False)


def test_a_run_on_epochs_of_a_reader_can_be_forced_on_to_another_order(tmp_path: Path) -> None:
    for seed, options in ((1, {}), (2, {"override": True})):
        data = hr.take(hr.Reader(hr.ArrayTable({"x": X, "y": Y}), seed=seed), 25)
        trainer = make()
        trainer.fit(data, steps=3 * seed, progress=False, run=tmp_path / "run", **options)
    with pytest.raises(hr.SourceError, match="seed: saved 2, now 3"):
        make().fit(
            hr.take(hr.Reader(hr.ArrayTable({"x": X, "y": Y}), seed=3), 25),
            steps=9,
            progress=False,
            run=tmp_path / "run",
        )


# --- sizes -------------------------------------------------------------------------------------------------


class Long(hr.Table):
    """Long sequences, whose lengths are told."""

    streams = (hr.Stream("words", dtype="int64", sequence=True),)

    def __len__(self) -> int:
        return 1000

    def take(self, indices: Tensor) -> hr.Batch:
        return hr.Batch({"words": Ragged(torch.zeros(1000 * len(indices)), torch.arange(len(indices) + 1) * 1000)})

    def lengths(self, stream: str) -> Tensor:
        return torch.full((1000,), 1000)


def test_staging_knows_how_long_sequences_are() -> None:
    assert hr.Reader(Long()).row_bytes == 8000
    assert hr.Feed(hr.Reader(Long()), batch_size=1).rows < 1000


def test_validation_tables_are_read_in_batches_of_as_many_items() -> None:
    seen = []

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, words: Ragged) -> Tensor:
            if not self.training:
                seen.append(words.items)
            return self.scale * words.lengths.float()

    table = hr.zip(ragged_table("words", [5] * 40), {"y": torch.ones(40)})
    model = Sum()
    trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 1e-4), batch_size=50, inputs="words")
    trainer.fit(hr.Reader(table, count="words"), val=table, epochs=1, progress=False)
    assert seen == [50] * 4


def test_what_a_reader_reads_is_a_table() -> None:
    with pytest.raises(hr.ConfigError, match=r"reads a Table, got a dict.*ArrayTable"):
        hr.Reader({"x": X})  # type: ignore[arg-type]
    assert len(dense_table(3)) == 3


# --- batch normalisation of a single row -------------------------------------------------------------------


def normalised() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1), nn.Flatten(0))


def trainer_of(model: nn.Module, **options: Any) -> hr.Trainer:
    return hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.01), **{"batch_size": 8} | options)


ALONE = {
    "a row more than whole batches": (33, {}),
    "a row more than whole microbatches": (40, {"microbatch": 7}),
    "one of the last": (36, {"microbatch": 3}),
}


@pytest.mark.parametrize("how", ALONE)
def test_a_last_batch_that_cannot_be_normalised_is_refused_before_the_first_update(how: str) -> None:
    rows, options = ALONE[how]
    model = normalised()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # statistics of microbatches are theirs
        trainer = trainer_of(model, **options)
    made: list[int] = []
    counts = hr.Lambda(on_step_end=lambda info: made.append(info.step))
    with pytest.raises(
        hr.DataError, match=r"the last batch of every epoch has a single row.*Choose another batch_size="
    ):
        trainer.fit((X[:rows], Y[:rows]), epochs=2, progress=False, callbacks=[counts])
    assert made == []
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_where_nobody_knows_the_rows_the_batch_itself_says_so() -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X[:33], Y[:33]), batch_size=8)
    with pytest.raises(hr.DataError, match=r"this batch, .*, has a single row"):
        trainer_of(normalised(), batch_size=None).fit(loader, epochs=1, progress=False)
    with pytest.raises(hr.DataError, match=r"this batch, .*, has a single row"):
        trainer_of(normalised()).step((X[:1], Y[:1]))


def test_a_training_that_never_comes_to_its_last_batch_is_not_refused() -> None:
    for limits in ({"steps": 4}, {"samples": 32}, {"epochs": 3, "steps": 4}):
        trainer_of(normalised()).fit((X[:33], Y[:33]), progress=False, **limits)
    reader = hr.Reader(hr.ArrayTable({"x": X[:33], "y": Y[:33]}), cross_epochs=True)
    trainer_of(normalised()).fit(reader, epochs=2, progress=False)


def test_a_model_that_can_normalise_one_row_trains_as_a_loop_of_ones_own() -> None:
    def model() -> nn.Sequential:
        torch.manual_seed(0)
        layers = [nn.Unflatten(1, (1, 3)), nn.BatchNorm1d(1), nn.Dropout(0.2), nn.Flatten(), nn.Linear(3, 1)]
        return nn.Sequential(*layers, nn.Flatten(0))

    ours, raw = model(), model()
    torch.manual_seed(1)
    trainer_of(ours, order="none").fit((X[:33], Y[:33]), epochs=2, progress=False)
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(raw.parameters(), 0.01)
    for x, y in 2 * [*zip(X[:33].split(8), Y[:33].split(8), strict=True)]:
        optimizer.zero_grad()
        nn.functional.mse_loss(raw(x), y).backward()
        optimizer.step()
    assert all(map(torch.equal, ours.state_dict().values(), raw.state_dict().values()))


def test_a_model_that_normalises_more_values_than_rows_is_trained_on_a_last_batch_of_one_row() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(4), nn.Linear(4, 1), nn.Unflatten(0, (-1, 7)), nn.Flatten(1))
    x = torch.randn(33, 7, 4)
    history = trainer_of(model, batch_size=32).fit((x, x.mean(2)), epochs=1, progress=False)
    assert history.last["step"] == 2
