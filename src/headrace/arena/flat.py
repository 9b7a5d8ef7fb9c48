"""Optimizers on a few long vectors: their operations in their order, without the bookkeeping for many."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop

from .momentum import MomentumSGD

Settings = Mapping[str, Any]
State = dict[str, Any]


def prepare(optimizer: Optimizer) -> Callable[[], None] | None:
    """Makes updates with torch's bits at each call, as long as nothing changes but the rates and what gradients hold.

    `None` for an update that is not known here, or that begins a state: it is torch's.
    """
    known = _KINDS.get(type(optimizer))
    if known is None:
        return None
    made, remembers = known
    work = []
    for group in optimizer.param_groups:
        if _is_special(group):
            return None
        for param in group["params"]:
            gradient = param.grad
            if gradient is None:
                continue
            state = optimizer.state.get(param, {})
            if gradient.is_sparse or param.is_complex() or not remembers(state, group):
                return None
            work.append((param, gradient, state, group))

    def step() -> None:
        with torch._C._AutoDispatchBelowAutograd():
            for each in work:
                made(*each)

    return step


def _is_special(group: Settings) -> bool:
    """Whether a setting asks for another way to compute."""
    has = group.get
    if has("maximize") or has("capturable") or has("differentiable") or has("fused") or has("foreach"):
        return True
    return type(group["lr"]) is not float or isinstance(group.get("weight_decay"), Tensor)


def _sgd(param: Tensor, gradient: Tensor, state: State, group: Settings) -> None:
    momentum = group["momentum"]
    if group["weight_decay"] != 0:
        gradient = gradient.add(param, alpha=group["weight_decay"])
    if momentum != 0:
        buffer = state["momentum_buffer"]
        buffer.mul_(momentum).add_(gradient, alpha=1 - group["dampening"])
        gradient = gradient.add(buffer, alpha=momentum) if group["nesterov"] else buffer
    param.add_(gradient, alpha=-group["lr"])


def _momentum(param: Tensor, gradient: Tensor, state: State, group: Settings) -> None:
    if group["weight_decay"]:
        gradient = gradient.add(param, alpha=group["weight_decay"])
    velocity = state["velocity"]
    torch._foreach_mul_([velocity], group["momentum"])  # which in half precision rounds the factor, as mul_ does not
    param.add_(velocity.add_(gradient, alpha=-group["lr"]))


def _adam(param: Tensor, gradient: Tensor, state: State, group: Settings) -> None:
    (beta1, beta2), lr, decay = group["betas"], group["lr"], group["weight_decay"]
    count, mean, square = state["step"], state["exp_avg"], state["exp_avg_sq"]
    count += 1
    if decay != 0 and group["decoupled_weight_decay"]:
        param.mul_(1 - lr * decay)
    elif decay != 0:
        gradient = gradient.add(param, alpha=decay)
    mean.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    steps = count.item()
    if group["amsgrad"]:
        square = torch.maximum(state["max_exp_avg_sq"], square, out=state["max_exp_avg_sq"])
    denominator = square.sqrt().div_((1 - beta2**steps) ** 0.5).add_(group["eps"])
    param.addcdiv_(mean, denominator, value=-(lr / (1 - beta1**steps)))


def _nadam(param: Tensor, gradient: Tensor, state: State, group: Settings) -> None:
    (beta1, beta2), lr, decay = group["betas"], group["lr"], group["weight_decay"]
    count, mean, square, product = state["step"], state["exp_avg"], state["exp_avg_sq"], state["mu_product"]
    count += 1
    steps = count.item()
    if decay != 0 and group["decoupled_weight_decay"]:
        param.mul_(1 - lr * decay)
    elif decay != 0:
        gradient = gradient.add(param, alpha=decay)
    now, after = (beta1 * (1.0 - 0.5 * (0.96 ** (k * group["momentum_decay"]))) for k in (steps, steps + 1))
    product *= now
    mean.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    denominator = square.div(1 - beta2**steps).sqrt_().add_(group["eps"])
    total = product.item()
    param.addcdiv_(gradient, denominator, value=-lr * (1.0 - now) / (1.0 - total))
    param.addcdiv_(mean, denominator, value=(-lr * after) / (1.0 - total * after))


def _rmsprop(param: Tensor, gradient: Tensor, state: State, group: Settings) -> None:
    alpha, square = group["alpha"], state["square_avg"]
    state["step"] += 1
    if group["weight_decay"] != 0:
        gradient = gradient.add(param, alpha=group["weight_decay"])
    square.mul_(alpha).addcmul_(gradient, gradient, value=1 - alpha)
    if group["centered"]:
        mean = state["grad_avg"].lerp_(gradient, 1 - alpha)
        root = square.addcmul(mean, mean, value=-1).sqrt_()
    else:
        root = square.sqrt()
    root.add_(group["eps"])
    if group["momentum"] > 0:
        buffer = state["momentum_buffer"].mul_(group["momentum"]).addcdiv_(gradient, root)
        param.add_(buffer, alpha=-group["lr"])
    else:
        param.addcdiv_(gradient, root, value=-group["lr"])


def _adagrad(param: Tensor, gradient: Tensor, state: State, group: Settings) -> None:
    count, total = state["step"], state["sum"]
    count += 1
    if group["weight_decay"] != 0:
        gradient = gradient.add(param, alpha=group["weight_decay"])
    rate = group["lr"] / (1 + (count.item() - 1) * group["lr_decay"])
    total.addcmul_(gradient, gradient, value=1)
    param.addcdiv_(gradient, total.sqrt().add_(group["eps"]), value=-rate)


def _keeps(*always: str, **sometimes: str) -> Callable[[State, Settings], bool]:
    """Whether a state is there: what an optimizer always remembers, and what it does by one of its settings."""

    def there(state: State, group: Settings) -> bool:
        for name in always:
            if name not in state:
                return False
        return all(state.get(name) is not None for setting, name in sometimes.items() if group[setting])

    return there


_OF_ADAM = _keeps("step", "exp_avg", "exp_avg_sq", amsgrad="max_exp_avg_sq")
_KINDS: dict[type[Optimizer], tuple[Callable[..., None], Callable[[State, Settings], bool]]] = {
    SGD: (_sgd, _keeps(momentum="momentum_buffer")),
    MomentumSGD: (_momentum, _keeps("velocity")),
    Adam: (_adam, _OF_ADAM),
    AdamW: (_adam, _OF_ADAM),
    NAdam: (_nadam, _keeps("step", "exp_avg", "exp_avg_sq", "mu_product")),
    RMSprop: (_rmsprop, _keeps("step", "square_avg", momentum="momentum_buffer", centered="grad_avg")),
    Adagrad: (_adagrad, _keeps("step", "sum")),
}
