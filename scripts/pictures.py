"""Makes the pictures of the documentation, and the figures of two pages, from what was measured and what runs.

    python scripts/pictures.py            all of them
    python scripts/pictures.py overhead   those whose names begin so; also: drawn (without training anything)

Pictures that show a training keep a digest of the code that they show in docs/pictures/digests.json; a test compares
it. The others are drawn anew by that test.
"""

import hashlib
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
FIGURES = (ROOT / "README.md", ROOT / "docs" / "how_it_works.md")
"""The pages with what was measured: sentences, and a table."""
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "src"), str(ROOT / "tests")]

from diagrams import DIAGRAMS  # noqa: E402
from drawing import GREY, INK, LINE, TEAL, Drawing  # noqa: E402
from kit.imports import module_at  # noqa: E402

RECIPE = "recipes/digits.py"
SHOWN = {  # by picture: the files whose code it shows
    "progress": ("src/headrace/watch/progress.py", RECIPE),
    "report": ("src/headrace/watch/report/*", RECIPE),
    "spike": ("src/headrace/record/why.py", "src/headrace/record/without.py"),
    "same_bits": ("src/headrace/step/parts.py", "src/headrace/workers/tree.py"),
}
NAMES = {
    "raw": "hand-written loop",
    "compiled": "torch.compile",
    "jax": "JAX, jit",
    "raw-loader": "loop with DataLoader",
    "raw-fused": "loop, fused optimizer",
    "accelerate": "Accelerate",
    "lightning": "Lightning",
    "ignite": "Ignite",
    "keras": "Keras",
}
AGAIN = "raw-again"  # the control of the benchmark


def main(wanted: str = "") -> None:
    PICTURES.mkdir(exist_ok=True)
    for name, text in drawn().items():
        if wanted in ("", "drawn") or name.startswith(wanted):
            (PICTURES / f"{name}.svg").write_text(text)
    for page in FIGURES:
        page.write_text(with_figures(page.read_text()))
    known = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}
    with tempfile.TemporaryDirectory() as room:
        for name, make in MADE.items():
            if name.startswith(wanted):
                make(Path(room))
                known[name] = digest(name)
    DIGESTS.write_text(json.dumps(known, indent=2) + "\n")


DIGESTS = PICTURES / "digests.json"


def digest(name: str) -> str:
    """The sha256 of the files that a picture shows."""
    found = hashlib.sha256()
    for pattern in SHOWN[name]:
        for path in sorted(path for path in ROOT.glob(pattern) if path.is_file()):
            found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


# --- drawn from what is committed -------------------------------------------------------------------------


def drawn() -> dict[str, str]:
    """The pictures that need no training, by name."""
    return {
        "overhead": overhead(results()),
        "schedules": schedules(),
        **{name: draw() for name, draw in DIAGRAMS.items()},
    }


def schedules() -> str:
    """The curves of the schedules that have names, side by side."""
    import headrace as hr

    named: dict[str, Callable[[float], float]] = {
        "Cosine(0.1)": hr.Cosine(0.1),
        "Linear(0.1)": hr.Linear(0.1),
        "InverseSqrt(0.1)": hr.InverseSqrt(0.1),
        "WSD(0.1, decay=0.2)": hr.WSD(0.1, decay=0.2),
        "WSD(0.1, 0.4, shape='sqrt')": hr.WSD(0.1, 0.4, shape="sqrt"),
        "OneCycle(0.3)": hr.OneCycle(0.3),
    }
    parts = ['<rect width="660" height="280" rx="8" fill="#ffffff"/>']
    for number, (name, curve) in enumerate(named.items()):
        x, y = 16 + 216 * (number % 3), 34 + 136 * (number // 3)
        points = " ".join(f"{x + 2 * k},{y + 90 - 80 * curve(k / 100):.1f}" for k in range(101))
        parts += [
            f'<text x="{x}" y="{y - 10}" font-size="13" fill="{INK}">{name}</text>',
            f'<path d="M{x} {y}V{y + 90}H{x + 200}" fill="none" stroke="{LINE}"/>',
            f'<polyline points="{points}" fill="none" stroke="{TEAL}" stroke-width="2"/>',
        ]
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 660 280" font-family="system-ui, sans-serif">'
    return "\n".join([head, "<title>The rate over a training</title>", *parts, "</svg>"]) + "\n"


def results() -> dict[str, Any]:
    """The record of the benchmark `overhead`."""
    record: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "overhead.json").read_text())
    return record


def timed(record: dict[str, Any]) -> dict[str, dict[str, float]]:
    """What was timed, and the time that each peer took, in times that of the hand-written loop."""
    return {
        part["title"].removeprefix("fit, "): {peer: each["to_raw"]["median"] for peer, each in part["peers"].items()}
        for part in record["parts"].values()
        if "peers" in part
    }


def where(record: dict[str, Any]) -> str:
    """The processor, the threads and the builds that the figures belong to."""
    words: str = module_at(ROOT / "benchmarks" / "machine.py").in_words(record["machine"])
    return words


def overhead(record: dict[str, Any]) -> str:
    """Bars for each work: the time of a training, shortest first."""
    found = {
        title: {peer: ratio for peer, ratio in peers.items() if peer != AGAIN}
        for title, peers in timed(record).items()
        if not title.startswith(("validate", "predict"))
    }
    row, wide, name_room, bar_room = 22, 380, 146, 176
    most = max(max(peers.values()) for peers in found.values())
    works = list(found.items())
    pairs = [works[k : k + 2] for k in range(0, len(works), 2)]
    tops, height = [], 60
    for pair in pairs:
        tops.append(height)
        height += 34 + row * max(len(peers) for _, peers in pair)
    drawing = Drawing(2 * wide, height + 6, "Time of a training, relative to a hand-written loop")
    drawing.text(
        16, 26, "Training time relative to a hand-written loop (1.00 is the loop; shorter is better)", bold=True
    )
    drawing.text(16, 46, where(record), size=12, color=LINE)
    for pair, top in zip(pairs, tops, strict=True):
        for column, (title, peers) in enumerate(pair):
            x = 16 + wide * column
            drawing.text(x, top + 16, title, size=12, color=LINE)
            for number, (peer, ratio) in enumerate(sorted(peers.items(), key=lambda each: each[1])):
                y, ours = top + 26 + row * number, peer == "headrace"
                drawing.text(x + name_room - 8, y + 13, NAMES.get(peer, peer), size=12, anchor="end", bold=ours)
                drawing.rectangle(x + name_room, y, bar_room * ratio / most, 16, TEAL if ours else GREY)
                drawing.text(x + name_room + bar_room * ratio / most + 6, y + 13, f"{ratio:.2f}", size=12, bold=ours)
    return drawing.svg


def with_figures(text: str) -> str:
    """A page with what was measured, in the places that are marked for it."""
    table, sentences = figures(results())
    for name, made in (("table", table), ("figures", sentences)):
        marks = rf"(<!-- {name}[^\n]*-->\n).*?(<!-- end of {name} -->)"
        text = re.sub(marks, rf"\g<1>{made}\n\g<2>", text, flags=re.DOTALL)
    return text


def figures(record: dict[str, Any]) -> tuple[str, str]:
    """A table of what was timed; where it was measured, and where headrace is not the fastest, in sentences."""
    rows = ["| what is timed | headrace | the loop once more | the fastest of the others |", "|---|---|---|---|"]
    no_faster, beaten = [], []
    for title, peers in timed(record).items():
        ours = peers["headrace"]
        others = {peer: ratio for peer, ratio in peers.items() if peer not in ("raw", AGAIN, "headrace")}
        fastest = min(others, key=lambda peer: others[peer], default="")
        named = f"{NAMES.get(fastest, fastest)} {others[fastest]:.2f}" if fastest else ""
        again = f"{peers[AGAIN]:.2f}" if AGAIN in peers else ""
        rows.append(f"| {title} | {ours:.2f} | {again} | {named} |")
        no_faster += [f"“{title}”"] if round(ours, 2) >= 1 else []
        beaten += [f"“{title}” ({named})"] if fastest and others[fastest] < ours else []
    targets = record["targets"]
    sentences = (
        f"Measured on: {where(record)}; medians of {record['repeats']} repeats.",
        f"headrace is not faster than the loop in {', '.join(no_faster) or 'none of these'}.",
        f"Something else is faster than headrace in {', '.join(beaten) or 'none of these'}.",
        f"{sum(not each['reached'] for each in targets)} of the benchmark's {len(targets)} targets are missed.",
    )
    return "\n".join(rows), "\n".join(textwrap.wrap(" ".join(sentences), 120, break_on_hyphens=False))


# --- made by a training -----------------------------------------------------------------------------------


def headrace(*words: str) -> list[str]:
    return [sys.executable, "-m", "headrace", *words]


def environment() -> dict[str, str]:
    left_out = ("CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return kept | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "TERM": "xterm-256color"}


def progress(room: Path) -> None:
    """The terminal in the middle of the third epoch."""
    from kit.screens import screen

    columns, frames = 172, []
    child, ours = pty.fork()
    if not child:
        os.chdir(ROOT)
        command = headrace("fit", RECIPE, "--epochs", "3", "--width", "96", "--run", str(room / "progress"))
        os.execvpe(command[0], command, environment() | {"NO_COLOR": "1", "COLUMNS": str(columns)})
    sent = ""
    while chunk := _read(ours):
        sent += chunk
        lines = [line.rstrip() for line in screen(sent.replace("\r\n", "\n"), columns) if line.strip()]
        if lines and re.match(r"epoch 3/3 .*batch (9|1\d)/", lines[-1]):
            frames.append(lines)
    os.waitpid(child, 0)
    shown = [f"$ headrace fit {RECIPE} --epochs 3 --width 96", *frames[0]]
    drawing = Drawing(1266, 30 + 22 * len(shown), "The progress of a training in a terminal")
    drawing.rectangle(6, 6, 1254, 18 + 22 * len(shown), INK)
    for number, line in enumerate(shown):
        drawing.code(18, 28 + 22 * number, line, color="#4dd0c0" if "━" in line else "#eceff1", size=12)
    (PICTURES / "progress.svg").write_text(drawing.svg)


def _read(descriptor: int) -> str:
    try:
        return os.read(descriptor, 1 << 16).decode(errors="replace")
    except OSError:  # the other end is closed
        return ""


def report(room: Path) -> None:
    """The page of a run: on a wide screen and on a telephone, light and dark."""
    from kit.browser import DARK, shoot
    from PIL import Image

    run = room / "digits"
    for words in (("fit", RECIPE, "--run", str(run), "--epochs", "12"), ("report", str(run))):
        subprocess.run(headrace(*words), cwd=ROOT, env=environment(), check=True, capture_output=True, timeout=300)
    page, phone = run / "report.html", room / "phone.html"
    frame = f'<iframe style="border:0;width:360px;height:780px" src="{page.as_uri()}"></iframe>'
    phone.write_text(f'<!doctype html><body style="margin:0">{frame}')
    for light, options in (("light", ()), ("dark", (DARK,))):
        for name, shown, size in (("wide", page, (1200, 900)), ("phone", phone, (360, 780))):
            picture = PICTURES / f"report-{name}-{light}.png"
            shoot(shown.as_uri(), picture, max(size[0], 500), size[1], *options)
            with Image.open(picture) as opened:
                small = opened.convert("RGB").crop((0, 0, *size)).quantize(96)
            small.save(picture, optimize=True)


def same_bits(room: Path) -> None:
    """The losses of a transformer with dropout on 1, 3 and 8 workers, without parts and with them."""
    import warnings

    import torch
    from kit import worker_trainings as kit

    import headrace as hr

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    fit = {"epochs": 12, "log_every": "1 step"}
    drawing = Drawing(760, 250, "The losses of one training on 1, 3 and 8 workers, without parts and with them")
    styles = (("1 worker", "#80cbc4", 7), ("3 workers", GREY, 3.5), ("8 workers", INK, 1.2))
    for panel, parts in enumerate((None, 8)):
        left = 16 + 380 * panel
        drawing.text(left, 26, "Synchronous()" if parts is None else f"Synchronous(parts={parts})", bold=True)
        for workers, (_, color, width) in zip((1, 3, 8), styles, strict=True):
            bits = hr.launch(kit.train_in_parts, "transformer, dropout", fit, parts, workers=workers)
            losses = bits["reported train/loss"]
            heights = (40 + 170 * (losses.max() - losses) / (losses.max() - losses.min())).tolist()
            drawing.curve([(left + 348 * k / len(heights), y) for k, y in enumerate(heights)], color, width)
    for number, (name, color, width) in enumerate(styles):
        x = 16 + 110 * number
        drawing.curve([(x, 236), (x + 24, 236)], color, width)
        drawing.text(x + 30, 240, name, size=12)
    drawing.text(744, 240, "loss of every update; a transformer with dropout", size=12, color=LINE, anchor="end")
    (PICTURES / "same_bits.svg").write_text(drawing.svg)


def spike(room: Path) -> None:
    """The losses of the training of docs/debug.md with a poisoned row and without it, and what a spike is made of."""
    import warnings

    import torch

    import headrace as hr

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    program = (ROOT / "docs" / "debug.md").read_text().split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    here = os.getcwd()
    os.chdir(room)
    try:
        exec(program, names)
        losses = names["history"]["train/loss"]
        step = max(range(21, len(losses) + 1), key=lambda step: losses[step - 1])
        record = hr.Record("runs/a")
        why = record.why(step, names["make"](), names["data"])
        clean = record.without(why.worst, names["make"](), names["data"], run="runs/clean")["train/loss"]
    finally:
        os.chdir(here)
    drawing = Drawing(
        760, 250, "The losses of a training with a poisoned row and without it, and the rows of its spike"
    )
    top, curves = max(losses), ((losses, GREY, 3.5), (clean, INK, 1.2))
    drawing.text(16, 26, "loss of every update", bold=True)
    for values, color, width in curves:
        points = [(16 + 420 * k / len(values), 210 - 165 * value / top) for k, value in enumerate(values)]
        drawing.curve(points, color, width)
    for x, name, color, width in ((16, "as it was", GREY, 3.5), (116, f"without({why.worst})", INK, 1.2)):
        drawing.curve([(x, 236), (x + 24, 236)], color, width)
        drawing.text(x + 30, 240, name, size=12)
    drawing.text(470, 26, f"why({step}): share of the loss, by row", bold=True)
    for k, row in enumerate(why.rows[:6]):
        y = 56 + 26 * k
        drawing.text(516, y + 4, str(row.row), size=12, anchor="end")
        drawing.curve([(526, y), (526 + max(1.0, 170 * row.share), y)], "#80cbc4", 12)
        drawing.text(744, y + 4, f"{row.share:.1%}", size=12, anchor="end")
    (PICTURES / "spike.svg").write_text(drawing.svg)


MADE: dict[str, Callable[[Path], Any]] = {
    "progress": progress,
    "report": report,
    "same_bits": same_bits,
    "spike": spike,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
