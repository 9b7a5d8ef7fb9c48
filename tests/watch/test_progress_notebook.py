"""Progress, curves and an interrupt in the kernel of a notebook."""

from typing import Any

import pytest

MADE = """
import torch, headrace as hr
from torch import nn
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
y = (x[:, 0] > 0).long()
def trainer():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    return hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=8)
"""
INTERRUPTED = """
import os, signal
class Stop(hr.Callback):
    def on_step_end(self, info):
        if info.step == 11:
            os.kill(os.getpid(), signal.SIGINT)
try:
    trainer().fit((x, y), epochs=4, run="run", callbacks=[Stop()], progress=False)
except KeyboardInterrupt:
    print("interrupted")
again = trainer()
again.fit((x, y), epochs=4, run="run", progress=False)
whole = trainer()
whole.fit((x, y), epochs=4, progress=False)
print(torch.equal(again.model.weight, whole.model.weight), "going on from step 11" in open("run/log.txt").read())
"""


@pytest.mark.filterwarnings("ignore")  # of Jupyter's packages
def test_a_notebook_shows_lines_and_a_figure_and_goes_on_after_an_interrupt(tmp_path: Any) -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    sources = [MADE, "history = trainer().fit((x, y), epochs=3)", "history.plot()", INTERRUPTED]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    client.NotebookClient(book, timeout=400, resources={"metadata": {"path": str(tmp_path)}}).execute()
    _, trained, plotted, interrupted = (cell.outputs for cell in book.cells)
    lines = "".join(output.text for output in trained if output.output_type == "stream").splitlines()
    assert [line.split("  ")[0] for line in lines[:3]] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert lines[3].startswith("ended after 24 steps")
    assert "image/png" in plotted[-1].data
    assert "".join(out.text for out in interrupted if out.get("name") == "stdout") == "interrupted\nTrue True\n"
