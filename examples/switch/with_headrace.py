import torch
from torch import nn

import headrace as hr
from data import test, train, val

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=100, clip_norm=1.0, metrics="accuracy")
stop = hr.EarlyStopping("val/loss", patience=3)
history = trainer.fit(train, val, test, epochs=20, callbacks=[stop], run="runs/task")
print(f"test accuracy {history.last['test/accuracy']:.3f}")
