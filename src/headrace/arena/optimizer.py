"""A torch optimizer as an arena uses it: its methods while its parameters are homed, and its state by their names."""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd import _profiler_enabled as profiler_enabled  # type: ignore[attr-defined]
from torch.optim import SGD, Optimizer
from torch.optim import optimizer as torch_optimizer

from ..errors import CheckpointError, CorruptError
from ..store.shape import check, like, maybe
from . import flat
from .own_optimizers import Joint, MomentumSGD, kind_of, owners_of, params_of, parts_of, put_to_rest, put_to_work
from .sharding import fitted, is_sharded

if TYPE_CHECKING:
    from .arena import Arena

ELEMENTWISE: frozenset[type[Optimizer]] = frozenset(
    getattr(torch.optim, name)
    for name in ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD"]
) | {MomentumSGD}
"""Optimizers whose update of an element depends on that element's own history alone.

The class of an optimizer of one's own says so by `elementwise = True`.
"""
SHAPED: frozenset[type[Optimizer]] = frozenset(
    getattr(torch.optim, name) for name in ["Muon", "Adafactor"] if hasattr(torch.optim, name)
)
"""Optimizers that need the shapes of parameters: these are views of a vector, and are stepped one by one."""

_BY_VALUE = (float, int, bool, str, type(None))
Named = Mapping[nn.Parameter, str]


class OptimizerHooks:
    """The optimizer's `step` and `zero_grad`, which act on the vectors until `restore_methods`.

    The optimizer has the vectors within a step only, and its parameters at all other times: also while its hooks are
    called. Saving or loading its state calls `release` first, so that it speaks of parameters.
    """

    def __init__(self, optimizer: Optimizer, arena: "Arena", release: Callable[[], None]) -> None:
        self._optimizer, self._arena, self._is_restored = optimizer, arena, False
        for part in parts_of(optimizer):
            if not hasattr(part, "_optimizer_state_dict_pre_hooks"):  # its class does not call that of torch
                Optimizer.__setstate__(part, {"defaults": getattr(part, "defaults", {})})
        self._outer = vars(optimizer).get("step")  # a schedule has put its own wrapper there
        self._prepare = _preparing(optimizer, arena)
        members = optimizer.members if isinstance(optimizer, Joint) else []
        self._members = [(member, vars(member).get("step"), _preparing(member, arena)) for member in members]
        self._patched = self._make_step()
        self._is_ours = False  # whether the step that is being made is one of the library's
        self.has_hooks = False
        """Whether hooks of the user's are called in the step that is being made."""
        self._handles = []
        for part in parts_of(optimizer):
            self._handles.append(part.register_state_dict_pre_hook(lambda _: release()))
            self._handles.append(part.register_load_state_dict_pre_hook(lambda *_: release()))
        optimizer.step = self._patched  # type: ignore[method-assign]
        optimizer.zero_grad = self._zero_by_hand  # type: ignore[method-assign]
        put_to_work(optimizer, release)

    def step(self) -> None:
        """The update of an arena: without torch's wrappers for hooks and profiling, where nobody listens there."""
        (self.prepared() or self._by_torch)()

    def prepared(self) -> Callable[[], Any] | None:
        """Makes the update of `step` at each call, as long as nothing changes but rates and what gradients hold.

        `None` if an update calls code of the user's: a hook, a replaced method, or an optimizer that is not torch's.
        """
        if vars(self._optimizer).get("step") is not self._patched or profiler_enabled():
            return None
        return self._arena.with_vectors(self._prepared)

    def _prepared(self) -> Callable[[], Any] | None:
        own = self._prepare(self._by_torch)
        if own is None or not self._members:
            return own
        if any(vars(member).get("step") is not outer for member, outer, _ in self._members):
            return None
        steps = [prepare(member.step) for member, _, prepare in self._members]
        return None if None in steps else lambda: [step() for step in steps if step is not None]

    def _by_torch(self) -> None:
        is_replaced = vars(self._optimizer).get("step") is not self._patched
        with self.ours(), self._with_hooks() if is_replaced else nullcontext():
            self._optimizer.step()

    @contextmanager
    def ours(self) -> Iterator[None]:
        """While this lasts, `optimizer.step()` is the library's own call."""
        self._is_ours = True
        try:
            yield
        finally:
            self._is_ours = False

    def restore_methods(self) -> None:
        """Gives the optimizer its own methods back."""
        for handle in self._handles:
            handle.remove()
        put_to_rest(self._optimizer)
        self._is_restored = True
        attributes = vars(self._optimizer)
        del attributes["zero_grad"]
        if attributes["step"] is not self._patched:
            self._is_ours = True  # a schedule made meanwhile has wrapped it: it only passes calls on from now
        elif self._outer is not None:
            attributes["step"] = self._outer
        else:
            del attributes["step"]

    def _make_step(self) -> MethodType:
        """A method of the optimizer, as schedules expect one that they can wrap."""

        def step(optimizer: Optimizer, *arguments: Any, **keywords: Any) -> Any:
            if not self._is_ours:
                self._arena.collect()
            call = self._outer or MethodType(type(optimizer).step, optimizer)
            if not self._calls_others():
                return self._arena.with_vectors(call, *arguments, **keywords)
            with self._with_hooks():
                return call(*arguments, **keywords)

        vars(step).update(vars(self._outer) if self._outer is not None else {})
        return MethodType(step, self._optimizer)

    @contextmanager
    def _with_hooks(self) -> Iterator[None]:
        """For a step with hooks, which see the parameters: between the last one before and the first one after it the
        optimizer has vectors."""

        def before(*_: object) -> None:
            if not self._is_restored:
                self._arena.collect_again()
                self._arena.give_vectors()

        handles: list[Any] = []
        for part in parts_of(self._optimizer):
            handles.append(part.register_step_pre_hook(before))
            handles.append(part.register_step_post_hook(lambda *_: self._arena.give_parameters()))
            hooks: Any = part._optimizer_step_post_hooks
            hooks.move_to_end(handles[-1].id, last=False)
        self.has_hooks = True
        try:
            yield
        finally:
            self.has_hooks = False
            for handle in handles:
                handle.remove()
            self._arena.give_parameters()

    def _calls_others(self) -> bool:
        """Whether a step calls code of the user's: a hook, or a method that the object has itself."""
        outers = [self._outer, *(vars(member).get("step") for member, _, _ in self._members)]
        own = any(outer is not None and not hasattr(outer, "_wrapped_by_lr_sched") for outer in outers)
        hooks = [hook for part in parts_of(self._optimizer) for each in _listeners(part) for hook in each.values()]
        return own or any(not (getattr(hook, "__module__", "") or "").startswith("headrace.") for hook in hooks)

    def _zero_by_hand(self, set_to_none: bool = True) -> None:
        self._arena.look_at_groups()
        self._arena.begin()


def _listeners(optimizer: Optimizer) -> tuple[Mapping[int, Any], ...]:
    """The hooks of an optimizer's step."""
    return (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    )


def _preparing(optimizer: Optimizer, arena: "Arena") -> Callable[[Callable[[], Any]], Callable[[], Any] | None]:
    """Finds how the `step` of an optimizer, as it is now, is made without torch's wrappers, where that is known.

    What it returns takes the step as torch makes it, and returns `None` if that calls code of the user's.
    """
    outer, method = vars(optimizer).get("step"), type(optimizer).step
    scheduled = hasattr(outer, "_wrapped_by_lr_sched") and vars(outer)["__wrapped__"] is method
    known = (outer is None or scheduled) and _is_of_torch(method)
    bare = known and is_elementwise(type(optimizer)) and not optimizer.defaults.get("differentiable")
    bare = bare and not _has_shards(optimizer)
    plain, listeners = inspect.unwrap(method), _listeners(optimizer)

    def plainly() -> None:
        with torch.no_grad():
            arena.with_vectors(plain, optimizer)

    def prepared(by_torch: Callable[[], Any]) -> Callable[[], Any] | None:
        if not known or any(listeners) or type(optimizer).step is not method:
            return None
        if not bare:
            return by_torch
        optimizer._opt_called = True  # type: ignore[attr-defined]  # torch's schedules look at it
        return flat.prepare(optimizer) or plainly

    return prepared


def _has_shards(optimizer: Optimizer) -> bool:
    return any(map(is_sharded, params_of(optimizer)))


def is_elementwise(kind: type[Optimizer]) -> bool:
    """Whether optimizers of this class update each element by its own history alone."""
    return kind in ELEMENTWISE or getattr(kind, "elementwise", False)


def _is_of_torch(step: Any) -> bool:
    """Whether the `step` of an optimizer's class is torch's or ours, and so is all that it wraps."""
    home = getattr(step, "__globals__", {}).get("__name__", "")  # only functions of Python have some
    inner = getattr(step, "__wrapped__", None)
    return home.startswith(("torch.optim.", "torch.utils._contextlib", "headrace.")) and (
        inner is None or _is_of_torch(inner)
    )


def by_name(
    optimizer: Optimizer,
    groups: Sequence[Sequence[nn.Parameter]],
    states: Iterable[tuple[nn.Parameter, Mapping[str, Any]]],
    names: Named,
) -> dict[str, Any]:
    """Hyperparameters and names of every group, and every parameter's state by its name.

    `elsewhere` lists what is not on its parameter's device, as torch's step counters are not.
    """
    settings = [{k: _apart(v) for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    found: dict[str, Any] = {}
    elsewhere: set[str] = set()
    for param, state in states:
        found[names[param]] = {key: _apart(value) for key, value in state.items()}
        elsewhere |= {k for k, v in state.items() if isinstance(v, Tensor) and v.device != param.device}
    return {
        "kind": kind_of(optimizer),
        "groups": settings,
        "names": [[names[param] for param in group] for group in groups],
        "state": found,
        "elsewhere": sorted(elsewhere),
    }


def check_state(optimizer: Optimizer, names: Named, saved: Mapping[str, Any], key: str) -> None:
    """Raises unless a saved state is one of an optimizer like this, over the same parameters."""
    own = [[names[param] for param in group["params"]] for group in optimizer.param_groups]
    what = f"the optimizer{f' {key!r}' if key else ''}"
    if saved["kind"] != kind_of(optimizer):
        raise CheckpointError(f"{what} was {saved['kind']} and is {kind_of(optimizer)}.")
    if saved["names"] != own:
        before = {name for group in saved["names"] for name in group}
        now = {name for group in own for name in group}
        listed = [f"no longer in it: {sorted(before - now)[:5]}"] if before - now else []
        listed += [f"new in it: {sorted(now - before)[:5]}"] if now - before else []
        raise CheckpointError(f"{what} has other parameters: {'; '.join(listed) or 'its groups differ'}.")
    _check_by_trial(optimizer, names, saved, what)


def load_state(optimizer: Optimizer, names: Named, saved: Mapping[str, Any], *, settings: bool = True) -> None:
    """Gives an optimizer, whose parameters are not homed, a state that `check_state` has approved.

    `settings`: its hyperparameters too; without, they stay as they are.
    """
    for part in parts_of(optimizer):
        forget(part)
    groups = zip(owners_of(optimizer), optimizer.param_groups, saved["groups"], strict=True)
    for owner, group, hyperparameters in groups:
        if settings:
            group.update(hyperparameters)
        for param in group["params"]:
            for key, value in saved["state"].get(names[param], {}).items():
                owner.state[param][key] = _own(value, param, key in saved["elsewhere"])


def forget(optimizer: Optimizer) -> None:
    """Removes what an optimizer remembers of parameters. State under a name, of a class of the user's, stays."""
    for key in [key for key in optimizer.state if not isinstance(key, str)]:
        del optimizer.state[key]


def is_plain(optimizer: Optimizer) -> bool:
    """Whether an optimizer is known to remember nothing: SGD without momentum."""
    return all(isinstance(part, SGD) for part in parts_of(optimizer)) and not any(
        group["momentum"] for group in optimizer.param_groups
    )


def skips_on_device(optimizer: Optimizer) -> bool:
    """Whether the optimizer skips a step where its `found_inf` is 1: all of its groups are fused.

    One that would begin its state in the step leaves memory that nobody has written: it does not.
    """
    if _has_shards(optimizer):
        return False
    if not (hasattr(optimizer, "_step_supports_amp_scaling") and all(g.get("fused") for g in optimizer.param_groups)):
        return False
    stepped = [param for param in params_of(optimizer) if param.grad is not None]
    states = [optimizer.state.get(param) or {"": None} for param in stepped]
    return is_plain(optimizer) or not any(value is None for state in states for value in state.values())


def _check_by_trial(optimizer: Optimizer, names: Named, saved: Mapping[str, Any], what: str) -> None:
    """Raises unless saved hyperparameters make an update, of small parameters, and the saved state is like its state.

    Torch's own optimizers only: what others do when they are made is not known.
    """
    every = list(zip(owners_of(optimizer), optimizer.param_groups, saved["groups"], strict=True))
    for part in parts_of(optimizer):
        if not type(part).__module__.startswith("torch.optim."):
            continue
        groups = [(now, before) for owner, now, before in every if owner is part]
        for number, (now, before) in enumerate(groups):
            check(before, {key: maybe(like(value)) for key, value in now.items()}, f"{what}, group {number}")
        states = _states_of_trial(part, [{**now, **before} for now, before in groups])
        if states is None and _states_of_trial(part, part.param_groups) is not None:
            raise CorruptError(f"{what} cannot go on: its saved hyperparameters make no update.")
        for param, state in (states or {}).items():
            stored = saved["state"].get(names[param]) or {}
            if bad := [
                key for key, value in state.items() if stored and not _is_like(stored.get(key, ...), value, param)
            ]:
                raise CorruptError(
                    f"{what} cannot go on: its saved state of {names[param]!r} has no {bad[0]!r} of use."
                )


def _states_of_trial(
    optimizer: Optimizer, groups: Sequence[Mapping[str, Any]]
) -> dict[nn.Parameter, dict[str, Any]] | None:
    """What an optimizer like this remembers of small parameters; `None` if it cannot make an update."""
    small = {p: torch.zeros(_small_shape(p), dtype=p.dtype, device=p.device) for g in groups for p in g["params"]}
    for tensor in small.values():
        tensor.grad = torch.zeros_like(tensor)
    try:
        make: Any = type(optimizer)
        twin = make([{**group, "params": [small[param] for param in group["params"]]} for group in groups])
        for _ in range(2):  # some hyperparameters are not used by the first one
            twin.step()
    except Exception:
        return None
    return {param: twin.state[tensor] for param, tensor in small.items()}


def _small_shape(param: Tensor) -> tuple[int, ...]:
    return tuple(range(2, 2 + param.ndim))  # sizes that tell dimensions apart


def _is_like(saved: Any, made: Any, param: Tensor) -> bool:
    """Whether a value is to a parameter what one is to the small parameter."""
    if not isinstance(made, Tensor):
        return saved is None or isinstance(saved, type(made))
    if isinstance(saved, Mapping) and "indices" in saved:  # sparse, as momentum of sparse gradients is
        return True
    if not isinstance(saved, Tensor) or saved.is_floating_point() != made.is_floating_point():
        return False
    return made.shape != _small_shape(param) or saved.shape == param.shape


def _apart(value: Any) -> Any:
    """A value that its owner cannot change any more; a tensor stays, for whoever saves it to copy.

    A sparse tensor, as momentum of sparse gradients is, becomes dense ones.
    """
    if not isinstance(value, Tensor):
        return value if isinstance(value, _BY_VALUE) else copy.deepcopy(value)
    if not value.is_sparse:
        return value.detach() if value.requires_grad else value
    return {
        "indices": value._indices(),
        "values": value._values(),
        "size": list(value.shape),
        "coalesced": value.is_coalesced(),
    }


def _own(value: Any, param: Tensor, elsewhere: bool) -> Any:
    """A tensor of the optimizer's own; one for every element lies in memory as the parameter does."""
    if isinstance(value, Mapping) and value.keys() == {"indices", "values", "size", "coalesced"}:
        indices, values = value["indices"].to(param.device, copy=True), value["values"].to(param.device, copy=True)
        coalesced = value["coalesced"]
        return torch.sparse_coo_tensor(indices, values, value["size"], is_coalesced=coalesced, check_invariants=True)
    if not isinstance(value, Tensor):
        return value
    value = fitted(value, param)
    if value.shape == param.shape and not elsewhere:
        return torch.empty_like(param, dtype=value.dtype, requires_grad=False).copy_(value)
    return value.clone() if elsewhere else value.to(param.device, copy=True)
