"""A file that is written whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ... import disk
from ...errors import ConfigError, HeadraceError


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """The name of a new file, which stands under `path` at the end, on the disk; after an error nothing has changed."""
    beside = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}.tmp")  # 255 bytes are the most for a name
    try:
        _check(path)
        yield beside
        with disk.File(beside, new=False) as written:
            written.sync()
        disk.replace(beside, path)
        disk.sync_dir(path.parent)
    except HeadraceError:
        raise
    except OSError as error:
        said = error.strerror or str(error)
        raise ConfigError(f"cannot write {path}: {said}. Name a place that can be written, with room for it.") from None
    finally:
        with suppress(OSError):
            os.unlink(beside)


def _check(path: Path) -> None:
    """Raises at once what would be found out at the end."""
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write {path}: there is no directory {path.parent}. Make it first.")
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a directory. Name a file in it.")
    with suppress(FileNotFoundError):
        os.stat(path)  # a name that is too long
