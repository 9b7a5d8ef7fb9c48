"""`headrace checkpoint list` and `export`: what a run has saved."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import RunError
from ...store.named import run_path
from .options import Which
from .output import iso_time, print_result, short_time


def list_checkpoints(run: str, /, *, json: bool = False) -> int:
    """Lists the checkpoints of a run; `headrace verify` reads them.

    Args:
        run: the directory of a run
        json: print JSON, for a program to read
    """
    from ...store import disk
    from ...store.checkpoints import Store
    from ...store.contents import COMMIT
    from ...store.run import CHECKPOINTS, run_id
    from ..find import check_run

    folder = run_path(run)
    check_run(folder)
    found = list[dict[str, Any]]()
    store = Store(folder / CHECKPOINTS, run_id(folder))
    for place in store.last_of_steps():
        path = store.path / place.name
        with suppress(FileNotFoundError):  # a trainer has let it go meanwhile
            size = sum(file.lstat().st_size for file in path.iterdir())
            written = iso_time((path / COMMIT).lstat().st_mtime)
            found.append({"step": place.step, "name": place.name, "bytes": size, "written": written})
    lines = [f"{each['name']}  {disk.size(each['bytes']):>8}  {short_time(each['written'])}" for each in found]
    print_result(json, found, "\n".join(lines) or f"{run} has no checkpoints")
    return 0


def export(
    run: str,
    /,
    *,
    out: Path | None = None,
    which: Which = None,
    json: bool = False,
) -> int:
    """Writes the weights of a checkpoint as one file of safetensors, for other programs.

    Args:
        run: the directory of a run
        out: the file to write (RUN/model.safetensors)
        which: best, last or a step (the best if a callback marked one, else the last)
        json: print JSON, for a program to read
    """
    from ...formats.write import check_place
    from ...step.weights import saved_weights
    from ...store import disk
    from ...store.codec import tensor_pieces
    from ...store.contents import MODEL, TRAINER
    from ..find import check_run

    folder = run_path(run)
    check_run(folder)
    out = out or folder / "model.safetensors"
    if out.exists():
        raise RunError(f"{out} is there already. Name another file, or remove it first.")
    check_place(out)
    contents = saved_weights(folder, which)
    if contents.document(TRAINER).get("base") is not None:
        raise RunError(
            f"{run} has what was trained, without the frozen base. Load it into a model with that base by "
            "hr.load_weights, and save that model."
        )
    with disk.failing(f"writing {out}", out.absolute().parent):
        disk.write_file(out, b"".join(tensor_pieces(out.name, contents.tensors_of(MODEL))))
    print_result(json, {"file": str(out), "step": contents.step}, f"{out}: the weights of step {contents.step}")
    return 0
