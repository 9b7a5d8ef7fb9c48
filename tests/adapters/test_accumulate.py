"""Several batches of a loader in one update: each padded to its own longest row, with the mean over all tokens."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit.small import fit, same, stop_and_resume
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import headrace as hr

ROWS, BATCH, TOGETHER = 43, 4, 3  # 11 batches, of which the last has 3 rows: updates of 3, 3, 3 and 2 batches
_LENGTHS = torch.randint(1, 9, (ROWS,), generator=torch.Generator().manual_seed(0)).tolist()
SEQUENCES = [torch.arange(row, row + length) % 7 for row, length in enumerate(_LENGTHS)]


def collate(rows: list[Tensor]) -> dict[str, Tensor]:
    targets = [row.flip(0) % 3 for row in rows]
    return {"x": pad_sequence(rows, batch_first=True), "y": pad_sequence(targets, batch_first=True, padding_value=-100)}


def loader(shuffle: bool = True) -> DataLoader[Any]:
    return DataLoader(SEQUENCES, BATCH, shuffle=shuffle, collate_fn=collate)  # type: ignore[arg-type]


def source(accumulate: int = TOGETHER) -> hr.LoaderSource:
    return hr.LoaderSource(loader(), accumulate=accumulate)


class Tagger(nn.Module):
    def __init__(self, dropout: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.out = nn.Embedding(7, 6), nn.Linear(6, 3)
        self.drop = nn.Dropout(0.2) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(self.embed(x))).transpose(1, 2)  # type: ignore[no-any-return]


def trainer(model: nn.Module | None = None, **options: Any) -> hr.Trainer:
    model = Tagger() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return hr.Trainer(model, hr.CrossEntropy(ignore_index=-100), optimizer, metrics="accuracy", **options)


def by_hand(mean_of_means: bool = False) -> nn.Module:
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(5)
    for _ in range(2):
        batches = list(loader(shuffle=False))
        for start in range(0, len(batches), TOGETHER):
            group = batches[start : start + TOGETHER]
            tokens = sum(int((batch["y"] != -100).sum()) for batch in group)
            optimizer.zero_grad()
            for batch in group:
                reduction = "mean" if mean_of_means else "sum"
                loss = F.cross_entropy(model(batch["x"]), batch["y"], ignore_index=-100, reduction=reduction)
                (loss / (len(group) if mean_of_means else tokens)).backward()
            optimizer.step()
    return model


@pytest.mark.parametrize("how", [{"tape": False}, {"tape": True}, {"arena": False}], ids=str)
def test_the_weights_are_those_of_a_loop_that_divides_by_all_tokens(how: dict[str, Any]) -> None:
    ours = trainer(**how)
    torch.manual_seed(5)
    history = fit(ours, hr.LoaderSource(loader(shuffle=False), accumulate=TOGETHER))
    assert same(by_hand(), ours.model)
    assert history[-1]["step"] == 8
    assert history[-1]["samples"] == 2 * ROWS
    assert not same(by_hand(mean_of_means=True), ours.model), "the control"


def test_a_run_that_ends_after_any_update_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    stop_and_resume(trainer, [1, 4, 6, 7], tmp_path, source, every="1 step")


def test_microbatches_divide_the_batches_of_an_update() -> None:
    one, other = (trainer(Tagger(dropout=False), **how) for how in ({}, {"microbatch": 2}))
    for each in (one, other):
        fit(each, hr.LoaderSource(loader(shuffle=False), accumulate=TOGETHER))
    assert all(map(torch.allclose, one.model.parameters(), other.model.parameters()))


def _with_two_workers() -> None:
    fit(trainer(strategy=hr.Synchronous()), source())


@pytest.mark.filterwarnings("ignore:LoaderSource does not shard:UserWarning")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: source(0), "accumulate= is a number of the loader's batches, 1 or more; got 0"),
        (lambda: source(True), "accumulate= is a number of the loader's batches, 1 or more; got True"),
        (lambda: fit(trainer(), loader(), val=source()), "accumulate= is for training data, and the val data have it"),
        (lambda: trainer().predict(source()), "accumulate= is for training data"),
        (
            lambda: hr.launch(_with_two_workers, workers=2),
            r"[23] batches of a loader that make one update",
        ),
        (
            lambda: fit(trainer(strategy=hr.Synchronous(parts=2)), source()),
            "3 batches of a loader that make one update",
        ),
        (
            lambda: fit(
                trainer(), hr.LoaderSource([{"x": hr.Ragged.of([[1]]), "y": torch.tensor([1])}] * 2, accumulate=2)
            ),
            "batches of tensors",
        ),
    ],
    ids=["none", "yes", "validation", "prediction", "workers", "parts", "sequences"],
)
def test_what_cannot_be_accumulated_is_refused(call: Any, message: str) -> None:
    with pytest.raises(hr.HeadraceError, match=message):
        call()


@pytest.mark.parametrize(("before", "after"), [(3, 2), (3, 1), (1, 3)])
def test_a_run_with_another_number_of_batches_is_refused(tmp_path: Path, before: int, after: int) -> None:
    fit(trainer(), source(before), steps=2, run=tmp_path)
    saved, now = (None if number == 1 else number for number in (before, after))
    with pytest.raises(hr.HeadraceError, match=f"accumulate: saved {saved}, now {now}"):
        fit(trainer(), source(after), steps=4, run=tmp_path)
