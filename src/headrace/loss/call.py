"""How a model is called: on which streams of a batch, and what an error says when it cannot take them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ..data.batch import Batch, Stream
from ..data.fields import has_rows
from ..data.ragged import Ragged
from ..errors import ConfigError, DataError, HeadraceError, is_out_of_memory, unknown

Inputs = str | Sequence[str] | Mapping[str, str] | None
"""Which streams the model gets: `None` for all but the targets, names, keywords to names, or "batch"."""


class Call:
    """Calls a model on the streams of a batch: all but the targets in order, or as `inputs` says."""

    def __init__(self, inputs: Inputs = None, targets: Iterable[str] = ("y",)) -> None:
        self.inputs, self.targets = inputs, frozenset(targets)
        self.known: dict[tuple[str, ...], Callable[[nn.Module, Batch], Any]] = {}
        """The calls by the names of the streams, of those that were made before."""

    def __call__(self, model: nn.Module, batch: Batch) -> Any:
        names = tuple(batch.fields)
        way = self.known.get(names)
        if way is not None:
            return way(model, batch)
        way = self.way(names)
        outputs = way(model, batch)
        self.known[names] = way  # only now: the model may have refused them
        return outputs

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"known": dict.fromkeys(self.known)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, known={})
        self.known = {names: self.way(names) for names in state["known"]}

    def way(self, names: Sequence[str]) -> Callable[[nn.Module, Batch], Any]:
        """The call for batches with these streams, made once, so that a batch costs no looking up."""
        if self.inputs == "batch":
            return lambda model, batch: model(batch)
        inputs: Sequence[str] | Mapping[str, str]
        if self.inputs is None:
            inputs = [name for name in names if name not in self.targets]
            if not inputs:
                raise ConfigError(f"no stream is left for the model: {', '.join(names)} are targets. Say inputs=.")
            for known in self.known:
                self.check_order(known, names)
        else:
            inputs = [self.inputs] if isinstance(self.inputs, str) else self.inputs
        paths = list(inputs.values() if isinstance(inputs, Mapping) else inputs)
        for path in paths:
            if path.partition(".")[0] not in names:
                raise ConfigError(f"inputs= names an {unknown('stream', path.partition('.')[0], names)}")
        if isinstance(inputs, Mapping):
            return lambda model, batch: model(**{key: _view(batch, path) for key, path in inputs.items()})
        if len(paths) == 1 and "." not in paths[0]:
            only = paths[0]
            return lambda model, batch: model(batch.fields[only])
        return lambda model, batch: model(*[_view(batch, path) for path in paths])

    def check_order(self, known: Sequence[str], names: Sequence[str], data: str = "these") -> None:
        """Raises if the model gets known streams by their order, and one of others would stand in the place of another.

        The last ones may be missing, as arguments may that have defaults.
        """
        before, inputs = ([name for name in each if name not in self.targets] for each in (known, names))
        pairs = zip(before, inputs, strict=False)
        if self.inputs is None and any(was != now and (was in inputs or now in before) for was, now in pairs):
            raise DataError(
                f"the model gets the streams {', '.join(before)}, by their order, and {data} data have them as "
                f"{', '.join(inputs)}. Give all of them in the same order, or say inputs={before}."
            )


def first_call(call: Callable[[nn.Module, Batch], Any], model: nn.Module, batch: Batch) -> Any:
    """Calls a model with data that it has not seen before; if it fails, says what it was given and what it expects."""
    try:
        return call(model, batch)
    except HeadraceError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if is_out_of_memory(error):
            raise
        raise DataError(_refusal(model, batch, error)) from error


def _refusal(model: nn.Module, batch: Batch, error: Exception) -> str:
    """What the model was given and what it expects, where it can be told."""
    given = ", ".join(str(Stream.of(k, f)) if has_rows(f) else k for k, f in batch.fields.items())
    layers = ((name, m) for name, m in model.named_modules() if m._parameters and not list(m.children()))
    name, layer = next(layers, ("", model))
    weights = next((p.dtype for p in model.parameters()), None)
    dtype = "" if weights is None else f", {str(weights).removeprefix('torch.')}"
    views = [f"{k}.padded" for k, f in batch.fields.items() if isinstance(f, Ragged) and isinstance(f.values, Tensor)]
    hint = f" Sequences reach a model as one tensor by a view of them: inputs={views[0]!r}." if views else ""
    return (
        f"the model failed on its first batch, {batch.rows} rows of {given}: {error}\n"
        f"  Its first layer is {name!r}: {layer}{dtype}. Change the stream's shape or dtype, or say inputs=.{hint}"
    )


def _view(batch: Batch, path: str) -> Any:
    """A stream, or a view of it: "words.mask"."""
    stream, *names = path.split(".")
    found = batch[stream]
    for name in names:
        if name.startswith("_") or not hasattr(found, name):
            views = [each for each in dir(found) if not each.startswith("_")]
            raise ConfigError(f"inputs= names {path!r}: {unknown('view', name, views[:24])}")
        found = getattr(found, name)
        found = found() if callable(found) else found
    return found
