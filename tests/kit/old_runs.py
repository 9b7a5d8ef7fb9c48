"""What version 0.1.0 wrote: runs of several kinds that were stopped half way, an estimator, and a cache of a text file.

They lie in `tests/golden/0.1.0.tar.gz`, made by `PYTHONPATH=tests python -m kit.old_runs` with that version. Later
versions have to go on with them, and to come to the same end.
"""

import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import headrace as hr

ARCHIVE = Path(__file__).parents[1] / "golden" / "0.1.0.tar.gz"
STOPPED, END = 2, 4  # epochs
ROWS, BATCH = 24, 4
CACHED_AT_NS = 1_700_000_000_000_000_000
"""When the text file was last changed: its cache is valid for that."""
TEXT = "".join(f"{n}\t|x {n} {n / 8:g} |y {n % 3}:1\n{n}\t|x {n + 0.5} 1\n" for n in range(6))
STREAMS = (hr.Stream("x", (2,), sequence=True), hr.Stream("y", (3,), layout="sparse"))


def rows(count: int = ROWS) -> tuple[Tensor, Tensor]:
    at = torch.arange(count, dtype=torch.float64)
    return torch.stack([torch.sin(at), torch.cos(2 * at), at % 5 / 4], dim=1), (at % 3).long()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3)).double()


def trained(model: nn.Module, **options: Any) -> hr.Trainer:
    given: dict[str, Any] = {"batch_size": BATCH, "metrics": ["accuracy"], "seed": 7}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return hr.Trainer(model, hr.CrossEntropy(label_smoothing=0.1), optimizer, **(given | options))


def fit(trainer: hr.Trainer, train: Any, run: Path, epochs: int, **options: Any) -> None:
    """Goes on with other settings, too: that of a loss has another name now."""
    trainer.fit(train, val=rows(9), epochs=epochs, run=run, keep=1, progress=False, override=True, **options)


# --- the kinds of runs ------------------------------------------------------------------------------------


def plain(run: Path, epochs: int) -> nn.Module:
    model = network()
    callbacks = [hr.BestModel("val/loss"), hr.EMA(0.9), hr.EarlyStopping("val/loss", patience=50), hr.CSV()]
    fit(trained(model), rows(), run, epochs, callbacks=callbacks, log_every="2 steps")
    return model


def in_macrobatches(run: Path, epochs: int) -> nn.Module:
    model = network()
    trainer = trained(model, microbatch=2, macrobatch=8, clip_norm=0.5)
    going_on = run.exists()  # in the middle of an epoch of rows that its version could not tell from others
    fit(trainer, rows(), run, epochs, checkpoint_every="5 steps", override=going_on)
    return model


def a_loader(run: Path, epochs: int) -> nn.Module:
    model = network()
    torch.manual_seed(1)
    loader = DataLoader(TensorDataset(*rows()), batch_size=BATCH, shuffle=True)
    fit(trained(model, batch_size=None), loader, run, epochs)
    return model


def of_workers(strategy: Callable[[], hr.Strategy]) -> Callable[[Path, int], nn.Module]:
    def train(run: Path, epochs: int) -> nn.Module:
        def work() -> nn.Module:
            model = network()
            fit(trained(model, strategy=strategy(), batch_size=2 * BATCH), rows(), run, epochs)
            return model

        found: nn.Module = hr.launch(work, workers=2)
        return found

    return train


KINDS: dict[str, Callable[[Path, int], nn.Module]] = {
    "plain": plain,
    "in macrobatches": in_macrobatches,
    "a loader": a_loader,
    "synchronous": of_workers(hr.Synchronous),
    "periodic": of_workers(lambda: hr.Periodic("2 steps")),
    "diloco": of_workers(lambda: hr.DiLoCo("2 steps")),
}


def weights(model: nn.Module) -> list[float]:
    return [value for tensor in model.state_dict().values() for value in tensor.double().reshape(-1).tolist()]


# --- what else is kept ------------------------------------------------------------------------------------


def estimator() -> Any:
    from headrace.sklearn.estimators import Classifier

    x, y = rows()
    return Classifier(hidden=(4,), batch_size=BATCH, epochs=3, random_state=3, dtype="float64").fit(
        x.numpy(), y.numpy()
    )


def text_file(at: Path) -> Path:
    """The text file whose cache is in the directory "cache" beside it."""
    file = at / "rows.ctf"
    file.write_text(TEXT)
    os.utime(file, ns=(CACHED_AT_NS, CACHED_AT_NS))
    return file


def without_place(run: Path) -> None:
    """What a run notes of the machine and the directory is of no use to anybody else."""
    (run / "lock").unlink()
    shutil.rmtree(run / "tb")
    facts = json.loads((run / "run.json").read_text())
    facts |= {"command": ["train.py"], "git": None}
    facts["environment"] |= {"host": "host", "platform": "Linux", "directory": "/home/user"}
    (run / "run.json").write_text(json.dumps(facts, indent=2) + "\n")


def write() -> None:
    """Writes everything anew."""
    torch.set_num_threads(1)
    ends = {}
    with TemporaryDirectory() as folder:
        at = Path(folder)
        for name, train in KINDS.items():
            train(at / name, STOPPED)
            shutil.copytree(at / name, at / "copy")
            ends[name] = weights(train(at / "copy", END))
            shutil.rmtree(at / "copy")
            without_place(at / name)
        made = estimator()
        (at / "estimator.pickle").write_bytes(pickle.dumps(made))
        ends["estimator"] = made.predict_proba(rows()[0].numpy()).reshape(-1).tolist()
        (at / "cache").mkdir()
        hr.open_ctf(text_file(at), STREAMS, cache=at / "cache")
        (at / "ends.json").write_text(json.dumps(ends) + "\n")
        shutil.make_archive(str(ARCHIVE).removesuffix(".tar.gz"), "gztar", at)
    print(hr.__version__, "wrote", ARCHIVE, file=sys.stderr)


def unpacked(at: Path) -> dict[str, list[float]]:
    """Puts all of it into a directory; what each has to come to."""
    shutil.unpack_archive(ARCHIVE, at, filter="data")
    found: dict[str, list[float]] = json.loads((at / "ends.json").read_text())
    return found


if __name__ == "__main__":
    write()
