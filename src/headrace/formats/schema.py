"""Streams as Arrow types: which stream a column of a schema is, and the schema in which streams are written.

A dense stream is a primitive column or a FixedSizeList of one, a sequence is a LargeList, and a sparse row is a
LargeList of {index, value}, or of indices alone where every value is 1. What the type does not show is JSON in the
metadata of the field.
"""

import json
from collections.abc import Collection, Sequence
from math import prod
from typing import Any

from ..data.batch import Stream
from ..data.encoding import Categories
from ..errors import DataError
from .categories import ColumnPlace, is_text
from .lazy import pa, pt

METADATA = b"headrace"
NUMBERS = {
    "uint8": "uint8",
    "uint16": "uint16",
    "uint32": "uint32",
    "uint64": "uint64",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
    "bool": "bool",
}
DTYPES = {"bfloat16": "uint16", "float16": "float16", **{name: name for name in NUMBERS.values()}}


def stream_name(column: str) -> str:
    """The name that a column has as a stream, which has no dots, and many a CSV file has: "Sepal.Length"."""
    return column.replace(".", "\u2024")


def streams_of(schema: Any, declared: Sequence[Stream] = (), where: str = "") -> dict[str, Stream]:
    """The stream that each column of a schema is; `declared` ones are taken as they are, where their type fits."""
    known = {stream.name: stream for stream in declared}
    found = {field.name: known.get(field.name) or _stream_of(field, where) for field in schema}
    for field in schema:
        if not fits(field.type, found[field.name]):
            raise DataError(differs(found[field.name], field.type, ColumnPlace(field.name, where)))
    return found


def schema_of(streams: Sequence[Stream], ones: Collection[str] = (), categories: Categories | None = None) -> Any:
    """The schema in which streams are written; `ones` are sparse streams whose every value is 1."""
    return pa.schema([_field_of(s, s.name in ones, (categories or {}).get(s.name)) for s in streams])


def categories_in(schema: Any) -> dict[str, list[str]]:
    """The categories in the metadata of a schema that `schema_of` made."""
    found = {field.name: _metadata(field, ColumnPlace(field.name)).get("categories") for field in schema}
    return {name: held for name, held in found.items() if isinstance(held, list)}


def _stream_of(field: Any, where: str) -> Stream:
    """The stream that one column is, by its metadata or by its type alone."""
    place = ColumnPlace(field.name, where)
    said = _metadata(field, place)
    if "layout" in said:
        try:
            shape, dtype = tuple(int(size) for size in said["shape"]), said["dtype"]
            return Stream(stream_name(field.name), shape, dtype, said["layout"], bool(said["sequence"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{place} says of itself what makes no sense: {said!r} ({error}). Write it again."
            ) from None
    kind = field.type
    sequence = is_list(kind)
    kind = kind.value_type if sequence else kind
    if sequence and (is_list(kind) or is_pair(kind)):
        raise DataError(f"{place} holds {_text(field.type)}{_undeclared(field.name, kind)}")
    shape = _shape(kind)
    leaf = storage(kind)
    leaf = leaf.value_type if is_fixed(leaf) else leaf
    if is_text(leaf):
        return Stream(stream_name(field.name), shape, "int64", sequence=sequence)
    return Stream(stream_name(field.name), shape, _dtype(leaf, place), sequence=sequence)


def _undeclared(name: str, kind: Any) -> str:
    """The error for a list of lists or of pairs, whose type does not show which stream it is."""
    nested = is_list(kind)
    if nested and not pt.is_integer(kind.value_type) and not is_pair(kind.value_type):
        return ", lists in lists, which no stream is. Make the inner ones of a fixed size, or join them."
    declared = f"{name!r}, (1000,), layout='sparse'{', sequence=True' if nested else ''}"
    return (
        f": whether that is sparse, and how wide, is not written in the file. Declare it: streams=[Stream({declared})]."
    )


def fits(kind: Any, stream: Stream) -> bool:
    """Whether the rows of a stream may be read from a column of this type."""
    kind = storage(kind)
    if stream.sequence:
        if not is_list(kind):
            return False
        kind = kind.value_type
    if stream.layout == "sparse":
        if not is_list(kind) or len(stream.shape) != 1:
            return False
        kind = kind.value_type
        if not is_pair(kind):
            return bool(pt.is_integer(kind))
        return bool(pt.is_integer(kind.field(0).type)) and _holds(kind.field(1).type, stream.dtype)
    kind = storage(kind)
    if is_list(kind) and len(stream.shape) == 1:  # lists of one length, which is seen as they are read
        return _holds(kind.value_type, stream.dtype)
    if is_fixed(kind):
        return prod(stream.shape) == kind.list_size and stream.shape != () and _holds(kind.value_type, stream.dtype)
    return stream.shape == () and _holds(kind, stream.dtype)


def _holds(leaf: Any, dtype: str) -> bool:
    if is_text(leaf):
        return dtype == "int64"
    if pt.is_dictionary(leaf):
        leaf = leaf.value_type
    return NUMBERS.get(str(leaf)) == DTYPES.get(dtype, "")


def index_in(schema: Any) -> set[str]:
    """The columns that were the index of a frame of pandas."""
    try:
        said = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"]
        return {name for name in said if isinstance(name, str)}
    except (KeyError, TypeError, ValueError):
        return set()


def differs(stream: Stream, kind: Any, place: ColumnPlace) -> str:
    return f"{place}: expected {stream}, got {_text(kind)}. Declare the stream as it is stored, or rewrite the file."


def _field_of(stream: Stream, ones: bool, categories: Sequence[str] | None) -> Any:
    if stream.dtype not in DTYPES:
        raise DataError(f"stream {stream.name!r}: Arrow has no {stream.dtype}. Convert it to float32 or int64.")
    leaf = kind = pa.type_for_alias(DTYPES[stream.dtype])
    if categories is not None:
        leaf = kind = pa.dictionary(pa.int32(), pa.large_string())
    if stream.layout == "sparse":
        index = pa.int32() if prod(stream.shape) < 2**31 else pa.int64()
        kind = pa.large_list(index if ones else pa.struct([("index", index), ("value", leaf)]))
    elif stream.shape:
        kind = pa.list_(leaf, prod(stream.shape))
    if stream.sequence:
        kind = pa.large_list(kind)
    return pa.field(stream.name, kind, metadata=_metadata_of(stream, categories))


def _metadata_of(stream: Stream, categories: Sequence[str] | None) -> dict[bytes, bytes] | None:
    """What the type alone would not show."""
    said: dict[str, Any] = {}
    if stream.layout == "sparse" or len(stream.shape) > 1 or stream.dtype == "bfloat16":
        said |= {"shape": list(stream.shape), "dtype": stream.dtype, "layout": stream.layout}
        said |= {"sequence": stream.sequence}
    if categories is not None:
        said |= {"categories": list(categories)}
    return {METADATA: json.dumps(said).encode()} if said else None


def _metadata(field: Any, place: ColumnPlace) -> dict[str, Any]:
    if METADATA not in (field.metadata or {}):
        return {}
    raw = field.metadata[METADATA]
    try:
        said = json.loads(raw)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise DataError(f"{place} has metadata of headrace that is not JSON: {raw[:80]!r}. Write the file again.")
    return said


def storage(kind: Any) -> Any:
    return kind.storage_type if isinstance(kind, pa.FixedShapeTensorType) else kind


def _shape(kind: Any) -> tuple[int, ...]:
    """The shape of one item of this type."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return tuple(kind.shape)
    return (kind.list_size,) if is_fixed(kind) else ()


def is_list(kind: Any) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind))


def is_fixed(kind: Any) -> bool:
    return bool(pt.is_fixed_size_list(kind))


def is_pair(kind: Any) -> bool:
    return bool(pt.is_struct(kind)) and [field.name for field in kind] == ["index", "value"]


def _dtype(leaf: Any, place: ColumnPlace) -> str:
    if pt.is_dictionary(leaf):
        leaf = leaf.value_type
    if (dtype := NUMBERS.get(str(leaf))) is not None:
        return dtype
    raise DataError(f"{place} holds {_text(leaf)}, which is not a number. {_advice(leaf)}")


def _advice(kind: Any) -> str:
    if pt.is_temporal(kind):
        return "Cast it to int64 before it is written, or leave it out: columns= says which are read."
    if pt.is_decimal(kind):
        return "Cast it to float64."
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return "Encode it as numbers, or text in UTF-8, or leave it out: columns= says which are read."
    if pt.is_struct(kind):
        return "Make a column of each of its fields."
    if pt.is_null(kind):
        return "Fill it or leave it out: columns= says which are read."
    return "Encode it as numbers, or leave it out: columns= says which are read."


def _text(kind: Any) -> str:
    text = str(kind)
    return text if len(text) < 100 else text[:97] + "..."
