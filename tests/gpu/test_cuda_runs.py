"""A run on a GPU: saved by value, resumed bit for bit, and memory that really runs out."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import headrace as hr
from headrace.store.snapshot import Copier

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]

X = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 5, (200,), generator=torch.Generator().manual_seed(1))


def trainer(**options: Any) -> hr.Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=20, device="cuda", metrics="accuracy", **options)


def state_of(t: hr.Trainer) -> dict[str, Any]:
    state = {f"model/{name}": value.clone() for name, value in t.model.state_dict().items()}
    for number, held in enumerate(t.optimizer.state.values()):
        state |= {f"optimizer/{number}/{key}": value.clone() for key, value in held.items()}
    return state | {"rng": torch.cuda.get_rng_state()}


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("stop", [1, 7, 10, 23])
def test_a_run_on_a_gpu_resumes_bit_for_bit(tmp_path: Path, stop: int, precision: str) -> None:
    reference = trainer(precision=precision)
    history = reference.fit((X, Y), (X, Y), epochs=3, progress=False)
    for info in trainer(precision=precision).steps((X, Y), (X, Y), epochs=3, run=tmp_path / "run"):
        if info.step == stop:
            break
    torch.cuda.manual_seed(99)
    resumed = trainer(precision=precision)
    torch.cuda.manual_seed(98)
    again = resumed.fit((X, Y), (X, Y), epochs=3, run=tmp_path / "run", progress=False)
    expected, found = state_of(reference), state_of(resumed)
    assert expected.keys() == found.keys()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []
    assert again.rows == history.rows


def test_a_copy_from_a_gpu_is_by_value() -> None:
    tensors = {"a": torch.randn(1000, device="cuda"), "b": torch.randn(3, 4, device="cuda").t()}
    before = {name: tensor.cpu().clone() for name, tensor in tensors.items()}
    copies = Copier()(tensors)
    for tensor in tensors.values():
        tensor.zero_()
    torch.cuda.synchronize()
    assert all(torch.equal(copies[name], before[name]) and copies[name].device.type == "cpu" for name in before)


class Hungry(nn.Module):
    """Needs about a twentieth of the memory for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> Any:
        _, total = torch.cuda.mem_get_info()
        room = torch.empty(len(x) * (total // 20), dtype=torch.uint8, device="cuda")
        return self.layer(x) + 0 * room[:1].float()


def test_memory_that_runs_out_is_met_by_smaller_microbatches() -> None:
    model = Hungry()
    t = hr.Trainer(
        model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1), device="cuda", microbatch="auto"
    )
    with pytest.warns(UserWarning, match="memory ran out with 40 rows"):
        t.step((X[:40], Y[:40]))
    t.release()
    plain = Hungry()
    other = hr.Trainer(plain, hr.CrossEntropy(), torch.optim.SGD(plain.parameters(), lr=0.1), device="cuda")
    with pytest.raises(hr.OutOfMemoryError, match="microbatch=20"):
        other.step((X[:40], Y[:40]))
