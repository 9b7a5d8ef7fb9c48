# %% [markdown]
# Optuna looks for the width, the rate and the dropout of a small network; trials that promise little are pruned.

# %%
import optuna
import torch
from torch import nn

import headrace as hr
from headrace.optuna import Pruning

optuna.logging.set_verbosity(optuna.logging.WARNING)


# %% Two spirals, one class each.
def spirals(rows, seed):
    draw = torch.Generator().manual_seed(seed)
    turn, y = 3 * torch.rand(rows, generator=draw), torch.randint(0, 2, (rows,), generator=draw)
    angle = 2 * turn + torch.pi * y
    x = (0.3 + turn[:, None]) * torch.stack([angle.cos(), angle.sin()], dim=1)
    return x + 0.08 * torch.randn(rows, 2, generator=draw), y


train, val = spirals(1500, seed=0), spirals(500, seed=1)


# %% A trial: a model of what Optuna suggests, in a run of its own.
def objective(trial):
    torch.manual_seed(0)
    width, dropout = trial.suggest_int("width", 8, 64, log=True), trial.suggest_float("dropout", 0.0, 0.5)
    layers = (
        nn.Linear(2, width),
        nn.Tanh(),
        nn.Dropout(dropout),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, 2),
    )
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=trial.suggest_float("lr", 1e-4, 3e-2, log=True))
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=64, metrics="accuracy", device="cpu")
    best = hr.BestModel("val/loss")
    pruning = Pruning(trial, "val/loss")
    run = f"runs/tuned/{trial.number}"
    trainer.fit(train, val, epochs=10, run=run, callbacks=[best, pruning], progress=False)
    return best.best


# %% The study is in a file: run this again, and it goes on with more trials.
study = optuna.create_study(
    direction="minimize",
    storage="sqlite:///tuned.db",
    study_name="spirals",
    load_if_exists=True,
    sampler=optuna.samplers.TPESampler(seed=0),
    pruner=optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=2),
)
study.optimize(objective, n_trials=8)
pruned = [trial.number for trial in study.trials if trial.state == optuna.trial.TrialState.PRUNED]
print(f"best: {study.best_value:.4f} with {study.best_params}; pruned: {len(pruned)} of {len(study.trials)}")
