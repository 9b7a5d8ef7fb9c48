"""A file that is written whole or not at all."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import ConfigError, HeadraceError
from ..store import disk


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """The name of a new file, which stands under `path` at the end, on the disk; after an error nothing has changed."""
    check_place(path)
    beside = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}.tmp")  # 255 bytes are the most for a name
    try:
        yield beside
        with disk.File(beside, new=False) as written:
            written.sync()
        disk.replace(beside, path)
        disk.sync_dir(path.parent)
    except HeadraceError:
        raise
    except OSError as error:
        raise _refused(path, error) from None
    finally:
        with suppress(OSError):
            os.unlink(beside)


def check_place(path: Path) -> None:
    """Raises at once what would be found out at the end."""
    try:
        if not path.parent.is_dir():
            raise ConfigError(f"cannot write {path}: there is no directory {path.parent}. Make it first.")
        if path.is_dir():
            raise ConfigError(f"cannot write {path}: it is a directory. Name a file in it.")
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:  # a name that is too long is one, too
        raise _refused(path, error) from None


def _refused(path: Path, error: OSError) -> ConfigError:
    said = error.strerror or str(error)
    return ConfigError(f"cannot write {path}: {said}. Name a place that can be written, with room for it.")
