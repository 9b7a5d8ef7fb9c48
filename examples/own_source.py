# %% [markdown]
# A source of one's own: a class with `next_batch` and a state, interrupted in the middle and resumed exactly.

# %%
import torch
from torch import nn

import headrace as hr


# %% Data that are made as they are needed: points of a spiral, without an end.
class Spirals(hr.Source):
    """Two arms of a spiral; all randomness is in the state, so that a resumed training sees the same points."""

    streams = (hr.Stream("x", (2,)), hr.Stream("y", dtype="int64"))
    endless = True

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def next_batch(self, size, shard=hr.Shard()):
        place, side = torch.rand(size, 2, generator=self.generator).T  # two numbers for each row, whatever the size
        arm = (side < 0.5).long()
        phase = 6 * place + torch.pi * arm
        return hr.Batch({"x": place[:, None] * torch.stack([phase.cos(), phase.sin()], dim=1), "y": arm})

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])


# %% One training, in the run that is named. What begins again has all to make anew: model, optimizer, source.
def train(run, stop_at=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=64, metrics=["accuracy"])
    val = hr.head(Spirals(seed=1), 2000)
    options = {"steps": 600, "validate_every": "200 steps", "log_every": "200 steps"}
    for info in trainer.steps(Spirals(seed=0), val, run=hr.Run(run, every="100 steps"), **options):
        if info.step == stop_at:
            break  # as if somebody had pressed Ctrl-C
    return model, trainer.history.last["val/accuracy"] if stop_at is None else None


# %%
whole, accuracy = train("runs/whole")
train("runs/parts", stop_at=317)
parts, _ = train("runs/parts")  # goes on from step 317

same = all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), parts.state_dict().values(), strict=True))
print(f"the weights of both are the same: {same}")
print(f"validation accuracy {accuracy:.3f}")
