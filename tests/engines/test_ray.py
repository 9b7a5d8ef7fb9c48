"""Workers on Ray: actors that are what processes of torchrun are, on any cluster, and scripts in Ray Train."""

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import merges, ray_cases
from kit.forked import start_script
from kit.sampled import nightly
from kit.torch_workers import wait_until_gone
from kit.worker_trainings import differing, train_in_parts

import headrace as hr

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'headrace[ray]'"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
LIMIT_S = 200.0  # of a job on a busy machine


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster with room for three workers, which jobs join."""
    with ray_cases.cluster() as ray:
        yield ray


def job(main: Any, *arguments: Any, **options: Any) -> Any:
    return hr.launch(main, *arguments, engine="ray", **{"workers": 2, "timeout_s": LIMIT_S, **options})


def test_a_lost_worker_ends_all_who_begin_again_from_the_last_checkpoint_and_train_to_the_bits_of_one(
    cluster: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    (tmp_path / "center").mkdir()
    model, lose = ray_cases.Visits(), str(tmp_path / "lost")
    found, bits = job(ray_cases.visit_and_train, model, str(tmp_path), 2, lose, restarts=1)
    assert torch.equal(model.seen.detach(), torch.full((ray_cases.ROWS,), 2.0)), "every row once an epoch"
    assert (found["count"], found["samples"]) == (2, 2 * ray_cases.ROWS)
    assert found["variables"] == [{"RANK": str(k), "WORLD_SIZE": "2", "LOCAL_RANK": str(k)} for k in range(2)]
    assert found["directory"] == os.getcwd()
    wait_until_gone(found["processes"])
    assert Path(lose).exists()
    said = capfd.readouterr().err
    assert "headrace: worker 1 was lost at step" in said
    assert "all workers start again (1 of 1)" in said
    assert differing(train_in_parts(ray_cases.PARTS, {}), bits) == [], "the bits of one"
    merges.check_by_hand(tmp_path / "center", 2, False, ray_cases.CENTER["alpha"])


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("exit", hr.WorkerError, "worker 1 failed at step 0: SystemExit: 3"),
        *nightly(("refused", hr.ConfigError, "a setting of mine")),
    ],
)
def test_the_first_error_is_the_cause_and_names_its_worker(cluster: Any, how: str, kind: Any, said: str) -> None:
    with pytest.raises(kind, match=said):
        job(ray_cases.fail, how)


def test_what_cannot_be_sent_to_a_worker_is_named(cluster: Any) -> None:
    with pytest.raises(hr.ConfigError, match=r"are sent to the workers, and cannot be: TypeError: .*lock"):
        job(print, threading.Lock())


def test_what_the_cluster_does_not_have_is_refused(cluster: Any) -> None:
    with pytest.raises(hr.ConfigError, match="nodes=2 were asked for, and the Ray cluster has 1"):
        job(print, nodes=2)


QUICK = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2", "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}
"""Ray Train sees sooner that workers have ended, and starts no process that waits for machines to be taken away."""
ON_RAY_TRAIN = """
import json, sys
from pathlib import Path
import ray, torch
import headrace as hr
from kit import ray_loss
from torch import nn

at, loses = sys.argv[1:]
hook = {"worker_process_setup_hook": ray_loss.lose_once, "env_vars": {ray_loss.LOSE: at}}
ray.init(runtime_env=hook if loses == "True" else {})
"""


@pytest.mark.skipif(" " in sys.executable, reason="Ray gives bash the place of Python without quotes")
@pytest.mark.parametrize("loses", [False, *nightly(True)])
def test_the_program_of_the_page_runs_in_ray_train_and_goes_on(loses: bool, cluster: Any, tmp_path: Path) -> None:
    """From where one process has left it; nightly, after Ray has lost a worker and has started all again."""
    page = (Path(__file__).parents[2] / "docs" / "workers.md").read_text()
    (shown,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "FailureConfig" in block]
    if not loses:
        names: dict[str, Any] = {"torch": torch, "nn": torch.nn, "hr": hr}
        exec(shown.replace("epochs=3", "epochs=1"), names)
        names["in_each_worker"]({"run": str(tmp_path / "shown")})
    (tmp_path / "program.py").write_text(f"{ON_RAY_TRAIN}\n{shown}\non_ray(at + '/shown')\nray.shutdown()\n")
    environment = os.environ | QUICK | {"RAY_ADDRESS": cluster.get_runtime_context().gcs_address}
    with start_script(tmp_path / "program.py", str(tmp_path), str(loses), environment=environment) as child:
        assert child.ending() == 0, child.output[-5000:]
    for actor in cluster.util.list_named_actors(all_namespaces=True):  # Ray's own, which stay in the cluster
        cluster.kill(cluster.get_actor(actor["name"], namespace=actor["namespace"]))
    assert (tmp_path / "lost-2").exists() == loses, "one of two workers was lost"
    rows = [json.loads(line) for line in (tmp_path / "shown" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["samples"] == 3 * 300, "every row once an epoch"
    assert "going on from step" in (tmp_path / "shown" / "log.txt").read_text()


# --- what cannot work -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"address": "127.0.0.1:1"}, "no Ray cluster at '127.0.0.1:1'"),
        ({}, r"no Ray cluster at 'auto' .*: Could not find any running Ray instance\. Start one \(ray start --head\)"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(options: dict[str, Any], message: str, monkeypatch: Any) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", _refuse)
    with pytest.raises(hr.ConfigError, match=message):
        hr.launch(print, engine="ray", **{"workers": 2, **options})


def _refuse(**_: Any) -> None:
    raise ConnectionError("Could not find any running Ray instance.\nand much more")


def test_a_ray_with_known_holes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "__version__", "2.53.0")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(hr.ConfigError, match=r"Ray 2\.53\.0 has known holes: 2\.54 is needed"):
        job(print)
