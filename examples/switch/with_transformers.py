import os

import torch.nn.functional as F
from torch import nn
from transformers import EarlyStoppingCallback, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from data import test, train, val


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, x, labels=None):
        outputs = self.net(x)
        return {"loss": F.cross_entropy(outputs, labels), "logits": outputs}


def samples(rows):
    return [{"x": x, "labels": y} for x, y in zip(*rows, strict=True)]


def accuracy(predictions):
    return {"accuracy": float((predictions.predictions.argmax(axis=1) == predictions.label_ids).mean())}


set_seed(0)
arguments = TrainingArguments(
    "transformers",
    num_train_epochs=20,
    per_device_train_batch_size=100,
    learning_rate=3e-3,
    lr_scheduler_type="constant",
    max_grad_norm=1.0,
    eval_strategy="epoch",
    save_strategy="epoch",
    logging_strategy="epoch",
    load_best_model_at_end=True,
    metric_for_best_model="eval_loss",
    save_total_limit=3,
    report_to=[],
)
trainer = Trainer(
    Classifier(),
    arguments,
    train_dataset=samples(train),
    eval_dataset=samples(val),
    compute_metrics=accuracy,
    callbacks=[EarlyStoppingCallback(early_stopping_patience=3)],
)
last = get_last_checkpoint("transformers") if os.path.isdir("transformers") else None
trainer.train(resume_from_checkpoint=last)
scores = trainer.evaluate(samples(test), metric_key_prefix="test")
print(f"test accuracy {scores['test_accuracy']:.3f}")
