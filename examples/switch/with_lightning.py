import os

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from data import test, train, val


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
        self.accuracy = MulticlassAccuracy(3, average="micro")

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self._score(batch, "val")

    def test_step(self, batch, batch_idx):
        self._score(batch, "test")

    def _score(self, batch, name):
        x, y = batch
        outputs = self.net(x)
        self.accuracy(outputs, y)
        self.log(f"{name}_loss", F.cross_entropy(outputs, y), prog_bar=True)
        self.log(f"{name}_accuracy", self.accuracy, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


L.seed_everything(0)
loaders = [DataLoader(TensorDataset(*rows), batch_size=100, shuffle=rows is train) for rows in (train, val, test)]
best = ModelCheckpoint("lightning", monitor="val_loss", save_last=True)
trainer = L.Trainer(
    max_epochs=20, gradient_clip_val=1.0, callbacks=[EarlyStopping("val_loss", patience=3), best], accelerator="cpu"
)
last = "lightning/last.ckpt"
trainer.fit(Classifier(), loaders[0], loaders[1], ckpt_path=last if os.path.exists(last) else None)
(scores,) = trainer.test(dataloaders=loaders[2], ckpt_path="best")
print(f"test accuracy {scores['test_accuracy']:.3f}")
