# %% [markdown]
# The training of `cntk_legacy.py` in headrace's own words: the same weights and errors.

# %%
import sys
from pathlib import Path

import torch
from torch import nn

import headrace as hr


# %% The same text file is a table. A sum over samples in place of a mean makes the rate one for each sample.
def main(folder):
    streams = [hr.Stream("pixels", (64,)), hr.Stream("digit", (10,))]
    train, test = (hr.open_ctf(Path(folder, f"{name}.ctf"), streams) for name in ("train", "test"))
    model = nn.Linear(64, 10)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
    loss = hr.CrossEntropy(reduce="sum")
    trainer = hr.Trainer(
        model, loss, optimizer, batch_size=50, order="none", metrics=["error"], inputs="pixels", target="digit"
    )
    history = trainer.fit(train, test, epochs=3, run=Path(folder, "run"), progress=False)
    return [p.detach().numpy() for p in model.parameters()], history["val/error"]


# %%
if __name__ == "__main__":
    print(main(sys.argv[1] if len(sys.argv) > 1 else ".")[1])
