"""How much memory a training takes at its peak, beside the hand-written loop."""

import os
import subprocess
import sys

import pytest

TRAIN = """
import sys, torch
import headrace as hr
from torch import nn

torch.set_num_threads(1)

def train(size, by_hand):
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

train(8, False)
train(1536, sys.argv[1] == "by hand")
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM:")).split()[1])
"""
WEIGHTS_KB = 4 * 1536**2 * 4 / 1024


def peak_kb(how: str) -> int:
    # freed tensors go back to the system at once: the peak is what is alive, not what the heap happens to keep
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, how], env=env, capture_output=True, text=True, timeout=400, check=True
    )
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the peak is read from /proc")
def test_large_gradients_of_an_update_are_let_go_before_the_next_pass() -> None:
    assert peak_kb("by headrace") < peak_kb("by hand") + 0.4 * WEIGHTS_KB
