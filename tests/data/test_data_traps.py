"""Uses of maps, readers and sizes that would go wrong in silence: they work, or they are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.own_data import Pulled
from kit.sums import Elsewhere, X, Y, make
from torch import Tensor, nn

import headrace as hr
from headrace.data.ragged import Ragged
from headrace.testing.makers import ragged_table

# --- maps -----------------------------------------------------------------------------------------------


def test_a_map_that_draws_from_a_global_generator_is_refused() -> None:
    def noisy(fields: Any) -> Any:
        return {**fields, "x": fields["x"] + torch.randn_like(fields["x"])}

    with pytest.raises(hr.ConfigError, match=r"noisy draws random numbers.*def f\(fields, draws\)"):
        hr.map((X, Y), noisy)


def test_a_frozen_model_in_a_map_is_not_trained_through() -> None:
    extractor = nn.Linear(3, 3)
    trainer = make()
    trainer.fit(hr.map((X, Y), lambda fields: {**fields, "x": extractor(fields["x"])}), epochs=2, progress=False)
    assert extractor.weight.grad is None


def test_an_augmentation_that_changes_lengths_cannot_be_sized_by_items() -> None:
    def doubled(fields: Any, draws: hr.Draws) -> Any:
        words = fields["words"]
        return {**fields, "words": Ragged(words.values.repeat_interleave(2), 2 * words.host_offsets)}

    table = ragged_table("words", [1, 2, 3, 4])
    with pytest.raises(hr.SourceError, match="doubled changes the lengths of 'words'"):
        hr.Reader(table, count="words", augment=doubled)
    hr.Reader(table, augment=doubled)


def test_a_mix_and_any_reader_may_be_mapped_and_sized() -> None:
    words = ragged_table("words", [1, 2, 3, 4])
    mixed = hr.map(hr.mix([words, words], [1, 2], rows=30, count="words", augment=lambda f, draws: f), dict)
    batch = mixed.next_batch(9)
    assert batch.items("words") <= 9
    assert mixed.state_dict()["count"] == "words"


# --- one source, two readers of it ----------------------------------------------------------------------


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


def test_a_limit_on_what_cannot_be_rewound_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="Pulled without state_dict: limit= scores other rows each time"):
        make().validate(Pulled({"x": X, "y": Y}, state=False), limit=8)


# --- sizes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [np.int64, np.uint8])
def test_numbers_of_rows_may_be_those_of_numpy(whole: Any, tmp_path: Path) -> None:
    table = hr.ArrayTable({"x": X, "y": Y})
    sizes = {0: whole(4), "8 samples": whole(8)}
    options = {"batch_size": sizes, "microbatch": whole(2), "macrobatch": whole(16), "seed": whole(3)}
    trainer = make(**options)
    reader = hr.Reader(table, "blocks", whole(1), block=whole(5), mix=whole(2), max_samples=whole(30))
    trainer.fit(reader, epochs=whole(1), run=hr.Run(tmp_path / "run", logs=False), progress=False)
    assert trainer.predict(X, batch_size=whole(8)).shape == (40,)
    trainer.validate(table, batch_size=whole(8), limit=whole(8))
    assert len(hr.skip(hr.head(table, whole(9)), whole(4))) == 5
    assert hr.mix([table, table], [1, 1], rows=whole(7)).next_batch(whole(9)).rows == 7
    for size in (whole(0), np.float64(8), np.True_):
        with pytest.raises(hr.ConfigError, match="batch_size= is a whole number greater than 0"):
            make(batch_size=size)
    with pytest.raises(hr.ConfigError, match="block= is a number of rows, at least 1, got 0"):
        hr.Reader(table, "blocks", block=0)


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
