import copy
import os

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from data import test, train, val


class Progress:
    """What the loop has to remember beside the model and the optimizer."""

    def __init__(self):
        self.epoch, self.best, self.best_weights, self.waited = 0, float("inf"), None, 0

    def state_dict(self):
        return vars(self)

    def load_state_dict(self, state):
        vars(self).update(state)


def score(loader):
    model.eval()
    loss, right, rows = 0.0, 0, 0
    for x, y in loader:
        with torch.no_grad():
            outputs, y = accelerator.gather_for_metrics((model(x), y))
        loss += F.cross_entropy(outputs, y, reduction="sum").item()
        right += (outputs.argmax(dim=1) == y).sum().item()
        rows += len(y)
    return loss / rows, right / rows


set_seed(0)
accelerator = Accelerator()
loaders = [DataLoader(TensorDataset(*rows), batch_size=100, shuffle=rows is train) for rows in (train, val, test)]
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer, *loaders = accelerator.prepare(model, optimizer, *loaders)
progress = Progress()
accelerator.register_for_checkpointing(progress)
if os.path.exists("accelerate"):
    accelerator.load_state("accelerate")
while progress.epoch < 20 and progress.waited < 3:
    model.train()
    for x, y in loaders[0]:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    progress.epoch += 1
    val_loss, accuracy = score(loaders[1])
    accelerator.print(f"epoch {progress.epoch}  val/loss {val_loss:.4f}  val/accuracy {accuracy:.3f}")
    if val_loss < progress.best:
        progress.best, progress.waited = val_loss, 0
        progress.best_weights = copy.deepcopy(accelerator.unwrap_model(model).state_dict())
    else:
        progress.waited += 1
    accelerator.save_state("accelerate")
accelerator.unwrap_model(model).load_state_dict(progress.best_weights)
accelerator.print(f"test accuracy {score(loaders[2])[1]:.3f}")
