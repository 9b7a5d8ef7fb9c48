"""CSV: read into memory as a whole."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..data.batch import Stream
from ..errors import DataError
from .arrow import HeldArrowFile, Wanted
from .paths import DataFile, reading

_BLOCK_BYTES = 2**24  # types are told by the first block of the text

READ_AS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")


def open_csv(file: DataFile, wanted: Wanted, declared: Sequence[Stream], types: Mapping[str, str]) -> HeldArrowFile:
    """The columns of a CSV file with a header; `types` are the Arrow types of those that are known already."""
    import pyarrow as pa
    import pyarrow.csv

    packed = file.name.lower().endswith(".gz")
    separator = "\t" if ".tsv" in file.name.lower() else ","
    with reading(file):
        data = file.load()
        if packed:
            with pa.CompressedInputStream(pa.BufferReader(data), "gzip") as text:
                data = text.read_buffer()
        parse = pa.csv.ParseOptions(delimiter=separator)
        read = pa.csv.ReadOptions(block_size=_BLOCK_BYTES)
        with pa.csv.open_csv(pa.BufferReader(data), read, parse) as reader:
            names = wanted(reader.schema.names)
            types = {name: kind for name, kind in types.items() if name in names}
            first = next(reader, None) if types else None
        types = {name: kind for name, kind in types.items() if kind == "string" or not _strings(first, name)}
        convert = pa.csv.ConvertOptions(
            include_columns=names,
            column_types={name: pa.type_for_alias(kind) for name, kind in types.items()},
        )
        try:
            table = pa.csv.read_csv(pa.BufferReader(data), read, parse, convert).combine_chunks()
        except pa.ArrowInvalid as error:
            if "conversion error" not in str(error):
                raise
            raise DataError(f"{file}: {_advised(str(error), reader.schema.names, types)}") from None
        _refuse_empty(file, table)
        return HeldArrowFile(file, table.schema, table.to_batches(), declared)


def _refuse_empty(file: DataFile, table: Any) -> None:
    """Raises on a column of which nothing tells what it holds."""
    import pyarrow.types as pt

    if not table.num_rows and any(pt.is_null(field.type) for field in table.schema):
        raise DataError(f"{file} has no rows.")
    if empty := [name for name in table.column_names if 0 < table.num_rows == table[name].null_count]:
        raise DataError(
            f"column {empty[0]!r} of {file} is empty in every row. "
            "Fill it, or leave it out of the columns that are read."
        )


def _strings(first: Any, name: str) -> bool:
    """Whether a column is one of strings by its first rows, none of which begins as a number does."""
    import pyarrow.compute as pc
    import pyarrow.types as pt

    if first is None:
        return False
    column = first.column(name)
    return bool(pt.is_string(column.type)) and not pc.any(pc.match_substring_regex(column, r"^\s*[+-]?[0-9.]")).as_py()


def _advised(said: str, names: Sequence[str], types: Mapping[str, str]) -> str:
    """What Arrow says of a value that is not of the type of its column, and what can be done."""
    found = re.search(r"column #([0-9]+)", said)
    name = names[int(found[1])] if found and int(found[1]) < len(names) else "name"
    said = said.rstrip(".")
    if "invalid UTF8" in said:
        return f"{said}. Write the file in UTF-8: iconv -f LATIN1 -t UTF-8."
    if name in types:
        return f"{said}, in column {name!r}. Correct it, or give it another type than {types[name]}."
    return (
        f"{said}, in column {name!r}, which begins otherwise. Say what it holds: dtypes={{{name!r}: 'float64'}}, or, "
        f"if it holds strings, categories={{{name!r}: [...]}}."
    )
