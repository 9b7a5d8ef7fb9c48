"""Programs for the five systems run with no line changed; dialects stand on public names and on `store`."""

import ast
import importlib
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.forked import start

import headrace as hr
import headrace.compat

PROGRAMS = {
    "cntk": """
        import numpy as np
        import cntk as C
        import cntk.io
        from cntk.io import UserMinibatchSource, StreamInformation, MinibatchData
        from cntk.train.training_session import training_session
        from cntk.layers import Dense, Sequential
        x, y = C.input_variable(2), C.input_variable(2)
        z = Sequential([Dense(4, activation=C.relu), Dense(2)])(x)
        trainer = C.Trainer(z, (C.cross_entropy_with_softmax(z, y), None), [C.sgd(z.parameters, 0.1)])
        trainer.train_minibatch({x: np.eye(2, dtype=np.float32), y: np.eye(2, dtype=np.float32)})
        print(trainer.total_number_of_samples_seen)
    """,
    "PuzzleLib": """
        import numpy as np
        from torch import nn
        from PuzzleLib.Cost import CrossEntropy
        from PuzzleLib.Handlers import Trainer
        from PuzzleLib.Optimizers import SGD
        net = nn.Linear(3, 2)
        optimizer = SGD(learnRate=0.1)
        optimizer.setupOn(net)
        trainer = Trainer(net, CrossEntropy(), optimizer, batchsize=2)
        trainer.trainFromHost(np.random.randn(2, 3).astype(np.float32), np.array([0, 1], np.int32))
        print(2)
    """,
    "halcon": """
        import halcon as ha
        handle = ha.create_dl_model("classification", 2, image_width=8, image_height=8, image_num_channels=1)
        print(len(ha.get_dl_model_param(handle, "class_ids")))
    """,
    "dislib": """
        from dislib.eddl import EncapsulatedFunctionsDistributedEddl
        import dislib
        print(2 if dislib.EncapsulatedFunctionsDistributedEddl is EncapsulatedFunctionsDistributedEddl else 0)
    """,
    "faknow": """
        from faknow.train.trainer import BaseTrainer
        from faknow.evaluate.evaluator import Evaluator
        import faknow.train
        print(2 if issubclass(BaseTrainer, object) and Evaluator else 0)
    """,
}


ROOT = Path(hr.__file__).parent
INSIDE = {"updates", "signals", "use", "last_training"}
"""Attributes of a trainer that are no part of what it promises."""


def names_from_below(code: str, package: str) -> Iterator[str]:
    """The names that a module of a package of `headrace.compat` imports from the rest of headrace."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            origin = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            if origin.startswith("headrace") and not origin.startswith("headrace.compat"):
                yield from (f"{origin}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("headrace"))


def is_public(path: str) -> bool:
    """Whether a name is one of headrace, of `vision`, `testing` or the room `store`, or of what all rooms stand on."""
    module, _, name = path.rpartition(".")
    room = path.split(".")[1]
    known = {"headrace", "headrace.vision", "headrace.testing"}
    found = getattr(importlib.import_module(module), name)
    return room in ("store", "errors", "length") or module in known or getattr(hr, name, None) is found


def reaches_inside(code: str) -> list[str]:
    """The attributes that a module takes of a trainer, and which are not public."""
    return [node.attr for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Attribute) and node.attr in INSIDE]


def test_dialects_use_public_names_and_the_room_store_alone() -> None:
    found, inside = set(), []
    for path in Path(headrace.compat.__path__[0]).rglob("*.py"):
        package, code = ".".join(["headrace", *path.relative_to(ROOT).parent.parts]), path.read_text()
        found |= {name for name in names_from_below(code, package) if not is_public(name)}
        inside += reaches_inside(code)
    assert (found, inside) == (set(), [])


def test_a_dialect_that_uses_a_private_name_is_seen() -> None:
    code = "from ...data.wrapped import Reader, SourceWrapper\nfrom ...store import disk\nfrom ..hints import cache"
    names = list(names_from_below(code, "headrace.compat.dislib"))
    assert [name for name in names if not is_public(name)] == ["headrace.data.wrapped.SourceWrapper"]
    assert reaches_inside("self._native.updates.touched()") == ["updates"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_as_it_is(name: str, tmp_path: Path) -> None:
    assert run(f"install({name!r})\n{textwrap.dedent(PROGRAMS[name])}", tmp_path).split()[-1] == "2"


def test_the_program_of_cntks_manual_runs_as_it_is_with_one_worker_and_with_several(tmp_path: Path) -> None:
    """Cells of the manual "How to create user minibatch sources" (Microsoft, MIT license)."""
    manual = Path(__file__).parent / "cntk" / "manual.txt"
    program = f"""
        import headrace as hr
        install("cntk")
        def train():
            names = {{}}
            exec(compile(open({str(manual)!r}).read(), "manual", "exec"), names)
            return names["trainer"].total_number_of_samples_seen
        print(train())
        print(hr.launch(train, workers=2))
    """
    lines = run(textwrap.dedent(program), tmp_path).splitlines()
    finished = [line.partition(":")[0] for line in lines if line.startswith("Finished")]
    assert finished == [f"Finished Epoch[{k} of 10]" for k in range(1, 5)] * 2
    assert [line for line in lines if line.isdecimal()] == ["80", "80"]
    assert "It does not return to worker 1 of 2" in "".join(lines)


def test_what_is_imported_already_stays_and_is_told(tmp_path: Path) -> None:
    program = """
        import sys, types
        sys.modules["cntk"] = types.ModuleType("cntk")
        for name in ("cntk", "cntc"):
            try:
                install(name)
            except ValueError as error:
                print(error)
    """
    found = run(textwrap.dedent(program), tmp_path)
    assert "cntk is imported already" in found
    assert "before the first import of cntk" in found
    assert "cntc" in found


def run(program: str, at: Path) -> str:
    """What a program prints in a process of its own, which imports the dialects anew."""
    with start(_run, at, f"from headrace.compat import install\n{program}") as child:
        assert child.ending() == 0, child.output
        return str(child.output)


def _run(program: str) -> None:
    exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})
