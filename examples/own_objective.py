# %% [markdown]
# An objective of one's own: a variational autoencoder, whose loss is no `loss(outputs, target)`.

# %%
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import headrace as hr

# %%
pixels, _ = load_digits(return_X_y=True)
images = torch.from_numpy(pixels).float() / 16
train, val = images[:1500], images[1500:]


# %%
class Autoencoder(nn.Module):
    def __init__(self, hidden=128, code=8):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 2 * code))
        self.decode = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, 64))

    def forward(self, x):
        mean, log_variance = self.encode(x).chunk(2, dim=1)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return self.decode(mean + noise * (0.5 * log_variance).exp()), mean, log_variance


# %% Terms are sums and the weights to divide by, so that any split of a batch gives the same gradient.
class Evidence(hr.Objective):
    """What a code fails to tell, and half of what it costs: a VAE, https://arxiv.org/abs/1312.6114, that tells more."""

    splits = True

    def terms(self, model, batch):
        x = batch["x"]
        logits, mean, log_variance = model(x)
        error = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
        cost = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum()
        return {"error": hr.Term(error, float(batch.rows)), "cost": hr.Term(cost, float(batch.rows), 0.5)}

    def weights(self, batch):
        return {"error": float(batch.rows), "cost": float(batch.rows)}

    def outputs(self, model, batch):
        """What `predict` returns: images that went through the code and back."""
        return model(batch["x"])[0].sigmoid()


# %%
torch.manual_seed(0)
model = Autoencoder()
trainer = hr.Trainer(model, Evidence(), torch.optim.Adam(model.parameters(), lr=2e-3), batch_size=100)
history = trainer.fit(train, val, epochs=30)

# %% How much of the variance of images that it has not seen is told by eight numbers each?
left = ((trainer.predict(val) - val) ** 2).sum() / ((val - val.mean(dim=0)) ** 2).sum()
print(f"explained variance {1 - left:.3f}")
