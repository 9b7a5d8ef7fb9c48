"""Runs that somebody else has made: no code of theirs is executed without trust, and nothing in them hangs a reader."""

import contextlib
import importlib.util
import json
import os
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.cli_parts import RECIPE, environment, headrace, process
from kit.fault_harness import recommit
from kit.forked import start, tell
from kit.sampled import each, sampled

import headrace as hr

LIMIT_S = 200.0
EVIL = """
import pathlib
pathlib.Path({marker!r}).write_text("executed")
import headrace as hr
class Evil:
    def __init__(self, *a, **k): pathlib.Path({marker!r}).write_text("executed")
def small(**k) -> hr.Recipe: ...
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the recipe sines.py, data, and a sound run."""
    place, before = tmp_path_factory.mktemp("sound"), Path.cwd()
    os.chdir(place)
    try:
        (place / "sines.py").write_text(RECIPE)
        assert headrace("fit", "sines.py:small", "--run", "run", "--epochs", "1", "--progress", "off") == 0
    finally:
        os.chdir(before)
    np.save(place / "rows.npy", np.zeros((3, 5), dtype=np.float32))
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it, where the test runs; neither sys.path nor the modules are other ones afterwards."""
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    path, modules = [*sys.path], {*sys.modules}
    yield tmp_path / "here"
    sys.path[:] = path
    for name in {*sys.modules} - modules:
        del sys.modules[name]


# --- the ways of a hostile run ------------------------------------------------------------------------------


def evil(file: Path) -> Path:
    """Writes a program that leaves a mark as soon as it is executed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(EVIL.format(marker=str(Path("executed").absolute())))
    return file


def names(run: Path, recipe: Any, **more: Any) -> None:
    """The run names another recipe."""
    document = {"recipe": recipe, "arguments": {"lr": 0.1}, "fit": {"epochs": 1}} | more
    for file in ("recipe.json", "recipe.yaml"):  # JSON is YAML as well
        (run / file).write_text(json.dumps(document))


def linked(file: Path) -> Path:
    """A link to such a program, which is outside of the run."""
    file.unlink(missing_ok=True)
    file.symlink_to(evil(Path("evil.py").absolute()))
    return file


def executed() -> str:
    """A command for a shell that leaves the mark."""
    return f"touch {Path('executed').absolute()}"


def a_module_on_the_path(run: Path) -> None:
    evil(run / "evil_module.py")
    sys.path.append(str(run))
    names(run, "evil_module:small")


def a_package(run: Path) -> None:
    evil(run / "evil_package" / "__init__.py")
    evil(run / "evil_package" / "__main__.py")
    names(run, str(run / "evil_package"))


def a_compiled_file(run: Path) -> None:
    py_compile.compile(str(evil(run / "evil.py")), cfile=str(run / "recipe.pyc"))
    names(run, str(run / "recipe.pyc") + ":small")


def modules_that_python_imports(run: Path) -> None:
    for name in ("sitecustomize", "usercustomize", "torch", "yaml", "json", "headrace", "sines", "multiprocessing"):
        evil(run / f"{name}.py")
    (run / "evil.pth").write_text("import sitecustomize\n")


def tags_of_yaml(run: Path) -> None:
    text = f"recipe: !!python/object/apply:os.system ['{executed()}']\narguments: {{}}\nfit: {{}}\n"
    for name in ("recipe.json", "recipe.yaml", "config.json", "config.yaml"):
        (run / name).write_text(text)


def classes_in_the_settings(run: Path) -> None:
    evil(run / "evil.py")
    what = {"$class": "evil.Evil", "__class__": "evil.Evil", "_target_": "evil.Evil", "py/object": "evil.Evil"}
    names(run, what, arguments={"lr": what, "kind": what}, fit={"strategy": what, "trust": True, "callbacks": [what]})
    (run / "config.json").write_text(json.dumps({"optimizer": what, "loss": what, "callbacks": [what]}))


def trust_in_the_settings(run: Path) -> None:
    evil(run / "recipe.py")
    names(run, "sines.py:small", trust=True, fit={"trust": True}, arguments={"trust": True})


def a_pickle_in_place_of_weights(run: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.system, (executed(),)

    for file in [*run.rglob("*.safetensors"), *run.rglob("trainer.json")]:
        torch.save(Bomb(), file)


WAYS: dict[str, Callable[[Path], Any]] = {
    "a path": lambda run: names(run, f"{evil(run.parent / 'elsewhere' / 'evil.py')}:small"),
    "a relative path": lambda run: names(run, f"{evil(run / 'evil.py').relative_to(Path.cwd())}:small"),
    "a path through proc": lambda run: names(
        run, f"/proc/self/cwd/{evil(run / 'evil.py').relative_to(Path.cwd())}:small"
    ),
    "a link to a program": lambda run: names(run, f"{linked(run / 'linked.py')}:small"),
    "the copy in the run": lambda run: evil(run / "recipe.py"),
    "a link in place of the copy": lambda run: linked(run / "recipe.py"),
    "the original file replaced": lambda run: names(run, str(evil(run.parent / "clouds.py"))),
    "a module and a function": lambda run: names(run, "os:system", arguments={"command": executed()}),
    "a module on the path": a_module_on_the_path,
    "a package": a_package,
    "a compiled file": a_compiled_file,
    "modules that Python imports": modules_that_python_imports,
    "tags of YAML": tags_of_yaml,
    "classes in the settings": classes_in_the_settings,
    "trust in the settings": trust_in_the_settings,
    "a pickle in place of weights": a_pickle_in_place_of_weights,
}

USES: dict[str, list[str]] = {
    "load": [],
    "validate": ["validate", "run"],
    "predict": ["predict", "run", "rows.npy", "--out", "out.csv"],
    "resume": ["resume", "run", "--epochs", "3", "--progress", "off"],
    "resume in processes": ["resume", "run", "--workers", "2", "--engine", "processes"],
    "fit again": ["fit", "--config", "run/recipe.json", "--run", "again", "--progress", "off"],
    "export the weights": ["checkpoint", "export", "run", "--out", "out.safetensors"],
    "list": ["checkpoint", "list", "run"],
    "verify": ["verify", "run"],
    "report": ["report", "run"],
    "runs": ["runs", "."],
}
NEED_CODE = ("load", "validate", "predict", "resume", "resume in processes", "fit again")
FEW = ("a path", "the copy in the run", "tags of YAML", "a pickle in place of weights")


def use(name: str) -> str:
    """What a use of the run in ./run comes to: "" or its error, which is one of ours."""
    if name != "load":
        status = headrace(*USES[name])
        return "" if status == 0 else f"status {status}"
    try:
        hr.load("run")
    except hr.HeadraceError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("name", "way"), sampled(product(USES, WAYS), keep={*product(("load", "resume"), WAYS), *product(USES, FEW)}, of=4)
)
def test_no_code_of_a_run_is_executed_without_trust(
    name: str, way: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    WAYS[way](place / "run")
    said = use(name) + capsys.readouterr().err
    assert not (place / "executed").exists()
    assert "Traceback" not in said
    if name in NEED_CODE:
        assert said != ""


@pytest.mark.parametrize("name", NEED_CODE)
def test_the_error_says_how_to_trust_a_run_and_what_to_do_instead(
    name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = use(name) + capsys.readouterr().err
    if name == "fit again":
        assert "headrace fit RECIPE --config run/recipe.json: a file gives values and names no code" in said
    else:
        assert "That is code, and a run may come from anybody" in said
        assert "recipe='file.py' (--recipe file.py)" in said
        assert "read run/recipe.py, and allow that it is executed: trust=True (--trust)" in said


def test_no_variable_of_the_environment_is_trust(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evil(place / "run" / "recipe.py")
    for name in ("HEADRACE_TRUST", "HEADRACE_RECIPE"):
        monkeypatch.setenv(name, "true")
    assert all(use(name) != "" for name in NEED_CODE)
    assert not (place / "executed").exists()


@pytest.mark.parametrize("link", ["run/x.yaml", "x.yaml", "run/checkpoints/x.json"])
def test_a_file_of_options_that_is_a_link_into_or_in_a_run_names_no_recipe(
    link: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names(place / "run", str(evil(place / "evil.py")) + ":small")
    outside = shutil.copy(place / "run" / "recipe.json", place / "outside.json")
    (place / link).symlink_to(outside if "run" in link else place / "run" / "recipe.json")
    assert headrace("fit", "--config", link, "--print_config") == 2
    assert "a file gives values and names no code, since it may come from anybody" in capsys.readouterr().err
    assert not (place / "executed").exists()


@pytest.mark.parametrize("name", [name for name in NEED_CODE if name not in ("load", "fit again")])
def test_with_trust_the_copy_in_the_run_is_executed_and_no_path_that_it_names(name: str, place: Path) -> None:
    names(place / "run", str(evil(place / "evil.py")) + ":small")
    (place / "sines.py").unlink()
    with process(place, *USES[name], "--trust") as child:
        assert child.ending() == 0, child.output
    assert not (place / "executed").exists()
    (place / "run" / "recipe.py").write_text((place / "evil.py").read_text())
    with process(place, *USES[name], "--trust", *AGAIN.get(name, [])) as child:
        child.ending()
    assert (place / "executed").exists(), "the mark can be left"


def test_with_trust_nothing_but_the_copy_is_executed(place: Path) -> None:
    """What was compiled of another source, and modules beside the copy, are not what a person has read."""
    run = place / "run"
    compiled = importlib.util.cache_from_source(str(run / "recipe.py"))
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(evil(place / "evil.py")), cfile=compiled, invalidation_mode=unchecked)
    assert hr.load("run", trust=True).step == 5
    evil(run / "beside.py")
    (run / "recipe.py").write_text("import beside\n" + (run / "recipe.py").read_text())
    with pytest.raises(ModuleNotFoundError, match=r"name it where its modules are, --recipe file\.py"):
        hr.load("run", trust=True)
    assert not (place / "executed").exists()


AGAIN = {"predict": ["--out", "again.csv"]}


@pytest.mark.parametrize("name", ["validate", "predict", "resume"])
def test_a_recipe_that_the_user_names_is_executed_and_none_of_the_run(name: str, place: Path) -> None:
    names(place / "run", str(evil(place / "run" / "recipe.py")) + ":small")
    assert headrace(*USES[name], "--recipe", "sines.py:small") == 0
    assert not (place / "executed").exists()
    model = hr.load("run", recipe="sines.py:small").trainer.model
    assert hr.load("run", model).step == 5 * (3 if name == "resume" else 1)
    assert not (place / "executed").exists()


def test_workers_import_nothing_from_a_run_that_is_the_working_directory(place: Path) -> None:
    modules_that_python_imports(place / "run")
    program = place / "bin" / "command.py"  # as the script that pip installs, which is not in the working directory
    program.parent.mkdir()
    program.write_text("import sys\nfrom headrace.app.cli import main\nif __name__ == '__main__': sys.exit(main())\n")
    words = ["resume", ".", "--recipe", "../sines.py:small", "--workers", "2", "--engine", "processes", "--epochs", "2"]
    command = [sys.executable, str(program), *words, "--progress", "off"]
    own = environment() | {"PYTHONPATH": str(Path(hr.__file__).parents[1])}
    done = subprocess.run(command, cwd=place / "run", capture_output=True, text=True, timeout=LIMIT_S, env=own)
    assert not (place / "executed").exists()
    assert done.returncode == 0, done.stderr


# --- documents that are made to hang or to break a reader -----------------------------------------------------

DEEP = b"[" * 100_000
BOMB = (
    b"a: &a ["
    + b"x," * 9
    + b"x]\n"
    + b"".join(b"%c: &%c [" % (k + 1, k + 1) + b",".join([b"*%c" % k] * 10) + b"]\n" for k in range(ord("a"), ord("k")))
)
"""Ten aliases of ten aliases, and so on: 10 ** 11 values in a few lines."""
CONTENTS: dict[str, bytes | None] = {
    "deep lists": DEEP,
    "deep dicts": b'{"a":' * 100_000,
    "lists as deep as is parsed": b"[" * 500 + b"]" * 500,
    "aliases": BOMB + b"recipe: x\narguments: {k: *k}\nfit: {k: *k}\nid: x\n",
    "a long document": b'{"recipe": "x", "arguments": {}, "fit": {}, "padding": "' + b" " * (16 << 20) + b'"}',
    "a long number": b'{"id": "x", "recipe": "x", "arguments": {}, "fit": {}, "step": ' + b"9" * 5000 + b"}",
    "a pipe": None,
    "a device": None,
}
LONG = {"a long document": r"longer than 16\.8 MB"}
DOCUMENTS = ("run.json", "recipe.json", "config.json", "metrics.jsonl", "times.jsonl", "best/best.json")
IN_CHECKPOINT = ("trainer.json", "rank-00000.json", "manifest.json", "COMMIT")


def put(run: Path, name: str, content: str) -> None:
    """A document of a run gets other contents; of one in a checkpoint, the checksums fit."""
    at = next((run / "checkpoints").glob("step-*")) if name in IN_CHECKPOINT else run
    old = {"recipe.json": "recipe.yaml", "config.json": "config.yaml"}
    for file in [at / name, *([at / old[name]] if name in old else [])]:
        file.parent.mkdir(exist_ok=True)
        file.unlink(missing_ok=True)
        if content == "a pipe":
            os.mkfifo(file)
        elif content == "a device":
            file.symlink_to("/dev/zero")
        else:
            data = CONTENTS[content]
            assert data is not None
            file.write_bytes(data + b"\n")
    manifest = at / "manifest.json"
    if name != "COMMIT" and manifest.is_file() and not manifest.is_symlink():
        changed = name in IN_CHECKPOINT[:2] and (at / name).is_file() and not (at / name).is_symlink()
        recommit(at, manifest.read_bytes(), {name: (at / name).read_bytes()} if changed else None)


READS = ("validate", "predict", "resume", "export the weights", "list", "verify", "report", "runs")


def read_it(place: str) -> None:
    """Reads the run in every way; prints what each comes to."""
    os.chdir(place)
    for name in READS:
        tell(f"{name}: {headrace(*USES[name], *(['--recipe', 'sines.py:small'] if name in NEED_CODE else []))}")
    for name, call in {
        "load": hr.load,
        "load_weights": lambda run: hr.load_weights(torch.nn.Linear(1, 1), run),
    }.items():
        with contextlib.suppress(hr.HeadraceError):
            call("run")  # type: ignore[operator]
        tell(f"{name}: ended")


CASES = [*each([*DOCUMENTS, *IN_CHECKPOINT], CONTENTS), ("metrics.jsonl", "a device")]  # which is read line by line


@pytest.mark.parametrize(("name", "content"), CASES)
def test_a_document_of_any_size_depth_or_kind_is_used_or_refused_soon(name: str, content: str, place: Path) -> None:
    put(place / "run", name, content)
    with start(read_it, place, str(place)) as child:
        assert child.ending() == 0, child.output
    assert [line.partition(":")[0] for line in child.told] == [*READS, "load", "load_weights"]
    assert "Traceback" not in child.output


@pytest.mark.parametrize("content", CONTENTS)
def test_what_a_run_says_of_its_recipe_is_refused_where_it_cannot_be_read(content: str, place: Path) -> None:
    put(place / "run", "recipe.json", content)
    with pytest.raises(hr.RunError, match=f"what run says of its recipe cannot be read.*{LONG.get(content, '')}"):
        hr.load("run", recipe="sines.py:small" if content in LONG else None)


def test_an_option_that_a_run_has_as_text_is_read_with_the_same_limits(place: Path) -> None:
    (place / "listed.py").write_text(
        "import headrace as hr\nfrom sines import small\n"
        "def listed(layers: list[int] = [1]) -> hr.Recipe:\n    return small()\n"
    )
    for text in (DEEP.decode(), BOMB.decode(), "!!bool x", "2001-99-99"):
        names(place / "run", "listed.py", arguments={"layers": text})
        with pytest.raises(hr.ConfigError, match="layers"):
            hr.load("run", recipe="listed.py")


@pytest.mark.parametrize("text", [DEEP.decode(), BOMB.decode(), "a: &x 1\nb: *x\n", "lr: [1\n", "x" * 300_000])
def test_a_file_of_options_without_limits_is_refused(
    text: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "options.yaml").write_text(text)
    assert headrace("fit", "sines.py:small", "--config", "options.yaml") == 2
    assert "options.yaml is no YAML" in (said := capsys.readouterr().err)
    assert "Traceback" not in said


def test_state_that_could_not_be_read_again_is_not_saved(place: Path) -> None:
    deep: Any = 1
    for _ in range(95):
        deep = [deep]

    class Deep(hr.Callback):
        def state_dict(self) -> dict[str, Any]:
            return {"deep": deep}

    model = torch.nn.Linear(2, 2)
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=4)
    data = torch.zeros(8, 2), torch.zeros(8, dtype=torch.int64)
    with pytest.raises(hr.CheckpointError, match="nested too deeply to be saved"):
        trainer.fit(data, epochs=1, run="deep", callbacks=[Deep()], progress=False)
