import copy
import os

import torch
import torch.nn.functional as F
from torch import nn

from data import test, train, val


def score(model, x, y):
    model.eval()
    with torch.no_grad():
        outputs = model(x)
    return F.cross_entropy(outputs, y).item(), (outputs.argmax(dim=1) == y).float().mean().item()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
epoch, best, best_weights, waited = 0, float("inf"), None, 0
if os.path.exists("loop.pt"):
    saved = torch.load("loop.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    epoch, best, best_weights, waited = saved["epoch"], saved["best"], saved["best_weights"], saved["waited"]
    torch.set_rng_state(saved["random"])
while epoch < 20 and waited < 3:
    model.train()
    total = 0.0
    for rows in torch.randperm(2000).split(100):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(train[0][rows]), train[1][rows])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item() * len(rows)
    epoch += 1
    val_loss, accuracy = score(model, *val)
    print(f"epoch {epoch}  train/loss {total / 2000:.4f}  val/loss {val_loss:.4f}  val/accuracy {accuracy:.3f}")
    if val_loss < best:
        best, best_weights, waited = val_loss, copy.deepcopy(model.state_dict()), 0
    else:
        waited += 1
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
    state |= {"epoch": epoch, "best": best, "best_weights": best_weights, "waited": waited}
    torch.save(state, "loop.pt.new")
    os.replace("loop.pt.new", "loop.pt")
model.load_state_dict(best_weights)
print(f"test accuracy {score(model, *test)[1]:.3f}")
