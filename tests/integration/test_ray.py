"""Workers on Ray: in step by Ray Train, or at a center; a local cluster that nobody else can reach."""

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.engine import launch
from headrace.errors import ConfigError, WorkerError
from headrace.strategy import Asynchronous, Synchronous

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'headrace[ray]'")

from kit import ray_cases  # noqa: E402

from headrace.engine.ray import cluster  # noqa: E402

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
LIMIT_S = 200.0  # of a job on a busy machine

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def there() -> Iterator[cluster.Cluster]:
    """One cluster for all tests: the jobs find it there."""
    with ray_cases.local_cluster() as found:
        yield found


def job(main: Any, *arguments: Any, **options: Any) -> Any:
    return launch(main, *arguments, engine="ray", **{"workers": 2, "timeout_s": LIMIT_S, **options})


# --- what works -------------------------------------------------------------------------------------------


def test_workers_in_step_say_everything_to_each_other_and_listen_to_this_machine_alone(there: Any) -> None:
    model = ray_cases.Visits(37)
    found = job(ray_cases.talk_and_train, 10.0, model, Synchronous())
    assert torch.equal(model.seen, torch.full((37,), 2.0)), "the caller's model has what the workers have agreed on"
    assert (found["epochs"], found["samples"], found["count"]) == (2, 74, 2)
    assert torch.equal(found["total"], torch.full((2, 3), 21.0))
    assert found["most"] == [1, 0]
    assert torch.equal(found["weights"], torch.arange(4.0))
    assert [each["worker"] for each in found["gathered"]] == [0, 1]
    assert [each["tensor"].item() for each in found["gathered"]] == [0, 1]
    assert (found["shared"], found["handed"]) == ("of worker 0", "for 0")
    assert found["joined"], "torch.distributed is there for the user's own calls"
    assert found["directory"] == os.getcwd()
    assert found["nice"] == [os.nice(0)] * 2, "whatever else the machine does, they have their share of it"
    assert len({*found["processes"], os.getpid()}) == 3
    assert set(found["listening"]) <= LOOPBACK, "nothing of the cluster listens to a network"
    for k, (worker, *drawn) in enumerate(found["all"]):
        torch.manual_seed(k)
        assert worker == k
        assert drawn[0] == torch.rand(()).item(), "generators are seeded by the worker's number"


def test_a_cluster_of_our_own_is_private(there: Any) -> None:
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert stat.S_IMODE(there.scratch.stat().st_mode) == 0o700
    assert len(token.read_text()) == 64
    assert set(ray_cases.listening(str(token))) <= LOOPBACK
    # somebody else on this machine, with the address and without the token
    address = ray.get_runtime_context().gcs_address
    other = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    other |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    script = f"from ray._raylet import GcsClient; GcsClient(address={address!r}).internal_kv_keys(b'', None)"
    right = subprocess.run([sys.executable, "-c", script], env=os.environ.copy(), capture_output=True, timeout=60)
    wrong = subprocess.run([sys.executable, "-c", script], env=other, capture_output=True, timeout=60)
    assert right.returncode == 0, right.stderr.decode()
    assert b"InvalidAuthToken" in wrong.stderr or b"Unauthenticated" in wrong.stderr, wrong.stderr.decode()


def test_workers_that_meet_at_a_center_use_every_row_once(there: Any) -> None:
    model = ray_cases.Visits(37)
    strategy = Asynchronous(every="1 step", staleness=100, down_weight=False)
    found, trained = job(ray_cases.count_and_train, model, strategy)
    assert torch.equal(model.seen, torch.full((37,), 3.0)), "every row once an epoch"
    assert (trained["samples"], trained["count"]) == (111, 2)
    assert torch.equal(found["seen"], torch.ones(ray_cases.END))
    assert (found["samples"], found["epochs"]) == (ray_cases.END, ray_cases.END // ray_cases.ROWS)
    assert sum(mine for mine, _, _ in found["every"]) == ray_cases.END
    assert all(mine >= ray_cases.LEASE for mine, _, _ in found["every"]), "both had rows before anybody brought any"
    assert found["status"]["applied"] == found["status"]["version"]
    assert len({process for _, _, process in found["every"]}) == 2


def test_a_training_at_a_center_goes_on_with_another_number_of_workers(there: Any, tmp_path: Path) -> None:
    def strategy() -> Asynchronous:
        return Asynchronous(every="1 step", staleness=100, down_weight=False)

    run, rows = str(tmp_path / "run"), 37
    for workers, epochs in ((2, 2), (3, 4), (1, 5)):
        model = ray_cases.Visits(rows)
        found = job(ray_cases.visit, model, strategy(), epochs, run, workers=workers)
        assert torch.equal(model.seen, torch.full((rows,), float(epochs))), "every row once an epoch"
        assert found["samples"] == epochs * rows
        assert found["epoch"] <= epochs, "none counts twice, though one may pass of which worker 0 has no rows"


def test_one_worker_goes_on_alone_though_another_had_rows_that_it_never_trained_with(
    there: Any, tmp_path: Path
) -> None:
    def strategy() -> Asynchronous:
        return Asynchronous(every="1 step", staleness=100, down_weight=False, lease=16)

    run, model = str(tmp_path / "run"), ray_cases.Visits(64)
    with pytest.raises(WorkerError, match="worker 1 of 2 was lost"):
        job(ray_cases.stay_behind, model, strategy(), run, str(tmp_path))
    model = ray_cases.Visits(64)
    found = job(ray_cases.visit, model, strategy(), 1, run, workers=1, timeout_s=30.0)
    assert torch.equal(model.seen, torch.ones(64)), "every row once"
    assert found["samples"] == 64


# --- what cannot work -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers= is a whole number, 1 or more"),
        ({"workers": -2}, "workers= is a whole number, 1 or more"),
        ({"interface": "eth0"}, "interface= is not for engine='ray'"),
        ({"workers": 3, "devices": [0, 1]}, "needs a device of its own"),
        ({"workers": 4, "nodes": 2}, "nodes=2 need a Ray cluster that is there"),
        ({"address": "127.0.0.1:1"}, "no Ray cluster at '127.0.0.1:1'"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(options: dict[str, Any], message: str, monkeypatch: Any) -> None:
    if ray.is_initialized():
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
    if "address" in options:
        monkeypatch.setattr(ray, "init", _refuse)
    with pytest.raises(ConfigError, match=message):
        launch(print, engine="ray", **{"workers": 2, **options})


def _refuse(**_: Any) -> None:
    raise ConnectionError("Could not find any running Ray instance.\nand much more")


def test_without_ray_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.train.torch", None)
    with pytest.raises(ConfigError, match=r'pip install "headrace\[ray\]"') as refused:
        cluster.load("ray.train.torch")
    assert "\n" not in str(refused.value)


def test_a_ray_with_known_holes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "__version__", "2.53.0")
    with pytest.raises(ConfigError, match=r"Ray 2\.53\.0 has known holes: 2\.54 is needed"):
        cluster.load()


def test_what_cannot_be_sent_to_a_worker_is_named(there: Any) -> None:
    with pytest.raises(ConfigError, match=r"have to be sent to the workers, and cannot be: TypeError: .*lock"):
        job(print, threading.Lock())
