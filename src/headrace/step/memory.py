"""How much memory control groups of Linux allow."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")
"""Where the files of the system are."""


@dataclass(frozen=True, slots=True)
class Group:
    """A control group that this process is in: bytes that all in it may hold together, and those that they do hold."""

    limit: int
    held: int

    @property
    def free(self) -> int:
        """How much more they may hold."""
        return max(0, self.limit - self.held)


def groups() -> list[Group]:
    """The control groups of memory that this process is in, the innermost first, of both versions of them."""
    found = [_group(folder) for folder in _folders()]
    return [group for group in found if group is not None]


def _folders() -> Iterator[Path]:
    """Where the groups are described: that of this process, and those around it as far as they can be seen."""
    with suppress(OSError, ValueError, IndexError):
        lines = (line.split(":", 2) for line in (ROOT / "proc/self/cgroup").read_text().splitlines())
        own = {"cgroup" if names else "cgroup2": path for _, names, path in lines if names in ("", "memory")}
        for line in (ROOT / "proc/self/mountinfo").read_text().splitlines():
            before, _, after = line.partition(" - ")
            root, mounted = before.split()[3:5]
            kind, _, options = after.split()[:3]
            if kind not in own or (kind == "cgroup" and "memory" not in options.split(",")):
                continue
            path, top = PurePosixPath(own[kind]), PurePosixPath(root)
            within = path.relative_to(top) if path.is_relative_to(top) else PurePosixPath()  # seen from a container
            base = ROOT / mounted.lstrip("/")
            yield from (base / inner for inner in [within, *within.parents])


def _group(folder: Path) -> Group | None:
    """What is said of a group, if it has a limit; pages of files that nobody uses are not held."""
    for limit, held, idle in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with suppress(OSError, ValueError):
            most, now = int((folder / limit).read_text()), int((folder / held).read_text())
            lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            return Group(most, now - next((int(words[1]) for words in lines if words[0] == idle), 0))
    return None
