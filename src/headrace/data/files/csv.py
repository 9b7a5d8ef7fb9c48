"""CSV: read into memory as a whole."""

from collections.abc import Mapping, Sequence

from ...batch import Stream
from ...errors import DataError
from .ipc import HeldStore, Wanted
from .paths import File, reading

_BLOCK_BYTES = 2**24  # types are told by the first block of the text

READ_AS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")


def open_csv(file: File, wanted: Wanted, declared: Sequence[Stream], types: Mapping[str, str]) -> HeldStore:
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
        convert = pa.csv.ConvertOptions(
            include_columns=names,
            column_types={name: pa.type_for_alias(kind) for name, kind in types.items() if name in names},
        )
        try:
            table = pa.csv.read_csv(pa.BufferReader(data), read, parse, convert).combine_chunks()
        except pa.ArrowInvalid as error:
            if "conversion error" not in str(error):
                raise
            raise DataError(f"{file}: {error}. Say what the column holds: dtypes={{'name': 'float64'}}.") from None
        return HeldStore(file, table.schema, table.to_batches(), declared)
