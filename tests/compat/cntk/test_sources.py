"""Sources read text files as CNTK did: whole sequences, minibatches over sweeps, limits, parts of workers."""

import functools
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import headrace.compat.cntk as C
from headrace.compat.cntk.io import (
    INFINITELY_REPEAT,
    CTFDeserializer,
    MinibatchData,
    MinibatchSource,
    MinibatchSourceFromData,
    StreamDef,
    StreamDefs,
    StreamInformation,
    UserDeserializer,
    sequence_to_cntk_text_format,
)

FOUR = "|S0 1\n|S0 2\n|S0 3\n|S0 4"
UNEVEN = """0  |S0 0   |S1 0
0   |S0 1   |S1 1
0   |S0 2
0   |S0 3   |S1 3
1   |S0 4
1   |S0 5   |S1 1
1   |S0 6   |S1 2
"""
SPARSE = (
    "0\t|x 560:1\t|y 1 0 0 0 0\n0\t|x 0:1\n0\t|x 0:1\n1\t|x 560:1\t|y 0 1 0 0 0\n1\t|x 0:1\n1\t|x 0:1\n1\t|x 424:1\n"
)
LENGTHS = [7, 3, 4, 1, 2, 2, 1, 2, 2, 1]

Make = Callable[..., MinibatchSource]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def source(text: str, defines: bool = False, **options: Any) -> MinibatchSource:
        path = tmp_path / f"{abs(hash(text))}.txt"
        path.write_text(text)
        if "|x" in text:
            defs = StreamDefs(
                features=StreamDef(field="x", shape=1000, is_sparse=True),
                labels=StreamDef(field="y", shape=5, defines_mb_size=defines),
            )
        else:
            defs = StreamDefs(features=StreamDef(field="S0", shape=1))
            if "S1" in text:
                defs["labels"] = StreamDef(field="S1", shape=1)
        return MinibatchSource(CTFDeserializer(str(path), defs), **options)

    return source


def counted(source: MinibatchSource, *sizes: int, **parts: Any) -> list[int]:
    found = [source.next_minibatch(size, **parts) for size in sizes]
    return [each[source.streams.features].num_samples if each else 0 for each in found]


def test_a_minibatch_of_sparse_sequences_has_cntks_shapes_counts_and_masks(make: Make) -> None:
    source = make(SPARSE, randomize=False)
    batch = source.next_minibatch(7)
    words, labels = batch[source.stream_info("features")], batch[source["labels"]]
    assert words.shape == (2, 4, 1000)
    assert words.is_sparse
    assert words.end_of_sweep
    assert (words.num_sequences, words.num_samples, len(words)) == (2, 7, 2)
    assert labels.shape == (2, 1, 5)
    assert not labels.is_sparse
    assert labels.num_samples == 2
    assert np.array_equal(labels.asarray(), [[[1, 0, 0, 0, 0]], [[0, 1, 0, 0, 0]]])
    assert np.array_equal(words.mask, [[2, 1, 1, 0], [2, 1, 1, 1]])
    assert [each.shape for each in words.as_sequences()] == [(3, 1000), (4, 1000)]
    assert words.as_sequences()[1].indices.tolist() == [560, 0, 0, 424]
    batch = source.next_minibatch(1)  # a sequence that is larger than what is asked for
    assert batch[source["features"]].num_samples == 3
    assert not batch[source["features"]].end_of_sweep


def test_streams_may_have_items_on_some_lines_of_a_sequence_only(make: Make) -> None:
    source = make(UNEVEN, randomize=False, max_sweeps=1)
    batch = source.next_minibatch(1000)
    features, labels = batch[source["features"]], batch[source["labels"]]
    assert [each.ravel().tolist() for each in features.as_sequences()] == [[0, 1, 2, 3], [4, 5, 6]]
    assert [each.ravel().tolist() for each in labels.as_sequences()] == [[0, 1, 3], [1, 2]]
    assert np.array_equal(labels.data.mask, [[2, 1, 1], [2, 1, 0]])
    assert labels.data.masked_count() == 1
    assert source.next_minibatch(1) == {}


def test_the_stream_that_defines_the_size_is_what_is_counted(make: Make) -> None:
    source = make(SPARSE, defines=True, randomize=False)
    batch = source.next_minibatch(2)
    assert batch[source["features"]].num_samples == 7
    assert batch[source["labels"]].end_of_sweep
    assert source.next_minibatch(3)[source["features"]].num_samples == 10


def test_a_minibatch_crosses_sweeps_and_its_end_is_marked_where_it_reaches_or_crosses_one(make: Make) -> None:
    source = make(FOUR, max_sweeps=3)
    assert source.next_minibatch(3)[source["features"]].end_of_sweep is False
    assert source.next_minibatch(1)[source["features"]].end_of_sweep is True
    assert counted(source, 5, 5, 5) == [5, 3, 0]


@pytest.mark.parametrize(("limit", "ends"), [(11, [True, True, False]), (12, [True, True, True])])
def test_a_limit_that_cuts_a_minibatch_short_ends_no_sweep(make: Make, limit: int, ends: list[bool]) -> None:
    source = make(FOUR, max_samples=limit)
    found = [source.next_minibatch(5)[source["features"]] for _ in range(3)]
    assert [each.num_samples for each in found] == [5, 5, limit - 10]
    assert [each.end_of_sweep for each in found] == ends
    assert not source.next_minibatch(1)


def test_one_sweep_may_be_said_in_four_ways(make: Make) -> None:
    ways = [
        {"max_sweeps": 1},
        {"max_samples": C.io.FULL_DATA_SWEEP},
        {"max_sweeps": 1, "max_samples": INFINITELY_REPEAT},
        {"max_samples": C.io.FULL_DATA_SWEEP, "max_sweeps": INFINITELY_REPEAT},
    ]
    for way in ways:
        assert counted(make(FOUR, **way), 100, 100) == [4, 0]
    with pytest.raises(ValueError, match="max_samples=3 and max_sweeps=2 exclude each other"):
        make(FOUR, max_samples=3, max_sweeps=2)
    assert make(FOUR).is_infinite()
    assert not make(FOUR, max_sweeps=2).is_infinite()


def test_each_sweep_is_shuffled_by_the_seed_plus_its_number_and_has_every_sequence_once(make: Make) -> None:
    def read(**options: Any) -> Any:
        source = make(FOUR, **options)
        return source.next_minibatch(400)[source["features"]].asarray().ravel()

    plain, other, zero, one = (
        read(),
        read(randomization_seed=123),
        read(randomization_seed=0),
        read(randomization_seed=1),
    )
    assert not np.array_equal(plain, other)
    assert np.array_equal(plain, zero)
    assert np.array_equal(plain[4:], one[:-4])
    assert all(sorted(sweep) == [1, 2, 3, 4] for sweep in plain.reshape(-1, 4))
    assert read(randomize=False).tolist() == [1, 2, 3, 4] * 100


def test_workers_take_every_other_sequence_and_a_limit_counts_what_all_have_read(make: Make) -> None:
    text = "".join(f"{k}\t|S0 {k}\n" for k, length in enumerate(LENGTHS) for _ in range(length))
    parts = [make(text, randomize=False, max_samples=36) for _ in range(2)]
    sizes = [10] * 6
    assert counted(parts[0], *sizes, num_data_partitions=2, partition_index=0) == [7, 4, 5, 7, 4, 0]
    assert counted(parts[1], *sizes, num_data_partitions=2, partition_index=1) == [4, 5, 3, 0, 0, 0]


def test_shuffled_minibatches_of_a_worker_have_the_sizes_that_cntks_own_test_expects(make: Make) -> None:
    text = "".join(f"{k}\t|S0 {k}\n" for k, length in enumerate(LENGTHS) for _ in range(length))
    source = make(text, max_sweeps=1)
    assert counted(source, *[10] * 6, num_data_partitions=2, partition_index=0) == [5, 4, 4, 5, 7, 0]


def test_a_shuffled_file_of_one_chunk_is_read_by_worker_0_alone(make: Make) -> None:
    first, second = make(FOUR, max_sweeps=1), make(FOUR, max_sweeps=1)
    assert counted(first, 4, 4, 4, num_data_partitions=2, partition_index=0) == [2, 2, 0]
    assert counted(second, 4, num_data_partitions=2, partition_index=1) == [0]


def test_workers_share_the_chunks_of_a_shuffled_deserializer() -> None:
    found = []
    for own in range(2):
        source = MinibatchSource(Chunks(6, 4, 2), randomization_window_in_chunks=2, max_sweeps=1)
        seen = []
        while batch := source.next_minibatch(5, None, None, 2, own):
            seen += [int(each[0][0][0]) for each in batch[source["x"]].as_sequences()]
        found.append(sorted(seen))
    assert found == [[0] * 4 + [2] * 4 + [4] * 4, [1] * 4 + [3] * 4 + [5] * 4]


@pytest.mark.parametrize("randomize", [False, True])
def test_a_source_goes_back_to_any_of_its_states(make: Make, randomize: bool) -> None:
    source = make("".join(f"{k} |S0 {k}\n" for k in range(20)), randomize=randomize, max_sweeps=3)
    states, seen = [], []
    while True:
        states.append(source.get_checkpoint_state())
        batch = source.next_minibatch(7)
        if not batch:
            break
        seen.append(batch[source["features"]].asarray().ravel().tolist())
    assert sorted(functools.reduce(operator.iadd, seen, [])) == sorted([*range(20)] * 3)
    for state, wanted in zip(states, seen, strict=False):
        source.current_position = state
        assert source.next_minibatch(7)[source["features"]].asarray().ravel().tolist() == wanted
    with pytest.raises(ValueError, match="it has no 'samples'"):
        source.restore_from_checkpoint({})


def test_a_minibatch_comes_by_variable_where_a_map_is_given(make: Make) -> None:
    source, words = make(SPARSE, randomize=False), C.sequence.input_variable(1000)
    batch = source.next_minibatch(3, {words: source.streams.features})
    assert list(batch) == [words]
    assert isinstance(batch[words], MinibatchData)
    foreign = StreamInformation("other", 7, "dense", np.float32, (1,))
    with pytest.raises(ValueError, match=r"the source has no stream other.* it has 'features', 'labels'"):
        source.next_minibatch(3, {words: foreign})
    with pytest.raises(ValueError, match="no streams are called 'nothing'; there are 'features', 'labels'"):
        source.stream_info("nothing")


def test_files_are_read_together_sequence_by_sequence(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("0 |x 1:1\n0 |x 2:1\n1 |x 3:1\n")
    (tmp_path / "b").write_text("0 |y 5\n1 |y 6\n")
    both = [
        CTFDeserializer(str(tmp_path / "a"), StreamDefs(x=StreamDef(field="x", shape=5, is_sparse=True))),
        CTFDeserializer(str(tmp_path / "b"), StreamDefs(y=StreamDef(field="y", shape=1, defines_mb_size=True))),
    ]
    source = MinibatchSource(both, randomize=False)
    batch = source.next_minibatch(2)
    assert batch[source["x"]].num_samples == 3
    assert batch[source["y"]].asarray().ravel().tolist() == [5, 6]


def test_data_in_memory_are_read_in_order_with_a_short_last_minibatch() -> None:
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    y = scipy.sparse.csr_matrix((np.ones(5, np.float32), (range(5), [1, 0, 0, 1, 0])), shape=(5, 2))
    source = MinibatchSourceFromData({"x": x, "y": y}, max_samples=5)
    first, second = source.next_minibatch(3), source.next_minibatch(3)
    assert np.array_equal(first[source.streams["x"]].data.asarray(), x[:3])
    assert np.array_equal(second[source.streams["y"]].data.asarray().todense(), y[3:].todense())
    assert second[source["x"]].end_of_sweep
    assert not first[source["x"]].end_of_sweep
    assert source.next_minibatch(3) == {}
    again = MinibatchSourceFromData({"x": x})
    assert [len(again.next_minibatch(3)[again["x"]]) for _ in range(4)] == [3, 2, 3, 2]
    assert again.is_infinite()


def test_data_in_memory_may_be_sequences_and_the_first_may_be_longer_than_a_minibatch() -> None:
    sequences = [np.arange(4, dtype=np.float32)[:, None], np.ones((2, 1), np.float32)]
    source = MinibatchSourceFromData({"x": sequences}, max_samples=6)
    first, second = source.next_minibatch(3), source.next_minibatch(3)
    assert first[source["x"]].num_samples == 4
    assert second[source["x"]].num_samples == 2
    state = source.get_checkpoint_state()
    assert state == {"cursor": 0, "total_num_samples": 6}


def test_workers_share_data_in_memory_without_a_row_twice() -> None:
    sources = [MinibatchSourceFromData({"x": np.arange(7, dtype=np.float32)[:, None]}, 7) for _ in range(2)]
    rows = []
    for own, source in enumerate(sources):
        while batch := source.next_minibatch(3, 2, own):
            rows += batch[source["x"]].asarray().ravel().tolist()
    assert sorted(rows) == list(range(7))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({}, ValueError),
        ({"x": np.zeros((0, 2), np.float32)}, ValueError),
        ({"x": np.zeros((2, 2), np.float32), "y": np.zeros((3, 2), np.float32)}, TypeError),
        ({"x": "text"}, TypeError),
    ],
)
def test_data_in_memory_that_cannot_be_read_are_refused(data: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        MinibatchSourceFromData(data)


class Chunks(UserDeserializer):  # type: ignore[misc]
    """Chunk k has `each` sequences of the number k."""

    def __init__(self, chunks: int, each: int, longest: int) -> None:
        super().__init__()
        self.count, self.each, self.longest = chunks, each, longest

    def stream_infos(self) -> list[StreamInformation]:
        return [
            StreamInformation("x", 0, "dense", np.float32, (2, 3)),
            StreamInformation("y", 1, "sparse", np.float32, (3,)),
        ]

    def num_chunks(self) -> int:
        return self.count

    def get_chunk(self, chunk_id: int) -> dict[str, Any]:
        lengths = [1 + k % self.longest for k in range(self.each)]
        return {
            "x": [np.full((n, 2, 3), chunk_id, np.float32) for n in lengths],
            "y": [scipy.sparse.csr_matrix(np.full((n, 3), chunk_id, np.float32)) for n in lengths],
        }


@pytest.mark.parametrize("randomize", [False, True])
@pytest.mark.parametrize("each", [1, 40])
def test_a_deserializer_of_ones_own_is_read_chunk_by_chunk(randomize: bool, each: int) -> None:
    source = MinibatchSource(Chunks(12, each, 4), randomize=randomize, max_sweeps=2, randomization_window_in_chunks=5)
    seen: dict[str, list[int]] = {"x": [], "y": []}
    while batch := source.next_minibatch(20):
        seen["x"] += [int(each[0][0][0]) for each in batch[source["x"]].as_sequences()]
        seen["y"] += [int(each.toarray()[0][0]) for each in batch[source["y"]].as_sequences()]
    assert seen["x"] == seen["y"]
    assert sorted(seen["x"]) == sorted([*range(12)] * each * 2)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"W": np.array([])}, ""),
        (
            {"W": np.array([[[1, 0], [1, 0]], [[5, 6], [7, 8]]]), "L": np.array([[[2]]])},
            "0\t|L 2 |W 1 0 1 0\n0\t|W 5 6 7 8",
        ),
        ({"W": [{7: 1, 2: 3}]}, "0\t|W 2:3 7:1"),
    ],
)
def test_sequences_are_written_as_text(fields: Any, text: str) -> None:
    assert sequence_to_cntk_text_format(0, fields) == text


def test_a_stream_without_a_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="no shape"):
        CTFDeserializer("file", StreamDefs(x=StreamDef(field="x")))
    with pytest.raises(ValueError, match="StreamDef: transforms= is not offered"):
        StreamDef(field="image", transforms=[])
