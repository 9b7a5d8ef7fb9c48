"""Models beside which torch itself changes late, or that ask torch for what is no operation on tensors.

Functions of torch that are replaced, hooks of every kind, modes and settings, numbers and lengths that are read from a
batch, random generators, memory.
"""

import builtins
import contextlib
import ctypes
import math
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import headrace as hr

from .tape_cheats import Cheat, Net, Table, into, of_forward, plain, scaled

TORCH: Table = {}
add = into(TORCH)
ROWS = 80


def _original(owner: Any, name: str) -> Any:
    return owner.__dict__[name] if isinstance(owner, type) and name in owner.__dict__ else getattr(owner, name)


def replaced(
    owner: Any, name: str, by: Callable[[Any], Any], model: Callable[[], nn.Module] = Net, loss: Any = F.cross_entropy
) -> None:
    """Adds: this is replaced late by what is made of it."""

    def cheat() -> Cheat:
        patch = pytest.MonkeyPatch()
        return Cheat(model(), loss, lambda: patch.setattr(owner, name, by(_original(owner, name))), patch.undo)

    TORCH[f"{getattr(owner, '__name__', type(owner).__name__)}.{name}_replaced"] = cheat


def doubled(function: Any) -> Any:
    """Gives the double of what a function gives."""
    return lambda *args, **kwargs: function(*args, **kwargs) * 2


class Uses(Net):
    """Calls torch's functions by their usual names."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(F.linear(x, self.enter.weight)).relu() + 1.0
        return self.leave(torch.tanh(hidden))


class Two(Net):
    """Has another layer of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.also = nn.Linear(6, 8)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.leave = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.rnn(x.view(-1, 3, 2))[0][:, -1])


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.leave = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.leave(x)


def _penalty(self: Any) -> Any:
    return 1 + sum(param.square().sum() for param in self.parameters()) / 100


replaced(nn.Linear, "forward", doubled)
replaced(nn.Module, "__call__", doubled)
replaced(nn.Module, "_call_impl", doubled)
replaced(nn.BatchNorm1d, "forward", doubled, lambda: plain(nn.BatchNorm1d(8)))
replaced(nn.Module, "__getattr__", lambda get: lambda self, name: get(self, "also" if name == "enter" else name), Two)
replaced(F, "linear", doubled)
replaced(torch, "tanh", doubled, Uses)
replaced(torch, "numel", doubled, lambda: scaled(lambda self: 1 / max(torch.numel(self.enter.bias) // 8, 1)))
replaced(Tensor, "relu", doubled, Uses)
replaced(Tensor, "__mul__", lambda product: lambda self, other: torch.mul(self, other).add(1.0))
replaced(torch._VF, "gru", lambda gru: lambda *args: (gru(*args)[0] * 2, gru(*args)[1]), lambda: Recurrent())
replaced(nn.ModuleList, "__iter__", lambda each: lambda self: reversed([*each(self)]), lambda: Listed())
replaced(nn.Module, "parameters", lambda each: lambda self: iter([*each(self)][1:]), lambda: scaled(_penalty))
replaced(sys.modules["torch.nn.modules.linear"], "F", lambda home: types.SimpleNamespace(linear=doubled(home.linear)))
replaced(F.relu, "__code__", lambda code: F.silu.__code__, plain)
replaced(F.relu, "__defaults__", lambda defaults: (True,), plain)
replaced(nn.Linear.forward, "__code__", lambda code: (lambda self, input: F.linear(input, self.weight)).__code__)
replaced(
    builtins, "sum", lambda add_up: lambda *each: add_up(*each) * 3, lambda: scaled(lambda self: float(sum([1.0])))
)
replaced(math, "sqrt", doubled, lambda: scaled(lambda self: math.sqrt(1.0)))
replaced(math, "pi", lambda pi: 1.0, lambda: scaled(lambda self: math.pi))
replaced(F, "cross_entropy", doubled, plain, nn.CrossEntropyLoss())


# --- settings and modes -------------------------------------------------------------------------------------


def entered(make: Callable[[], Any], model: Callable[[], nn.Module] = Net, **fields: Any) -> Callable[[], Cheat]:
    """Late, a context is entered, and it is not left before the end."""

    def cheat() -> Cheat:
        stack = contextlib.ExitStack()
        return Cheat(model(), change=lambda: stack.enter_context(make()), undo=stack.close, **fields)

    return cheat


class Doubles(TorchFunctionMode):
    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        return made * 2 if function in (torch.relu, F.relu) else made


class DoublesBelow(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        return made * 2 if function is torch.ops.aten.relu.default else made


@contextlib.contextmanager
def set_back(change: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    change(value)
    try:
        yield
    finally:
        change(before)


class Encodes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
        self.leave = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.layer(x.unsqueeze(1))[:, 0])


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(6, 24), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.enter(x).view(1, 1, len(x), 24).chunk(3, -1)
        return self.leave(F.scaled_dot_product_attention(q, k, v)[0, 0])


TORCH.update(
    {
        "autocast_late": entered(lambda: torch.autocast("cpu", torch.bfloat16)),
        "function_mode_late": entered(Doubles),
        "dispatch_mode_late": entered(DoublesBelow),
        "saved_tensors_doubled": entered(
            lambda: torch.autograd.graph.saved_tensors_hooks(
                lambda t: t * 2 if t.is_floating_point() else t, lambda t: t
            )
        ),
        "anomaly_mode_late": entered(lambda: torch.autograd.set_detect_anomaly(True)),
        "deterministic_algorithms_late": entered(lambda: set_back(torch.use_deterministic_algorithms, True, False)),
        "default_type_late": entered(
            lambda: set_back(torch.set_default_dtype, torch.float64, torch.float32),
            lambda: scaled(lambda self: torch.full((3,), 1 / 3).float()),
        ),
        "reads_the_seed": entered(
            lambda: contextlib.nullcontext(torch.manual_seed(5)),
            lambda: scaled(lambda self: 1.0 + torch.initial_seed() % 7),
        ),
        "precision_of_products": entered(lambda: set_back(torch.set_float32_matmul_precision, "medium", "highest")),
        "mkldnn_off": entered(lambda: set_back(torch._C._set_mkldnn_enabled, False, True)),
        "attention_by_math": entered(
            lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), Attends
        ),
        "default_device_late": entered(lambda: torch.device("cpu"), lambda: scaled(lambda self: torch.ones(()) * 2)),
        "path_of_einsum": entered(
            lambda: set_back(lambda on: setattr(torch.backends.opt_einsum, "enabled", on), False, True),
            lambda: (
                of_forward(lambda self, x: torch.einsum("bi,ij,jk->bk", x, torch.ones(6, 9), torch.ones(9, 6))).model
            ),
        ),
        "fast_path_of_attention": entered(
            lambda: set_back(torch.backends.mha.set_fastpath_enabled, False, True), lambda: Encodes()
        ),
        "seeded_late": entered(lambda: contextlib.nullcontext(torch.manual_seed(5)), lambda: plain(nn.Dropout(0.3))),
        "flush_denormals": entered(
            lambda: set_back(torch.set_flush_denormal, True, False),
            lambda: scaled(lambda self: 1.0 + torch.full((3,), 1e-40) * 1e30 * 1e10),
        ),
    }
)


# --- hooks --------------------------------------------------------------------------------------------------

Register = Callable[[Any], Any]


def hooked(register: Register, early: bool) -> Callable[[], Cheat]:
    """A model with a hook that is registered late, or one that is removed late."""

    def cheat() -> Cheat:
        model, handles = plain(), list[Any]()

        def remove() -> None:
            while handles:
                handles.pop().remove()

        def begin() -> None:
            handles.append(register(model))

        if early:
            begin()
        return Cheat(model, change=remove if early else begin, undo=remove)

    return cheat


def of_all(register: Callable[[Any], Any], hook: Callable[[Any], Any], number: int) -> Register:
    """Registers, for all modules there are, a hook that does something at one of them."""

    def for_one(model: Any) -> Any:
        return register(lambda module, *args: hook(args) if module is model[number] else None)

    return for_one


def _double_gradient(param: Any) -> None:
    param.grad.mul_(2)


def _shrink(model: Any) -> None:
    for param in model.parameters():
        param.data.mul_(0.99)


def _on_a_node(model: Any) -> Any:
    """As distributed training does: on the node that adds up a parameter's gradient."""
    weight = model[0].weight
    model.__dict__.setdefault("kept", []).append(weight.view_as(weight).grad_fn.next_functions[0][0])
    return model.__dict__["kept"][-1].register_prehook(lambda gradients: (gradients[0] * 2,))


HOOKS: dict[str, Register] = {
    "forward_hook": lambda model: model[0].register_forward_hook(lambda module, args, out: out * 2),
    "forward_pre_hook": lambda model: model[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
    "full_backward_hook": lambda model: model[2].register_full_backward_hook(
        lambda module, given, out: (given[0] * 2,)
    ),
    "full_backward_pre_hook": lambda model: model[2].register_full_backward_pre_hook(lambda module, out: (out[0] * 2,)),
    "hook_of_a_parameter": lambda model: model[0].weight.register_hook(lambda gradient: gradient * 2),
    "hook_after_a_gradient_is_added": lambda model: model[0].weight.register_post_accumulate_grad_hook(
        _double_gradient
    ),
    "hook_of_several_gradients": lambda model: torch.autograd.graph.register_multi_grad_hook(
        [*model.parameters()], lambda gradients: _shrink(model)
    ),
    "hook_of_a_node": _on_a_node,
    "hook_of_the_state": lambda model: model.register_state_dict_pre_hook(lambda *given: None),
    "forward_hook_of_all": of_all(modules.register_module_forward_hook, lambda args: args[1] * 2, 0),
    "forward_pre_hook_of_all": of_all(modules.register_module_forward_pre_hook, lambda args: (args[0][0] * 2,), 0),
    "full_backward_hook_of_all": of_all(modules.register_module_full_backward_hook, lambda args: (args[0][0] * 2,), 2),
    "full_backward_pre_hook_of_all": of_all(
        modules.register_module_full_backward_pre_hook, lambda args: (args[0][0] * 2,), 2
    ),
}
TORCH.update({f"{name}_late": hooked(register, early=False) for name, register in HOOKS.items()})
TORCH.update({f"{name}_until_late": hooked(register, early=True) for name, register in HOOKS.items()})


@add
def hook_of_a_loss_late() -> Cheat:
    loss = nn.CrossEntropyLoss()
    return Cheat(plain(), loss, lambda: loss.register_forward_hook(lambda module, args, out: out * 2))


@add
def hook_by_its_dictionary() -> Cheat:
    model = plain()
    return Cheat(model, change=lambda: model[0]._forward_hooks.update({7: lambda module, args, out: out * 2}))


@add
def hook_with_a_state() -> Cheat:
    model, box = plain(), [1.0]
    model[0].register_forward_hook(lambda module, args, out: out * box[0])
    return Cheat(model, change=lambda: box.__setitem__(0, 3.0))


def _listened(forward: Callable[[Any, Tensor, list[float]], Tensor]) -> Cheat:
    """A model whose forward pass reads a list, which is changed late."""
    box = [1.0]
    model: Net = type("Listened", (Net,), {"forward": lambda self, x: forward(self, x, box)})()
    return Cheat(model, change=lambda: box.__setitem__(0, 3.0))


@add
def hook_of_what_a_pass_makes() -> Cheat:
    def forward(self: Any, x: Tensor, box: list[float]) -> Any:
        hidden = torch.relu(self.enter(x))
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient * box[0])
        return self.leave(hidden)

    return _listened(forward)


# --- parametrizations, functions and kinds of tensors -------------------------------------------------------


class Scaling(nn.Module):
    factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


@add
def parametrized_with_a_number() -> Cheat:
    model, scaling = plain(), Scaling()
    parametrize.register_parametrization(model[0], "weight", scaling)
    return Cheat(model, change=lambda: setattr(scaling, "factor", 3.0))


TORCH["weight_normalised"] = lambda: Cheat(plain(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))))
TORCH["orthogonal"] = lambda: Cheat(plain(nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))))


TORCH["checkpointed_with_a_state"] = lambda: _listened(
    lambda self, x, box: Net.forward(self, checkpoint(lambda x: x * box[0], x, use_reentrant=False))
)
TORCH["mapped"] = lambda: _listened(
    lambda self, x, box: Net.forward(self, torch.func.vmap(lambda row: row * box[0])(x))
)


class Marked(Tensor):
    """A kind of tensor whose operations have a state."""

    factor = 1.0

    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(function, kinds, args, kwargs or {})
        return made * cls.factor if function is Tensor.relu else made


@add
def kind_of_tensor() -> Cheat:
    patch = pytest.MonkeyPatch()
    model = of_forward(lambda self, x: x.as_subclass(Marked).relu().as_subclass(Tensor)).model
    return Cheat(model, change=lambda: patch.setattr(Marked, "factor", 3.0), undo=patch.undo)


@add
def operator_registered() -> Cheat:
    patch = pytest.MonkeyPatch()
    library = torch.library.Library("tape_cheats", "FRAGMENT")
    library.define("scaled(Tensor x) -> Tensor")
    library.impl("scaled", lambda x: x * Marked.factor, "CompositeImplicitAutograd")
    model = of_forward(lambda self, x: torch.ops.tape_cheats.scaled(x)).model

    def undo() -> None:
        patch.undo()
        library._destroy()

    return Cheat(model, change=lambda: patch.setattr(Marked, "factor", 3.0), undo=undo)


@add
def called_with_other_parameters() -> Cheat:
    def forward(self: Any, x: Tensor, box: list[float]) -> Any:
        changed = {name: value * box[0] for name, value in self.enter.named_parameters()}
        return self.leave(torch.relu(torch.func.functional_call(self.enter, changed, x)))

    return _listened(forward)


# --- what is read from a batch ------------------------------------------------------------------------------


def _lengths(first: int, later: int) -> Tensor:
    """Numbers that are alike in the first six batches of ten rows, and differ in later ones."""
    lengths = torch.full((ROWS,), first)
    lengths[torch.from_numpy(hr.Order(ROWS, seed=0).indices(0, 0, ROWS))[60:]] = later
    return lengths


def by_batch(forward: Callable[[Any, Tensor, Tensor], Tensor], numbers: Tensor) -> Cheat:
    """A model that reads numbers which come with each row."""
    model: Net = type("ByBatch", (Net,), {"forward": forward})()
    x = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
    y = torch.randint(0, 3, (ROWS,), generator=torch.Generator().manual_seed(2))
    return Cheat(model, data={"x": x, "n": numbers, "y": y})


def reads(name: str, read: Callable[[Tensor], Any]) -> None:
    """Adds: a number of the batch is read so, and scales the outputs."""

    def forward(self: Any, x: Tensor, n: Tensor) -> Tensor:
        return Net.forward(self, x) * read(n)

    numbers = _lengths(1, 3)
    TORCH[f"batch_read_by_{name}"] = lambda: by_batch(forward, numbers)


for name, read in {
    "item": lambda n: n[0].item(),
    "if": lambda n: 1.0 if (n == 1).all() else 3.0,
    "sorting": lambda n: sorted(n)[-1],
    "numpy": lambda n: float(n.numpy().mean()),
    "dlpack": lambda n: float(np.from_dlpack(n)[0]),
    "version": lambda n: 1.0 + n._version,
    "address": lambda n: float(ctypes.c_longlong.from_address(n.data_ptr()).value),
    "storage": lambda n: float(n.untyped_storage()[0]),
    "text": lambda n: float(len(str(n))),
    "nonzero": lambda n: float(len((n > 2).nonzero()) + 1),
    "mask": lambda n: float(n[n > 2].numel() + 1),
    "quantile": lambda n: torch.ones(4).cumsum(0).quantile(n[0] / 4.0),
    "memory_of_ctypes": lambda n: float(ctypes.string_at(n.data_ptr(), 1)[0]),
}.items():
    reads(name, read)


@add
def tensor_split_of_outputs() -> Cheat:
    """The parts have other sizes, and their sums are made of other rows."""

    def forward(self: Any, x: Tensor, n: Tensor) -> Tensor:
        out = Net.forward(self, x)
        first, *_ = torch.tensor_split(out, n[:1])
        return out * (1 + first.mean())

    return by_batch(forward, _lengths(2, 5))


@add
def packed_sequences() -> Cheat:
    class Packs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.leave = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, x: Tensor, n: Tensor) -> Tensor:
            packed = pack_padded_sequence(x.view(-1, 3, 2), n, batch_first=True, enforce_sorted=False)
            out, _ = self.rnn(packed)
            return self.leave(pad_packed_sequence(out, batch_first=True, total_length=3)[0].sum(1))

    cheat = by_batch(lambda self, x, n: x, _lengths(3, 1))
    return cheat._replace(model=Packs())


class Ctc(nn.Module):
    """A model that gives its loss: the alignment of labels with six steps."""

    def __init__(self) -> None:
        super().__init__()
        self.leave = nn.Linear(1, 4)

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        log = self.leave(x.unsqueeze(-1)).log_softmax(-1).transpose(0, 1)
        labels, steps = torch.ones(len(x), 2, dtype=torch.long) + torch.arange(2), torch.full((len(x),), 6)
        return F.ctc_loss(log, labels, steps, n.clamp(max=2)) * torch.ones(len(x), 3) * self.leave.bias[:3]


TORCH["lengths_of_labels_in_ctc"] = lambda: by_batch(lambda self, x, n: x, _lengths(2, 1))._replace(model=Ctc())


# --- what is read of parameters -------------------------------------------------------------------------


TORCH.update(
    {
        "version_of_a_parameter": lambda: Cheat(scaled(lambda self: 1.0 + self.enter.weight._version % 7)),
        "whether_a_parameter_is_trained": lambda: late_in(
            scaled(lambda self: 1.0 if self.enter.bias.requires_grad else 3.0),
            lambda model: model.enter.bias.requires_grad_(False),
        ),
        "module_that_appears": lambda: late_in(
            scaled(lambda self: 1.0 + sum(1 for _ in self.modules())),
            lambda model: model.add_module("more", nn.Tanh()),
        ),
        "private_attribute_of_torchs": lambda: late_in(
            Convolves(), lambda model: setattr(model.conv, "_reversed_padding_repeated_twice", [2, 0])
        ),
        "weights_of_a_recurrent_layer": lambda: late_in(
            Recurrent(),
            lambda model: setattr(model.rnn, "_flat_weights", [each.detach() * 2 for each in model.rnn._flat_weights]),
        ),
        "layout_of_memory": lambda: late_in(Images(), lambda model: model.to(memory_format=torch.channels_last)),
    }
)


def late_in(model: Any, change: Callable[[Any], Any]) -> Cheat:
    return Cheat(model, change=lambda: change(model))


class Convolves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.leave = nn.Conv1d(1, 2, 3, padding=1, padding_mode="circular"), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.conv(x.unsqueeze(1)).flatten(1))


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.conv, self.leave = nn.Linear(6, 16), nn.Conv2d(4, 4, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.conv(self.enter(x).view(-1, 4, 2, 2)).flatten(1))


@add
def gradient_within_a_pass() -> Cheat:
    class Penalised(Net):
        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                hidden = torch.tanh(self.enter(x))
                (gradient,) = torch.autograd.grad(hidden.square().sum(), self.enter.weight, create_graph=True)
            return self.leave(hidden) * (1 + gradient.square().mean())

    return Cheat(Penalised())


@add
def backward_within_a_pass() -> Cheat:
    class Backwards(Net):
        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                self.enter(x).square().mean().backward()
            return super().forward(x)

    return Cheat(Backwards())


# --- time, random numbers, memory ---------------------------------------------------------------------------


@add
def generator_kept() -> Cheat:
    generator = torch.Generator().manual_seed(3)
    return Cheat(scaled(lambda self: torch.rand(3, generator=generator)))


@add
def random_state_by_hand() -> Cheat:
    def before(self: Any, x: Tensor) -> Tensor:
        state = torch.get_rng_state()
        x = F.dropout(x, 0.3)
        torch.set_rng_state(state)
        return x * torch.rand(6)

    return of_forward(before)


TORCH["permuted"] = lambda: of_forward(lambda self, x: x[torch.randperm(len(x))] * 0.1 + x)
TORCH["drawn_by_a_distribution"] = lambda: of_forward(
    lambda self, x: x + torch.distributions.Normal(torch.zeros(6), torch.ones(6)).rsample((len(x),))
)


def _of_numpy(before: Callable[[Any, Tensor, Any], Tensor]) -> Callable[[], Cheat]:
    """A model that reads memory of NumPy's, which is written late."""

    def cheat() -> Cheat:
        memory = np.ones(6, dtype=np.float32)
        shared = torch.from_numpy(memory)
        model = of_forward(lambda self, x: before(self, x, shared)).model
        model.register_buffer("shared", shared)
        return Cheat(model, change=lambda: memory.fill(3.0))

    return cheat


TORCH["memory_by_numpy"] = _of_numpy(lambda self, x, shared: x * shared)
TORCH["buffer_written_by_numpy"] = _of_numpy(lambda self, x, shared: x * self.shared)


@add
def tensor_put_in_its_place() -> Cheat:
    model = of_forward(lambda self, x: x * self.factors[0]).model
    model.factors = [torch.ones(6)]  # type: ignore[assignment]
    return Cheat(model, change=lambda: model.factors[0].set_(torch.full((6,), 3.0)))  # type: ignore[index]


@add
def buffer_resized() -> Cheat:
    model = of_forward(lambda self, x: x * self.factors.sum()).model
    model.register_buffer("factors", torch.ones(3))
    return Cheat(model, change=lambda: model.factors.resize_(2))  # type: ignore[operator]


@add
def modules_in_another_order() -> Cheat:
    class Ordered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Tanh(), "c": nn.Linear(6, 3)})

        def forward(self, x: Tensor) -> Tensor:
            for part in self.parts.values():
                x = part(x)
            return x

    model = Ordered()

    def change() -> None:
        held = model.parts._modules
        for name in ("a", "c"):
            held[name] = held.pop(name)

    return Cheat(model, change=change)


@add
def product_whose_gradient_differs_while_it_is_recorded() -> Cheat:
    class Multiplies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.leave = nn.Linear(6, 64), nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.enter(x)
            return self.leave(torch.relu(hidden)) * (hidden.sigmoid() + 0.5).prod(1, keepdim=True)

    return Cheat(Multiplies())
