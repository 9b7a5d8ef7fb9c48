"""Torch's optimizers with settings that they may have, by name; those that step by one fused kernel stand apart."""

from collections.abc import Callable

from torch import optim

Make = Callable[..., optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p, **o: optim.SGD(p, lr=0.1, **o),
    "momentum": lambda p, **o: optim.SGD(p, lr=0.05, momentum=0.9, **o),
    "nesterov": lambda p, **o: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3, **o),
    "dampened": lambda p, **o: optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.5, **o),
    "adam": lambda p, **o: optim.Adam(p, lr=1e-3, weight_decay=1e-3, **o),
    "amsgrad": lambda p, **o: optim.Adam(p, lr=1e-3, amsgrad=True, **o),
    "adamw": lambda p, **o: optim.AdamW(p, lr=1e-3, amsgrad=True, **o),
    "nadam": lambda p: optim.NAdam(p, lr=1e-3),
    "radam": lambda p: optim.RAdam(p, lr=1e-3),
    "adamax": lambda p: optim.Adamax(p, lr=1e-3),
    "plain rmsprop": lambda p: optim.RMSprop(p, lr=1e-3),
    "rmsprop": lambda p: optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=1e-2, initial_accumulator_value=0.1),
    "adadelta": lambda p: optim.Adadelta(p),
    "rprop": lambda p: optim.Rprop(p, lr=1e-3),
    "asgd": lambda p: optim.ASGD(p, lr=1e-2),
}
FUSED: dict[str, Make] = {
    "fused sgd": lambda p: optim.SGD(p, lr=0.1, fused=True),
    "fused momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, fused=True),
    "fused adam": lambda p: optim.Adam(p, lr=0.01, amsgrad=True, fused=True),
    "fused adamw": lambda p: optim.AdamW(p, lr=0.01, fused=True),
    "fused adagrad": lambda p: optim.Adagrad(p, lr=0.01, fused=True),
}
