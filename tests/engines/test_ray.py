"""Workers on Ray: in step by Ray Train, or at a center; a local cluster that nobody else can reach."""

import os
import stat
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import ray_cases, same_bits, worker_cases
from kit.sockets import LOOPBACK, listening

import headrace as hr
from headrace.engines.job import needs_center
from headrace.engines.ray import cluster

pytest_plugins = ["kit.ray_cluster"]
pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'headrace[ray]'"),
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

LIMIT_S = 200.0  # of a job on a busy machine
ROWS = 128


def job(main: Any, *arguments: Any, **options: Any) -> Any:
    return hr.launch(main, *arguments, engine="ray", **{"workers": 2, "timeout_s": LIMIT_S, **options})


# --- what works -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_step(ray_cluster: Any) -> tuple[ray_cases.Visits, dict[str, Any]]:
    """The caller's model, and what worker 0 of 2 says."""
    model = ray_cases.Visits(37)
    return model, job(ray_cases.talk_and_train, 10.0, model, hr.Synchronous())


@pytest.mark.timeout(400)  # the one job on Ray of the quick tier: its fixtures start the cluster and two workers
def test_workers_in_step_train_as_one_and_say_everything_to_each_other(in_step: Any) -> None:
    model, found = in_step
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
    assert found["listening"]
    assert set(found["listening"]) <= LOOPBACK, "nothing of the cluster listens to a network"
    for k, (worker, *drawn) in enumerate(found["all"]):
        torch.manual_seed(k)
        assert worker == k
        assert drawn[0] == torch.rand(()).item(), "generators are seeded by the worker's number"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_cluster_of_our_own_is_private(ray_cluster: cluster.Cluster) -> None:
    import ray

    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert stat.S_IMODE(ray_cluster.scratch.stat().st_mode) == 0o700
    assert len(token.read_text()) == 64
    found = set(listening([*ray_cases.processes(str(token)), os.getpid()]))
    assert found
    assert found <= LOOPBACK
    # somebody else on this machine, with the address and without the token
    address = ray.get_runtime_context().gcs_address
    other = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    other |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    script = f"from ray._raylet import GcsClient; GcsClient(address={address!r}).internal_kv_keys(b'', None)"
    right = subprocess.run([sys.executable, "-c", script], env=os.environ.copy(), capture_output=True, timeout=LIMIT_S)
    wrong = subprocess.run([sys.executable, "-c", script], env=other, capture_output=True, timeout=LIMIT_S)
    assert right.returncode == 0, right.stderr.decode()
    assert b"InvalidAuthToken" in wrong.stderr or b"Unauthenticated" in wrong.stderr, wrong.stderr.decode()


@pytest.fixture(scope="module")
def at_a_center(ray_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """The caller's model, what worker 0 of 2 says, and the run."""
    run = tmp_path_factory.mktemp("at_a_center") / "run"
    arguments = ray_cases.Visits(ROWS), ray_cases.Visits(37), str(run)
    assert not needs_center(ray_cases.meet, arguments)
    return arguments[0], job(ray_cases.meet, *arguments), run


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_workers_that_turn_out_to_need_a_center_get_one_and_use_every_row_once(at_a_center: Any) -> None:
    model, (found, trained, sprung), _ = at_a_center
    assert torch.equal(model.seen, torch.full((ROWS,), 3.0)), "every row once an epoch"
    assert (trained["samples"], trained["count"]) == (3 * ROWS, 2)
    assert torch.equal(found["seen"], torch.ones(ray_cases.END))
    assert (found["samples"], found["epochs"]) == (ray_cases.END, ray_cases.END // ray_cases.ROWS)
    assert sum(mine for mine, _, _ in found["every"]) == ray_cases.END
    assert all(mine >= ray_cases.LEASE for mine, _, _ in found["every"]), "both had rows before anybody brought any"
    assert found["status"]["applied"] == found["status"]["version"]
    assert len({process for _, _, process in found["every"]}) == 2
    assert sprung["samples"] == 2 * 37


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_goes_on_with_more_workers_and_once_one_is_lost_with_one_that_reads_the_rows_of_all(
    at_a_center: Any, tmp_path: Path
) -> None:
    *_, run = at_a_center  # three epochs by two workers
    going_on = ray_cases.asynchronous("1 step"), 4, str(run)
    with pytest.raises(hr.WorkerError, match=r"worker 1 of 3 was lost at step \d+ \(.+\): its process \d+ on .* has"):
        job(ray_cases.stay_behind, ray_cases.Visits(ROWS), *going_on, str(tmp_path), workers=3)
    at_work = Path("/proc") / (tmp_path / "in-2").read_text()
    assert ray_cases.wait_until(lambda: not at_work.exists()), "a loss ends the others, whatever they do"
    model = ray_cases.Visits(ROWS)
    found = job(ray_cases.visit, model, *going_on, workers=1)
    assert torch.equal(model.seen, torch.full((ROWS,), 4.0)), "every row once an epoch"
    assert found["samples"] == 4 * ROWS
    assert found["epoch"] <= 4, "none counts twice, though one may pass of which worker 0 has no rows"


# --- what cannot work -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers= is a whole number, 1 or more"),
        ({"workers": -2}, "workers= is a whole number, 1 or more"),
        ({"workers": 3, "devices": [0, 1]}, "needs a device of its own"),
        ({"workers": 4, "nodes": 2}, "nodes=2 need a Ray cluster that is there"),
        ({"address": "127.0.0.1:1"}, "no Ray cluster at '127.0.0.1:1'"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(options: dict[str, Any], message: str, monkeypatch: Any) -> None:
    import ray

    if ray.is_initialized():
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
    if "address" in options:
        monkeypatch.setattr(ray, "init", _refuse)
    with pytest.raises(hr.ConfigError, match=message):
        hr.launch(print, engine="ray", **{"workers": 2, **options})


def _refuse(**_: Any) -> None:
    raise ConnectionError("Could not find any running Ray instance.\nand much more")


def test_without_ray_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(hr.ConfigError, match=r'pip install "headrace\[ray\]"') as refused:
        cluster.load("ray")
    assert "\n" not in str(refused.value)


def test_a_ray_with_known_holes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "__version__", "2.53.0")
    with pytest.raises(hr.ConfigError, match=r"Ray 2\.53\.0 has known holes: 2\.54 is needed"):
        cluster.load()


def test_what_cannot_be_sent_to_a_worker_is_named(ray_cluster: Any) -> None:
    with pytest.raises(hr.ConfigError, match=r"have to be sent to the workers, and cannot be: TypeError: .*lock"):
        job(print, threading.Lock())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_workers_keep_the_promises_of_all_engines(ray_after_a_loss: Any, tmp_path: Path) -> None:
    _, found, _ = ray_after_a_loss
    worker_cases.check_subset(found["subset"], tmp_path, worker_cases.METRICS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the model has:UserWarning")
def test_batches_in_parts_give_the_bits_of_one_worker(ray_cluster: Any) -> None:
    torch.set_num_threads(1)
    name = "BatchNorm, dropout"
    assert same_bits.differing(same_bits.train(name, {}), job(same_bits.train, name, {}, workers=2)) == []
