"""How much memory a training takes at its peak, beside the hand-written loop."""

import ctypes
import os
from pathlib import Path

import pytest
import torch
from kit.forked import start, tell
from torch import nn

import headrace as hr

WEIGHTS_KB = 4 * 1536**2 * 4 / 1024


M_MMAP_THRESHOLD = -3


def train(size: int, by_hand: bool) -> None:
    model = nn.Sequential(*(nn.Linear(size, size, bias=False) for _ in range(4)))
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss()
    x = torch.randn(8, size)
    if by_hand:
        for _ in range(4):
            optimizer.zero_grad()
            loss(model(x), x).backward()
            optimizer.step()
    else:
        hr.Trainer(model, loss, optimizer, batch_size=8).fit((x, x), epochs=4, progress=False)


def measures(by_hand: bool) -> None:
    # freed tensors go back to the system at once: the peak is what is alive, not what the heap happens to keep
    assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 16) == 1
    torch.set_num_threads(1)
    train(8, by_hand)
    before = _of_status("VmRSS:")
    train(1536, by_hand)
    tell(f"peak {_of_status('VmHWM:') - before}")


def _of_status(name: str) -> int:
    return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1])


def peak_kb(at: Path, by_hand: bool) -> int:
    with start(measures, at, by_hand) as child:
        return int(child.until("peak"))


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the peak is read from /proc")
def test_large_gradients_of_an_update_are_let_go_before_the_next_pass(tmp_path: Path) -> None:
    by_hand = peak_kb(tmp_path, True)
    assert by_hand > 1.9 * WEIGHTS_KB, "the control: weights and gradients are seen"
    assert peak_kb(tmp_path, False) < by_hand + 0.4 * WEIGHTS_KB
