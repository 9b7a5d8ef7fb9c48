"""PuzzleLib's handlers over modules of torch: `Trainer`, `Validator`, `Calculator`, with its costs and optimizers.

`from headrace.compat.puzzlelib import Trainer, CrossEntropy, NesterovSGD`. A module is any `nn.Module`, called with the
data as they were given: one tensor, or a list of them. Data are NumPy arrays or tensors, or nested lists of those.
Natively, all of this is `hr.Trainer` with `fit`, `validate` and `predict`.
"""

from .costs import BCE, MSE, SVM, Abs, Cost, CrossEntropy, Multi, SmoothL1
from .costs import __getattr__ as __getattr__
from .handlers import Calculator, Handler, Trainer, Validator
from .optimizers import SGD, AdaDelta, AdaGrad, Adam, MomentumSGD, NesterovSGD, Optimizer, RMSProp, WeightDecay

__all__ = ["Abs", "AdaDelta", "AdaGrad", "Adam", "BCE", "Calculator", "Cost", "CrossEntropy", "Handler", "MSE"]
__all__ += ["MomentumSGD", "Multi", "NesterovSGD", "Optimizer", "RMSProp", "SGD", "SVM", "SmoothL1", "Trainer"]
__all__ += ["Validator", "WeightDecay"]
