"""What training on images costs, as ratios in one run: the step, files read and decoded, boxes matched and suppressed.

    python benchmarks/vision.py [--quick] [--repeats N] [--only steps,files,boxes,recipes]

The step of each reference network beside a raw loop with the same network, loss and optimizer. One epoch of a folder of
JPEG files by a Feed beside a DataLoader with 2 workers, which decode in the same way. Suppression and matching of
10,000 boxes beside the loop over boxes. Every repeat times all of them, in an order drawn anew.

Last the recipes of drawn shapes, once each with two threads: how good they get on what is held out, and how soon.
"""

from __future__ import annotations

import argparse
import runpy
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from checkpoint import Report
from overhead import Verdict
from PIL import Image
from timing import Job, interleave, ratio
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import headrace as hr
from headrace import vision
from headrace.app.recipe import load_recipe

draw_shapes = runpy.run_path(str(Path(__file__).parents[1] / "recipes" / "shapes.py"))["draw_shapes"]

RESULTS = Path(__file__).parent / "results" / "vision.json"
STEPS, BATCH, SIZE, FILES, BOXES = 12, 16, 64, 384, 10_000
STEP_LIMIT, FEED_LIMIT, LOOP_LIMIT = 1.02, 1.0, 1.0
CLASSES = ("classifier", "segmenter", "detector")
PARTS = ("steps", "files", "boxes", "recipes")
RECIPES = {
    "classify_shapes": ("test/accuracy", 0.98),
    "segment_shapes": ("test/iou", 0.90),
    "detect_shapes": ("test/map", 0.60),
}
MINUTES = 3.0


def main() -> None:
    """Time the steps, the files and the boxes; print tables and targets, and write both and a record."""
    options = arguments()
    torch.set_num_threads(1)
    report = Report()
    if "steps" in options.only:
        measure_steps(options.repeats, report)
    if "files" in options.only:
        with tempfile.TemporaryDirectory() as scratch:
            measure_files(Path(scratch), options.repeats, report)
    if "boxes" in options.only:
        measure_boxes(options.repeats, report)
    if "recipes" in options.only:
        measure_recipes(report)
    report.show_targets(".3f")
    report.write(options.out, options.repeats, ("pillow",))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 repeats: a glance")
    parser.add_argument("--repeats", type=int, help="interleaved repeats (default 11)")
    parser.add_argument("--only", type=lambda text: text.split(","), default=PARTS, help="steps,files,boxes,recipes")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes, and the tables beside it")
    options = parser.parse_args()
    options.repeats = options.repeats or (3 if options.quick else 11)
    return options


def compare(
    title: str, prepare: dict[str, Callable[[], Job]], to: str, repeats: int, report: Report, limits: dict[str, tuple]
) -> None:
    """Times rivals, shows their seconds and their ratios to one of them, and judges those that have a limit."""
    samples = interleave(prepare, repeats, often=tuple(prepare), passes=3)
    rows = []
    for name, sample in samples.items():
        found = ratio(sample, samples[to])
        rows.append(
            (name, f"{min(sample.seconds):.4f}", f"{found.median:.3f}", f"{found.low:.3f}", f"{found.high:.3f}")
        )
        if name in limits:
            sign, limit = limits[name]
            report.verdicts.append(Verdict(f"{title}: {name} / {to}", sign, limit, found.median))
    report.say("")
    report.show((title, "least s", f"/ {to}", "least", "most"), rows)
    report.record[title] = {name: sample.seconds for name, sample in samples.items()}


# --- steps -----------------------------------------------------------------------------------------------


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "classifier":
        return vision.ImageClassifier(4, 1)
    return vision.Segmenter(5, 1, widths=(8, 16, 32)) if kind == "segmenter" else vision.Detector(4, 1)


def streams_of(kind: str) -> tuple[str, dict[str, Tensor]]:
    drawn = draw_shapes(BATCH, SIZE)
    target = {"classifier": "image_label_id", "segmenter": "segmentation_image", "detector": "bbox"}[kind]
    return target, {"image": drawn.image, target: getattr(drawn, target)}


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)  # with more, a detector comes to NaN


def raw(kind: str) -> Job:
    """The loop that one would write."""
    model, (target, streams) = network(kind), streams_of(kind)
    optimizer = optimizer_of(model)
    loss_of = detection_loss if kind == "detector" else F.cross_entropy
    last = [0.0]

    def run() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model(streams["image"]), streams[target])
            loss.backward()
            optimizer.step()
            last[0] = loss.item()

    return Job(run, lambda: last[0])


def by_headrace(kind: str) -> Job:
    model, (target, streams) = network(kind), streams_of(kind)
    loss = vision.Detection() if kind == "detector" else hr.CrossEntropy()
    trainer = hr.Trainer(model, loss, optimizer_of(model), target=target)
    batch, last = hr.Batch(streams), [0.0]

    def run() -> None:
        for _ in range(STEPS):
            last[0] = float(trainer.step(batch)["total_loss"])

    return Job(run, lambda: last[0])


def detection_loss(outputs: dict[str, Tensor], target: Tensor) -> Tensor:
    """Focal and smooth L1 loss of a detector, written out."""
    logits, codes, anchors = outputs["class_logits"], outputs["box_codes"], outputs["anchors"]
    boxes, labels = target[..., :4], target[..., 4].long()
    found = vision.match(anchors, boxes, labels >= 0)
    asked = F.one_hot(labels.gather(1, found.box).clamp(min=0), logits.shape[-1]) * found.positive.unsqueeze(-1)
    p = torch.where(asked == 1, logits, -logits)
    focal = -((1 - p.sigmoid()) ** 2) * F.logsigmoid(p) * (found.positive | found.negative).unsqueeze(-1)
    positives = found.positive.sum()
    theirs = boxes.gather(1, found.box.unsqueeze(-1).expand(-1, -1, 4))[found.positive]
    goal = vision.encode(theirs, anchors.expand(len(boxes), -1, -1)[found.positive])
    huber = F.smooth_l1_loss(codes[found.positive], goal, beta=0.11, reduction="sum")
    return focal.sum() / (1 + positives) + huber / (4 * positives)


def measure_steps(repeats: int, report: Report) -> None:
    """Each network's step beside that of a raw loop, which is there twice: its distance from 1 is the noise."""
    for kind in CLASSES:
        rivals = {"raw": raw, "raw again": raw, "headrace": by_headrace}
        prepare = {name: partial(job, kind) for name, job in rivals.items()}
        check(kind)
        compare(f"step of the {kind}", prepare, "raw", repeats, report, {"headrace": ("<=", STEP_LIMIT)})


def check(kind: str) -> None:
    """Both have trained the same."""
    jobs = raw(kind), by_headrace(kind)
    for job in jobs:
        job.run()
    one, other = (job.score() for job in jobs)
    assert abs(one - other) <= 1e-3 * abs(one), (kind, one, other)


# --- files -----------------------------------------------------------------------------------------------


class Decoded(Dataset):
    """The same files, decoded by the same code, for a DataLoader."""

    def __init__(self, table: vision.ImageFiles) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        pixels = torch.from_numpy(self.table.image(row))
        return self.table.normalised(pixels.unsqueeze(0))[0], int(self.table.known["image_label_id"][row])


def measure_files(folder: Path, repeats: int, report: Report) -> None:
    """One epoch over a folder of images in random order, each of 256x256 pixels, resized to 128x128."""
    draw = np.random.default_rng(0)
    for k in range(FILES):
        path = folder / str(k % 4) / f"{k}.jpg"
        path.parent.mkdir(exist_ok=True)
        smooth = Image.fromarray(draw.integers(0, 256, (32, 32, 3), dtype=np.uint8))
        smooth.resize((256, 256)).save(path, quality=90)
    table = vision.class_folders(folder, (128, 128))
    loader = DataLoader(Decoded(table), batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)
    rows = [0]

    def by_loader() -> Job:
        def run() -> None:
            rows[0] = sum(len(image) for image, _ in loader)

        return Job(run, lambda: rows[0])

    def by_feed() -> Job:
        feed = hr.Feed(hr.Reader(table, "full"), batch_size=32, once=True)

        def run() -> None:
            rows[0] = sum(batch.rows for batch in feed)

        return Job(run, lambda: rows[0])

    by_loader().run()  # its workers start
    rivals = {"DataLoader, 2 workers": by_loader, "headrace": by_feed}
    limits = {"DataLoader, 2 workers": (">=", FEED_LIMIT)}
    compare("epoch of 384 files", rivals, "headrace", repeats, report, limits)


# --- boxes -----------------------------------------------------------------------------------------------


def some_boxes() -> Tensor:
    draw = torch.Generator().manual_seed(0)
    corner = torch.rand(BOXES, 2, generator=draw) * 1000
    return torch.cat([corner, corner + 10 + 40 * torch.rand(BOXES, 2, generator=draw)], dim=1)


def by_loop(boxes: Tensor) -> int:
    """Suppression one box at a time, as it is usually written in torch."""
    left, kept = torch.arange(len(boxes)), 0
    while len(left):
        kept += 1
        found = vision.overlaps(boxes[left[:1]], boxes[left[1:]])[0]
        left = left[1:][found <= 0.5]
    return kept


def measure_boxes(repeats: int, report: Report) -> None:
    """10,000 boxes, suppressed among each other, and matched with 10,000 anchors; the loop is of suppression."""
    boxes, kept = some_boxes(), [0]
    labels, there = torch.zeros(BOXES), torch.ones(BOXES, dtype=torch.bool)

    def job(function: Callable[[], Any]) -> Job:
        def run() -> None:
            kept[0] = int(function())

        return Job(run, lambda: kept[0])

    rivals = {
        "loop over boxes": lambda: job(lambda: by_loop(boxes)),
        "suppress": lambda: job(lambda: vision.suppress(boxes, labels, there).sum()),
        "match": lambda: job(lambda: vision.match(boxes, boxes[None] + 3, there[None]).positive.sum()),
    }
    assert by_loop(boxes) == int(vision.suppress(boxes, labels, there).sum())
    compare("10,000 boxes", rivals, "loop over boxes", repeats, report, {"suppress": ("<=", LOOP_LIMIT)})


# --- recipes ---------------------------------------------------------------------------------------------


def measure_recipes(report: Report) -> None:
    """Each recipe as it is, once."""
    torch.set_num_threads(2)
    rows = []
    for name, (key, least) in RECIPES.items():
        recipe = load_recipe(str(Path(__file__).parents[1] / "recipes" / f"{name}.py"))
        start, used = time.perf_counter(), time.process_time()
        score = recipe.run(progress=False).last[key]
        minutes, used = (time.perf_counter() - start) / 60, (time.process_time() - used) / 60
        rows.append((name, f"{score:.4f}", f"{minutes:.2f}", f"{used:.2f}"))
        report.verdicts.append(Verdict(f"{name}: {key}", ">=", least, score))
        report.verdicts.append(Verdict(f"{name}: minutes", "<=", MINUTES, minutes))
        report.record[name] = {key: score, "minutes": minutes, "processor_minutes": used}
    report.say("")
    report.show(("recipe", "score", "minutes", "of a processor"), rows)
    torch.set_num_threads(1)


if __name__ == "__main__":
    main()
