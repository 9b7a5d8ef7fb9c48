"""The same promises on a GPU: pinned copies on a side stream, no synchronisation, updates that are skipped there."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headrace as hr

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
]

X = torch.randn(1000, 16, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 5, (1000,), generator=torch.Generator().manual_seed(1))


class Host(hr.Table):
    """Rows that stay in host memory, so that they have to be staged."""

    thread_safe = True

    @property
    def streams(self) -> list[hr.Stream]:
        return [hr.Stream("x", (16,)), hr.Stream("y", (), "int64")]

    def __len__(self) -> int:
        return len(X)

    def take(self, indices: Tensor) -> hr.Batch:
        return hr.Batch({"x": X[indices], "y": Y[indices]})


def trained(data: Any, device: str, fused: bool = False, **options: Any) -> tuple[hr.Trainer, hr.History]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    trainer = hr.Trainer(
        model, hr.CrossEntropy(), optimizer, batch_size=64, device=device, metrics="accuracy", **options
    )
    return trainer, trainer.fit(data, data, epochs=3, progress=False)


@pytest.mark.parametrize("data", [(X, Y), Host()], ids=["resident", "staged"])
@pytest.mark.parametrize("macrobatch", ["auto", 128])
def test_a_gpu_trains_what_a_cpu_trains(data: Any, macrobatch: Any) -> None:
    (cpu, a), (gpu, b) = trained((X, Y), "cpu"), trained(data, "cuda", macrobatch=macrobatch)
    for p, q in zip(cpu.model.parameters(), gpu.model.parameters(), strict=True):
        torch.testing.assert_close(p, q.cpu(), rtol=1e-3, atol=1e-4)
    assert a.last["val/loss"] == pytest.approx(b.last["val/loss"], rel=1e-3)
    torch.testing.assert_close(gpu.predict(X), cpu.predict(X), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns(precision: str) -> None:
    _, history = trained((X, Y), "cuda", precision=precision)
    assert history[-1]["train/loss"] < history[0]["train/loss"]


def test_the_loop_does_not_wait_for_the_device() -> None:
    trainer, _ = trained((X, Y), "cuda", fused=True)
    on_device = X.cuda(), Y.cuda()
    trainer.metrics = hr.Trainer(trainer.model, hr.CrossEntropy(), trainer.optimizer).metrics
    info = iter(trainer.steps(on_device, epochs=1))
    next(info)  # the first update looks at the data, and makes the optimizer's state
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            next(info)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("fused", [False, True])
def test_a_bad_number_stops_the_run_within_the_macrobatch_and_reaches_no_weight(fused: bool) -> None:
    bad = X.clone()
    bad[500] = float("nan")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 5))
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=50, device="cuda", order="none")
    with pytest.raises(hr.NonFiniteError, match="step 11"):
        trainer.fit((bad, Y), epochs=1, progress=False)
    assert all(bool(v.isfinite().all()) for v in model.state_dict().values())
    assert {int(s["step"]) for s in optimizer.state.values()} == {10}


def test_passes_on_a_gpu_are_left_to_torch() -> None:
    model = nn.Linear(16, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=64, device="cuda", tape=True)
    with pytest.raises(hr.ModelError, match="tape=True, and a pass cannot be recorded: the model is on cuda"):
        trainer.fit((X, Y), epochs=1, progress=False)
    trainer, _ = trained((X, Y), "cuda")
    assert "passes are left to torch" in trainer.tape_note
