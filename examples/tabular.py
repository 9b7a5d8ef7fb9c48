# %% [markdown]
# A table with categories, from Parquet and from CSV: validation, early stopping, a test on the model that is kept.

# %%
import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import torch
from torch import nn

import headrace as hr


# %% Flats and their prices: a file of each kind, as they would come from elsewhere.
def flats(rows, seed):
    draw = np.random.default_rng(seed)
    area, rooms = draw.uniform(20, 150, rows), draw.integers(1, 6, rows)
    town = draw.choice(["Bonn", "Calais", "Delft", "Exeter"], rows)
    per_m2 = np.select([town == "Bonn", town == "Calais", town == "Delft"], [3.0, 2.0, 4.5], default=3.5)
    price = area * per_m2 + 10 * rooms + draw.normal(0, 10, rows)  # in thousands
    return pa.table({"area": area, "rooms": rooms, "town": town, "price": price})


pq.write_table(flats(4000, seed=0), "flats.parquet")
csv.write_csv(flats(500, seed=1), "new.csv")

# %% Numbers side by side are one stream, strings become numbers; the test file has its strings numbered alike.
columns = {"numbers": ["area", "rooms"], "town": "town", "y": "price"}
dtypes = {"numbers": "float32", "y": "float32"}
table = hr.open_table("flats.parquet", columns=columns, dtypes=dtypes)
test = hr.open_table("new.csv", columns=columns, dtypes=dtypes, categories=table.categories)
train, val = hr.split(table, 0.85, 0.15, seed=0)
print(len(train), len(val), table.categories)


# %%
class Prices(nn.Module):
    def __init__(self, towns):
        super().__init__()
        self.towns = nn.Embedding(towns, 4)
        self.layers = nn.Sequential(nn.Linear(2 + 4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, numbers, town):
        scaled = numbers / torch.tensor([100.0, 5.0])
        return 100 * self.layers(torch.cat([scaled, self.towns(town)], dim=1)).squeeze(1)


# %%
torch.manual_seed(0)
model = Prices(len(table.categories["town"]))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
trainer = hr.Trainer(model, hr.Huber(delta=20.0), optimizer, metrics=["mae", "r2"], schedule=hr.Cosine())
stop = hr.EarlyStopping("val/mae", patience=8)
history = trainer.fit(train, val, test, epochs=60, callbacks=[stop])
print(f"stopped: {history.stopped}")
print(f"test r2 {history.last['test/r2']:.3f}")
