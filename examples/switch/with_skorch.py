import os

import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Checkpoint, EarlyStopping, EpochScoring, GradientNormClipping, LoadInitState
from skorch.dataset import Dataset
from skorch.helper import predefined_split
from torch import nn

from data import test, train, val

torch.manual_seed(0)
saved = Checkpoint(monitor="valid_loss_best", dirname="skorch")
last = Checkpoint(monitor=None, dirname="skorch/last")
callbacks = [
    ("accuracy", EpochScoring("accuracy", lower_is_better=False, name="val_accuracy")),
    ("clip", GradientNormClipping(1.0)),
    ("stop", EarlyStopping(patience=3, load_best=True)),
    ("best", saved),
    ("last", last),
]
if os.path.exists("skorch/last/params.pt"):
    callbacks.append(("resume", LoadInitState(last)))
net = NeuralNetClassifier(
    nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3)),
    criterion=nn.CrossEntropyLoss,
    optimizer=torch.optim.AdamW,
    lr=3e-3,
    batch_size=100,
    max_epochs=20,
    iterator_train__shuffle=True,
    train_split=predefined_split(Dataset(*val)),
    callbacks=callbacks,
)
net.fit(*train)
net.load_params(checkpoint=saved)
print(f"test accuracy {net.score(*test):.3f}")
