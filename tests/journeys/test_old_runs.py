"""What version 0.1.0 wrote is read, verified, reported and gone on with."""

import pickle
from pathlib import Path

import pytest
import torch
from kit import old_runs
from kit.cli_parts import headrace

import headrace as hr


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the version wrote, for tests that change nothing."""
    at = tmp_path_factory.mktemp("written")
    old_runs.unpacked(at)
    return at


@pytest.fixture
def ends(tmp_path: Path) -> dict[str, list[float]]:
    """As `written`, in the test's directory; what each has to come to."""
    return old_runs.unpacked(tmp_path)


@pytest.mark.takes_turns
@pytest.mark.parametrize("name", old_runs.KINDS)
@pytest.mark.filterwarnings("ignore:the model has BatchNorm1d:UserWarning")
@pytest.mark.filterwarnings("ignore:the run was saved with torch:UserWarning")  # another build of it
def test_a_run_goes_on_to_the_end_that_it_had(name: str, tmp_path: Path, ends: dict[str, list[float]]) -> None:
    before = (tmp_path / name / "metrics.jsonl").read_text()
    model = old_runs.KINDS[name](tmp_path / name, old_runs.END)
    torch.testing.assert_close(old_runs.weights(model), ends[name], rtol=1e-9, atol=1e-12)
    assert (tmp_path / name / "metrics.jsonl").read_text().startswith(before)


@pytest.mark.parametrize("name", old_runs.KINDS)
def test_a_run_is_verified_and_reported(name: str, written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert headrace("checkpoint", "verify", written / name) == 0
    assert headrace("report", written / name) == 0


def test_the_best_weights_are_loaded(written: Path) -> None:
    model = old_runs.network()
    fresh = old_runs.weights(model)
    hr.load_weights(model, written / "plain", which="best")
    assert old_runs.weights(model) != fresh


def test_a_pickled_estimator_predicts(tmp_path: Path, ends: dict[str, list[float]]) -> None:
    held = pickle.loads((tmp_path / "estimator.pickle").read_bytes())
    found = held.predict_proba(old_runs.rows()[0].numpy()).reshape(-1).tolist()
    torch.testing.assert_close(found, ends["estimator"], rtol=1e-9, atol=1e-12)


def test_a_prior_of_a_pickled_estimator_is_found_where_it_was() -> None:
    pytest.importorskip("headrace.sklearn")
    now = pickle.dumps(hr.L2Prior(0.5), protocol=2)
    before = now.replace(b"headrace.loss.elements\nL2Prior", b"headrace.loss.prior\nL2Prior")
    assert before != now
    assert pickle.loads(before).coefficient == 0.5


@pytest.mark.usefixtures("ends")
def test_a_cache_of_a_text_file_is_used(tmp_path: Path) -> None:
    """Its name has the place of the text file in it, which is another one here."""
    (made,) = (tmp_path / "cache").iterdir()
    content, made = made.name.split(".")[4], made.rename(tmp_path / "made")
    file = old_runs.text_file(tmp_path)
    hr.open_ctf(file, old_runs.STREAMS, cache=tmp_path / "cache")
    (now,) = (tmp_path / "cache").iterdir()
    assert now.name.split(".")[4] == content
    fresh = now.read_bytes()
    held = made.rename(now).stat().st_ino
    assert len(hr.open_ctf(file, old_runs.STREAMS, cache=tmp_path / "cache")) == 6
    assert now.stat().st_ino == held
    assert now.read_bytes() == fresh
