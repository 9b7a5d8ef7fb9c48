"""The layers of a model as a table: kinds, shapes of outputs, and how many parameters there are."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from ..data.fields import Rows

HEADS = ("layer", "kind", "output", "parameters", "trained")


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that have no others within them, or parameters of their own."""
    named = {
        name: module for name, module in model.named_modules() if module._parameters or not list(module.children())
    }
    return {name or "(model)": module for name, module in named.items()}


def shapes_in(model: nn.Module, call: Callable[[], Any], rows: int) -> dict[str, str]:
    """The shape of what each layer returns in this call, of so many rows."""
    found: dict[str, str] = {}

    def look(name: str) -> Callable[..., None]:
        def note(module: nn.Module, inputs: Any, outputs: Any) -> None:
            found[name] = shape_of(outputs, rows)

        return note

    with ExitStack() as stack:
        for name, module in layers_of(model).items():
            stack.callback(module.register_forward_hook(look(name)).remove)
        call()
    return found


def shape_of(outputs: Any, rows: int) -> str:
    """The shapes in what a layer returned; a first dimension of all rows is called so."""
    shapes = []
    for leaf in tree_flatten(outputs)[0]:
        if isinstance(leaf, Tensor):
            sizes = list(map(str, leaf.shape))
            shapes.append(f"({', '.join(['rows', *sizes[1:]] if sizes[:1] == [str(rows)] else sizes)})")
        else:
            shapes.append("sequences" if isinstance(leaf, Rows) else type(leaf).__name__)
    return ", ".join(shapes)


def table_of(model: nn.Module, shapes: Mapping[str, str] | None) -> str:
    """The table; without `shapes` there is no column for them."""
    lines = [HEADS]
    for name, layer in layers_of(model).items():
        own = [parameter for parameter in layer._parameters.values() if parameter is not None]
        shape = (shapes or {}).get(name, "(not called)")
        lines.append((name, type(layer).__name__, shape, *_counts(own)))
    if shapes is None:
        lines = [(*line[:2], *line[3:]) for line in lines]  # type: ignore[misc]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = [_line(line, widths) for line in lines]
    total, trained = _counts([*model.parameters()])  # one that several layers share counts once
    return "\n".join([*shown, f"{total} parameters, {trained} of them trained"])


def _counts(parameters: Sequence[Tensor]) -> tuple[str, str]:
    """How many numbers there are, and how many of them are trained."""
    trained = sum(each.numel() for each in parameters if each.requires_grad)
    return f"{sum(each.numel() for each in parameters):,}", f"{trained:,}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Text to the left, numbers to the right."""
    split = len(cells) - 2
    placed = [
        cell.ljust(width) if k < split else cell.rjust(width)
        for k, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(placed).rstrip()
