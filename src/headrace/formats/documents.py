"""An `Encoding` as plain values, which a run and a cache keep as JSON."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..data.batch import Stream
from ..data.encoding import Encoding
from ..errors import CorruptError, HeadraceError
from .nulls import nulls_in


def document_of(encoding: Encoding) -> dict[str, Any]:
    """An encoding as values that JSON holds."""
    columns = encoding.columns
    return {
        "streams": [asdict(stream) | {"shape": [*stream.shape]} for stream in encoding.streams],
        "categories": {name: [*map(str, strings)] for name, strings in encoding.categories.items()},
        "nulls": dict(encoding.nulls),
        "columns": columns and {name: of if isinstance(of, str) else list(of) for name, of in columns.items()},
        "maps": [*encoding.maps],
    }


def encoding_in(document: Any) -> Encoding:
    """The encoding that was kept as plain values; raises CorruptError if they make no sense."""
    try:
        streams = tuple(Stream(**{**each, "shape": tuple(each["shape"])}) for each in document["streams"])
        categories = {str(name): _texts(strings) for name, strings in document["categories"].items()}
        nulls = {str(name): value for name, value in document["nulls"].items()}
        nulls_in(nulls)
        columns = document["columns"]
        if columns is not None:
            columns = {str(name): of if isinstance(of, str) else tuple(_texts(of)) for name, of in columns.items()}
        return Encoding(streams, categories, nulls, columns, tuple(_texts(document["maps"])))
    except (LookupError, TypeError, ValueError, AttributeError, HeadraceError) as error:
        raise CorruptError(f"the description of a run's data makes no sense: {error!r}") from None


def _texts(values: Any) -> list[str]:
    if isinstance(values, str | Mapping) or not all(isinstance(each, str) for each in values):
        raise TypeError(f"expected a list of strings, got {str(values)[:80]}")
    return list(values)
