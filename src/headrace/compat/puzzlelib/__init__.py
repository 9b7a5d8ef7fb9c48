"""PuzzleLib's handlers over modules of torch: `Trainer`, `Validator`, `Calculator`, with its costs and optimizers.

`from headrace.compat.puzzlelib import Trainer, CrossEntropy, NesterovSGD`. A module is any `nn.Module`, called with the
data as they were given: one tensor, or a list of them. Data are NumPy arrays or tensors, or nested lists of those.
Natively, all of this is `hr.Trainer` with `fit`, `validate` and `predict`.
"""

from .costs import BCE, MSE, SVM, Abs, Cost, CrossEntropy, Hinge, KLDivergence, L1Hinge, Multi, SmoothL1
from .handlers import Calculator, Handler, Trainer, Validator
from .optimizers import (
    SGD,
    SMORMS3,
    AdaDelta,
    AdaGrad,
    Adam,
    MomentumSGD,
    NesterovSGD,
    Optimizer,
    RMSProp,
    RMSPropGraves,
    WeightDecay,
)

__all__ = [
    "BCE",
    "MSE",
    "SGD",
    "SMORMS3",
    "SVM",
    "Abs",
    "AdaDelta",
    "AdaGrad",
    "Adam",
    "Calculator",
    "Cost",
    "CrossEntropy",
    "Handler",
    "Hinge",
    "KLDivergence",
    "L1Hinge",
    "MomentumSGD",
    "Multi",
    "NesterovSGD",
    "Optimizer",
    "RMSProp",
    "RMSPropGraves",
    "SmoothL1",
    "Trainer",
    "Validator",
    "WeightDecay",
]
