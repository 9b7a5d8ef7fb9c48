# %% [markdown]
# Images: a small convolutional network on the digits that ship in scikit-learn, moved about while it trains.

# %%
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import headrace as hr

# %% 1,797 images of 8x8 pixels, from 0 to 16.
pixels, labels = load_digits(return_X_y=True)
images = torch.from_numpy(pixels).float().reshape(-1, 1, 8, 8) / 16
table = hr.ArrayTable({"x": images, "y": torch.from_numpy(labels)})
train, val, test = hr.split(table, 0.6, 0.2, 0.2, seed=0, stratify="y")


# %% What is drawn belongs to the row: the same whatever the batch, the worker, or the resume that reads it.
def moved(fields, draws):
    """Turned by up to 15 degrees, moved by up to a pixel, another set of pictures in every epoch."""
    x = fields["x"]
    angle, shift = draws.uniform(low=-0.26, high=0.26), draws.uniform(2, low=-0.25, high=0.25)
    cos, sin = angle.cos(), angle.sin()
    matrix = torch.stack([torch.stack([cos, -sin], 1), torch.stack([sin, cos], 1)], 1)
    grid = F.affine_grid(torch.cat([matrix, shift[:, :, None]], dim=2), list(x.shape), align_corners=False)
    return {**fields, "x": F.grid_sample(x, grid, align_corners=False)}


# %%
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(64 * 16, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
options = {"batch_size": 64, "metrics": ["accuracy"], "schedule": hr.OneCycle()}
trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, augment=moved, **options)
history = trainer.fit(train, val, test, epochs=12, callbacks=[hr.BestModel("val/accuracy", restore=True)])

# %%
print(trainer.predict(test).shape)
print(f"test accuracy {history.last['test/accuracy']:.3f}")
