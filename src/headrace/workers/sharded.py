"""Sharded training: each worker has a part of every parameter, of its gradient and of the optimizer's state."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Literal
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import Optimizer

from ..arena.arena import Arena
from ..arena.replica import Replica
from ..arena.sharding import is_sharded, local, modules_named
from ..arena.vectors import owners
from ..errors import ConfigError, ModelError, unknown
from ..store.shards import RowPart
from .comm import Comm, mean
from .join import join_others, timeout_of_environment
from .materials import Init, materialize
from .side_channel import SideChannel
from .strategy import Strategy
from .synchronous import Synchronous

_FORMATS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
NO_GROUP = (
    "hr.Sharded divides a model between processes that torch.distributed connects, and this is {}. Make the trainer in "
    "the function that hr.launch(..., engine='processes') calls, or in a script that torchrun starts."
)
Format = Literal["fp32", "bf16", "fp16"]


class Sharded(Strategy):
    """g = Σᵢ gᵢ, one update as `Synchronous` makes it; the model is divided between the workers by `fully_shard`.

    Make the trainer in the workers, which need a process group. Pass the optimizer as a function of the parameters, or
    before it has made a step. All workers write a checkpoint together, and any number of workers can read it.

    Args:
        patterns: modules that are sharded one by one, as in `Sharded("blocks.*")`. Their parameters are gathered before
            they are used, and freed afterwards. All other parameters are gathered together.
        params: the format in which the model computes: "fp32", "bf16" or "fp16".
        reduce: the format in which gradients are added.
        replicas: "node" shards the model within each machine; a number makes this many sharded copies.
        offload: whether the shards are in the memory of the host.
        init: gives values to a model on the "meta" device: a function that is called with every module, as by
            `model.apply`, or a safetensors file, or a directory of them.
    """

    joint: ClassVar[bool] = True
    shards: ClassVar[bool] = True

    def __init__(
        self,
        *patterns: str,
        params: Format = "fp32",
        reduce: Format = "fp32",
        replicas: Literal["node"] | int | None = None,
        offload: bool = False,
        init: Init | None = None,
    ) -> None:
        for name, given in {"params": params, "reduce": reduce}.items():
            if given not in _FORMATS:
                raise ConfigError(unknown(name, given, _FORMATS), argument=name)
        if replicas not in (None, "node") and not (type(replicas) is int and replicas > 0):
            raise ConfigError(
                f"replicas= is 'node' or a number of sharded copies, got {replicas!r}.", argument="replicas"
            )
        if init is not None and not callable(init) and not isinstance(init, str | Path):
            raise ConfigError(
                f"init= is a function of a module, or a path of safetensors, got {init!r}.", argument="init"
            )
        self.params, self.reduce_in = params, reduce
        self._patterns, self._replicas, self._offload, self._init = patterns, replicas, offload, init
        self._root: Any = None  # the model, once it is sharded
        self._parts: list[Any] = []  # of it, that are gathered by themselves
        self._shard_count = self._shard_index = 0

    def join(self, comm: Comm) -> None:
        super().join(comm)
        if not dist.is_initialized():
            if comm.count > 1:
                raise ConfigError(NO_GROUP.format("a virtual worker"))
            if not (os.environ.get("WORLD_SIZE") == "1" and "RANK" in os.environ):
                raise ConfigError(NO_GROUP.format("a process of its own"))
            join_others(timeout_of_environment())
        self._aside = SideChannel(timeout_of_environment())
        copies = self._copies()
        self._shard_count, self._shard_index = comm.count // copies, comm.shard.index % (comm.count // copies)

    @property
    def note(self) -> str:
        return f"sharded over {self._shard_count} workers, without arena and tape"

    @property
    def part(self) -> RowPart:
        return RowPart(self._shard_index, self._shard_count)

    @property
    def kind(self) -> str:
        return Synchronous.__name__  # whose updates it makes

    @property
    def setting(self) -> Strategy:
        return Synchronous() if (self.params, self.reduce_in) == ("fp32", "fp32") else self

    # --- the model ----------------------------------------------------------------------------------------

    def place_model(self, model: nn.Module, device: torch.device, optimizer: Any) -> nn.Module:
        """Divides the model between the workers, a part after the other; the optimizer gets its new parameters."""
        from torch.distributed.fsdp import FSDPModule, fully_shard

        if not isinstance(model, FSDPModule):
            self._check(model, optimizer)
            before = {id(param): name for param, (name, _) in owners(model).items()}
            options = self._options(device)
            for name, part in [*modules_named(model, self._patterns, "Sharded"), ("", model)]:
                materialize(name, part, device, self._init, self.comm)
                fully_shard(part, **options)
            _exchange_params(optimizer, before, {name: param for param, (name, _) in owners(model).items()})
        self._root, self._parts = model, [part for part in model.modules() if isinstance(part, FSDPModule)]
        for part in self._parts:  # gradients are those of terms that are divided already: their sum is wanted
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
        return model

    def _options(self, device: torch.device) -> dict[str, Any]:
        """How torch is to shard the model."""
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

        names: tuple[str, ...] = ("shard",)
        shape: tuple[int, ...] = (self.comm.count,)
        if (copies := self._copies()) > 1:
            names, shape = ("replicate", "shard"), (copies, self.comm.count // copies)
        options: dict[str, Any] = {"mesh": init_device_mesh(device.type, shape, mesh_dim_names=names)}
        params, reduce = _FORMATS[self.params], _FORMATS[self.reduce_in]
        if params is not None or reduce is not None:
            kind = torch.float32 if reduce is None else reduce
            options["mp_policy"] = MixedPrecisionPolicy(param_dtype=params, reduce_dtype=kind)
        if self._offload:
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type == "cuda")
        return options

    def _copies(self) -> int:
        """How many sharded copies of the model there are."""
        count = self.comm.count
        if self._replicas == "node":
            copies = count // int(os.environ.get("LOCAL_WORLD_SIZE", count))
        else:
            copies = self._replicas or 1
        if not copies or count % copies:
            raise ConfigError(
                f"replicas={self._replicas!r}: {count} workers cannot be divided into {copies} groups of equal size.",
                argument="replicas",
            )
        return copies

    def _check(self, model: nn.Module, optimizer: Any) -> None:
        if isinstance(optimizer, Mapping | Sequence) and optimizer:
            raise ConfigError(
                f"hr.Sharded trains with one optimizer, got a {type(optimizer).__name__} of several.",
                argument="optimizer",
            )
        if isinstance(optimizer, Optimizer) and optimizer.state:
            raise ConfigError(
                "the optimizer has made steps, and what it remembers belongs to complete parameters. Give a function "
                "that makes it, as in lambda params: torch.optim.AdamW(params, lr=3e-4).",
                argument="optimizer",
            )
        units = {name for name, _ in modules_named(model, self._patterns, "Sharded")}
        for name, module in model.named_modules():
            if name in units and isinstance(module, nn.ModuleList | nn.ModuleDict):
                raise ConfigError(f"Sharded: {name!r} is a list of modules. Shard what is in it: '{name}.*'.")
        for param, (name, _) in owners(model).items():
            if not param.ndim:
                raise ModelError(f"parameter {name!r} is a single number, which cannot be sharded. Give it shape (1,).")
            places = {_unit_of(each, units) for each, p in model.named_parameters(remove_duplicate=False) if p is param}
            if len(places) > 1:
                raise ModelError(
                    f"parameter {name!r} is used in several parts of the model ({', '.join(sorted(places))}), which "
                    "are sharded apart. Leave them out of the patterns, so that one part has it."
                )

    @property
    def writes_shards(self) -> bool:
        return self.comm.shard.index < self._shard_count  # those of one copy of the model do

    def all_gather_aside(self, value: Any) -> list[Any]:
        return self._aside.all_gather(value)

    def wrap(self, rows: Tensor, shape: Sequence[int]) -> Tensor:
        from torch.distributed.tensor import DTensor

        like = next(param for param in self._root.parameters() if is_sharded(param))
        stride = torch.empty(tuple(shape), device="meta").stride()
        rows = rows.to(like.device)
        size = torch.Size(shape)
        return DTensor.from_local(rows, like.device_mesh, like.placements, run_check=False, shape=size, stride=stride)

    # --- an update ----------------------------------------------------------------------------------------

    def most(self, count: int) -> int:
        """The largest of the counts of all workers."""
        number = torch.tensor([count])
        self.comm.all_reduce(number, "max")
        return int(number)

    def accumulate(self) -> None:
        """A pass of an update begins that is not the last one: gradients are added up here."""
        self._root.set_requires_gradient_sync(False)

    def listen(self, arena: Arena) -> None:
        self._root.set_requires_gradient_sync(True)

    def reduce(self, arena: Arena, reached: Sequence[bool], numbers: Tensor) -> tuple[Sequence[bool], Tensor]:
        """Gradients have been added up in the backward pass; the norm of them all is in their shards."""
        self._check_reached()
        gradients = [local(param.grad) for param in arena.params if param.grad is not None]
        norms = list(torch._foreach_norm(gradients, 2, dtype=torch.float64)) if gradients else []
        square = torch.stack(norms).square().sum().reshape(1) if norms else torch.zeros(1, dtype=torch.float64)
        numbers = torch.cat([numbers, square.to(numbers)])
        self.comm.all_reduce(numbers)
        copies = self.comm.count // self._shard_count
        arena.shared_norm = (numbers[-1] / copies).sqrt().to(next(iter(arena.params)).dtype)
        return reached, numbers[:-1]

    def _check_reached(self) -> None:
        """Raises unless the pass has reached the same parameters on every worker: otherwise torch adds up gradients of
        one with those of another."""
        reached = crc32(bytes(param.grad is not None for param in self._root.parameters()))
        extremes = torch.tensor([reached, -reached])
        self.comm.all_reduce(extremes, "max")
        if extremes.sum():
            missing = self.comm.all_gather([name for name, p in self._root.named_parameters() if p.grad is None])
            names = sorted(set().union(*missing) - set(missing[0]).intersection(*missing))
            raise ModelError(
                f"workers have used different parameters in one update: not all of them {', '.join(names[:5])}. With "
                "hr.Sharded each worker has to use the same ones: add what is not used with a factor of 0."
            )

    def consensus(self, replica: Replica) -> list[Tensor]:
        return [*replica.values, *mean(self.comm, replica.statistics, 1)]

    def everywhere(self, number: float) -> float:
        total = torch.tensor([number], dtype=torch.float64)
        self.comm.all_reduce(total)
        return float(total)

    def join_names(self, names: list[str]) -> list[str]:
        return sorted({name for each in self.comm.all_gather(names) for name in each})

    def add_up(self, sharded: int, common: int) -> int:
        return common + sum(map(int, self.comm.all_gather(sharded if self.writes_shards else 0)))

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Gathers parameters for passes, and lets go of them; a lost worker is what the others' connections show."""
        try:
            yield
        except BaseException as error:
            with suppress(AttributeError):  # torch has nothing to reset before the first pass
                self._root.reset_iter_state()
            if isinstance(error, RuntimeError) and _is_of_network(error):
                raise self.comm.explain(error) from error
            raise
        for part in self._parts:
            part.reshard()


def _is_of_network(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def _unit_of(name: str, units: set[str]) -> str:
    """The part that a parameter is gathered with: the innermost one around it."""
    around = [unit for unit in units if name.startswith(f"{unit}.")]
    return repr(max(around, key=len)) if around else "the model"


def _exchange_params(optimizer: Any, before: Mapping[int, str], now: Mapping[str, nn.Parameter]) -> None:
    """An optimizer that was made of complete parameters gets the sharded ones, in the same groups."""
    for group in optimizer.param_groups if isinstance(optimizer, Optimizer) else ():
        group["params"] = [now[before[id(param)]] if id(param) in before else param for param in group["params"]]
