"""Programs for the five systems run with no line changed, once their dialect is installed."""

import subprocess
import sys
import textwrap

import pytest

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


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_as_it_is(name: str) -> None:
    program = textwrap.dedent(PROGRAMS[name])
    assert run(f"from headrace.compat import install\ninstall({name!r})\n{program}").stdout.split()[-1] == "2"


def test_what_is_imported_already_stays_and_is_told() -> None:
    found = run(
        "import sys, types\nsys.modules['cntk'] = types.ModuleType('cntk')\nfrom headrace.compat import install\n"
        "try:\n    install('cntk')\nexcept ValueError as error:\n    print(error)\n"
        "try:\n    install('cntc')\nexcept ValueError as error:\n    print(error)\n"
    ).stdout
    assert "cntk is imported already" in found
    assert "before the first import of cntk" in found
    assert "cntc" in found


def run(program: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-W", "ignore", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
