"""PuzzleLib's handlers over modules of torch: `Trainer`, `Validator`, `Calculator`, with its costs and optimizers.

`from headrace.compat.puzzlelib import Trainer, CrossEntropy, NesterovSGD`. A module is any `nn.Module`, called with the
data as they were given: one tensor, or a list of them. Data are NumPy arrays or tensors, or nested lists of those.
Natively, all of this is `hr.Trainer` with `fit`, `validate` and `predict`.
"""

from typing import Any

from .costs import BCE, MSE, SVM, Abs, Cost, CrossEntropy, Multi, SmoothL1
from .handlers import Calculator, Handler, Trainer, Validator
from .optimizers import SGD, AdaDelta, AdaGrad, Adam, MomentumSGD, NesterovSGD, Optimizer, RMSProp, WeightDecay

_OTHERS = {
    "Hinge": "a cost of your own, which derives from Cost and gives errors()",
    "KLDivergence": "a cost of your own, which derives from Cost and gives errors()",
    "L1Hinge": "a cost of your own, which derives from Cost and gives errors()",
    "RMSPropGraves": "torch.optim.RMSprop(centered=True, momentum=...) in an hr.Trainer",
    "SMORMS3": "an optimizer of torch in an hr.Trainer",
}
__all__ = ["Abs", "AdaDelta", "AdaGrad", "Adam", "BCE", "Calculator", "Cost", "CrossEntropy", "Handler", "MSE"]
__all__ += ["MomentumSGD", "Multi", "NesterovSGD", "Optimizer", "RMSProp", "SGD", "SVM", "SmoothL1", "Trainer"]
__all__ += ["Validator", "WeightDecay"]


def __getattr__(name: str) -> Any:
    if name in _OTHERS:
        raise AttributeError(f"PuzzleLib's {name} is not offered here. Write {_OTHERS[name]}.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
