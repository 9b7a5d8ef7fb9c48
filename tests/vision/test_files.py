"""Image files are tables: decoded, resized, with their labels, masks and boxes, and damaged ones are named."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import headrace as hr
from headrace import vision

DRAW = np.random.default_rng(0)


def save(path: Path, array: np.ndarray, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)
    return path


def pixels(rows: int = 8, columns: int = 6) -> np.ndarray:
    return DRAW.integers(0, 256, (rows, columns, 3), dtype=np.uint8)


@pytest.fixture
def classes(tmp_path: Path) -> tuple[Path, list[np.ndarray]]:
    images = [pixels() for _ in range(5)]
    for k, image in enumerate(images):
        save(tmp_path / ("cat" if k < 2 else "dog") / f"{k}.png", image)
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    return tmp_path, images


def test_folders_are_classes_and_pixels_are_normalised(classes: tuple[Path, list[np.ndarray]]) -> None:
    root, images = classes
    table = vision.class_folders(root, (8, 6), mean=(0.5, 0.4, 0.3), std=0.25)
    batch = table.take(torch.tensor([4, 0, 1]))
    assert batch["image_label_id"].tolist() == [1, 0, 0]
    assert table.categories == {"image_label_id": ("cat", "dog")}
    expected = (images[4].transpose(2, 0, 1) / 255 - np.array([0.5, 0.4, 0.3]).reshape(3, 1, 1)) / 0.25
    assert batch["image"][0].numpy() == pytest.approx(expected, abs=1e-5)
    assert batch["image"].is_contiguous()
    assert vision.class_folders(root, (4, 4), channels=1).rows(0, 5)["image"].shape == (5, 1, 4, 4)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
@pytest.mark.parametrize("channels", [1, 3])
def test_grey_of_sixteen_bits_is_scaled_and_keeps_its_values(channels: int, name: str, tmp_path: Path) -> None:
    deep = (np.arange(1024, dtype=np.uint16) * 64 + 63).reshape(32, 32)
    deep[0, 0], deep[-1, -1] = 0, 65535
    save(tmp_path / name, deep)
    save(tmp_path / "b.png", pixels(32, 32))
    files = [tmp_path / name, tmp_path / "b.png"]
    table = vision.ImageFiles(files, (32, 32), channels=channels, mean=0.0, std=1.0)
    found = table.rows(0, 2)["image"]
    for channel in found[0].double():
        assert channel.numpy() == pytest.approx(deep / 65535, abs=1e-6)
        assert len(channel.unique()) == len(np.unique(deep))
    assert torch.equal(found[1], table.rows(1, 2)["image"][0])
    smaller = vision.ImageFiles(files[:1], (8, 8), channels=channels, mean=0.0, std=1.0).rows(0, 1)["image"]
    assert smaller[0, 0].mean() == pytest.approx(deep.mean() / 65535, abs=1e-3)


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_pixels_whose_range_is_not_known_are_refused(kind: Any, tmp_path: Path) -> None:
    path = save(tmp_path / "a.tif", np.arange(64, dtype=kind).reshape(8, 8))
    with pytest.raises(
        hr.SourceError,
        match=r"/a\.tif holds .*does not say which of them is white.*8 or 16 bits a pixel, from 0 to 255 or 65535\.$",
    ):
        vision.ImageFiles([path], (8, 8)).rows(0, 1)
    masked = vision.ImageFiles([save(tmp_path / "b.png", pixels(8, 8))], (8, 8), masks=[path])
    if kind is np.int32:
        assert masked.rows(0, 1)["segmentation_image"][0].flatten().tolist() == [*range(64)]
    else:
        with pytest.raises(hr.SourceError, match=r"holds fractions\. A mask has whole numbers"):
            masked.rows(0, 1)


def test_one_thread_and_several_read_the_same(classes: tuple[Path, list[np.ndarray]]) -> None:
    tables = [vision.class_folders(classes[0], (16, 16), threads=threads) for threads in (1, 3)]
    one, other = (table.rows(0, 5)["image"] for table in tables)
    assert torch.equal(one, other)


def test_masks_are_resized_by_the_nearest_and_palettes_are_their_numbers(tmp_path: Path) -> None:
    mask = DRAW.integers(0, 4, (8, 6), dtype=np.uint8)
    save(tmp_path / "images" / "a.jpg", pixels())
    image = Image.fromarray(mask).convert("P")
    image.putdata(mask.ravel().tolist())
    (tmp_path / "masks").mkdir()
    image.save(tmp_path / "masks" / "a.png")
    table = vision.mask_folders(tmp_path / "images", tmp_path / "masks", (16, 12))
    found = table.rows(0, 1)["segmentation_image"][0]
    assert found.tolist() == mask.repeat(2, 0).repeat(2, 1).tolist()
    save(tmp_path / "masks" / "a.png", pixels())
    with pytest.raises(hr.SourceError, match=r"a\.png has 3 channels"):
        table.rows(0, 1)
    save(tmp_path / "images" / "b.jpg", pixels())
    with pytest.raises(hr.DataError, match=r"b\.png is not there \(1 masks are missing of 2 images\)"):
        vision.mask_folders(tmp_path / "images", tmp_path / "masks", (16, 12))


def annotations(**other: Any) -> dict[str, Any]:
    return {
        "images": [
            {"id": 30, "file_name": "a.png", "height": 8, "width": 6},
            {"id": 7, "file_name": "b.png", "height": 16, "width": 12},
        ],
        "categories": [{"id": 9, "name": "dog"}, {"id": 3, "name": "cat"}],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 9, "bbox": [2, 4, 6, 8]},
            {"id": 2, "image_id": 7, "category_id": 3, "bbox": [0, 0, 12.5, 2]},
            {"id": 3, "image_id": 30, "category_id": 3, "bbox": [0, 0, 6, 8], "iscrowd": 1},
        ],
    } | other


def opened(folder: Path, content: Any) -> vision.ImageFiles:
    save(folder / "a.png", pixels())
    save(folder / "b.png", pixels(16, 12))
    (folder / "marks.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return vision.coco(folder / "marks.json", folder, (32, 24))


def test_boxes_of_coco_are_resized_with_their_images(tmp_path: Path) -> None:
    table = opened(tmp_path, annotations())
    assert table.classes == ("cat", "dog")
    found = table.rows(0, 2)["bbox"]
    assert found[0].tolist() == []
    assert found[1].tolist() == [[8, 4, 24, 16, 1], [0, 0, 4, 24, 0]]
    trainer = hr.Trainer(
        model := vision.Detector(2, widths=(4, 4, 4, 4, 4), features=4),
        vision.Detection(),
        torch.optim.SGD(model.parameters(), 0.01),
        target="bbox",
        batch_size=2,
        device="cpu",
        augment=vision.Augment(),
    )
    other = annotations()
    other["annotations"] = other["annotations"][:1]  # fewer boxes in each image than those that are trained on
    (tmp_path / "others.json").write_text(json.dumps(other))
    others = vision.coco(tmp_path / "others.json", tmp_path, (32, 24))
    pictures = vision.Pictures(others, path=tmp_path / "pictures")
    trainer.fit(table, val=others, steps=2, progress=False, callbacks=[pictures])
    assert trainer.history.last["val/loss"] > 0


def one(**other: Any) -> dict[str, Any]:
    return annotations(annotations=[{"id": 5, "image_id": 7, "category_id": 3, "bbox": [0, 0, 1, 1]} | other])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", r"marks\.json is not what COCO calls"),
        ({"images": []}, "it has no 'categories'"),
        (one(bbox=[0, 0, 0, 5]), r"annotation 5: the box \[0, 0, 0, 5\] has no area"),
        (one(bbox=[40, 40, 5, 5]), "annotation 5: the box .* has no area in its image"),
        (one(bbox=[0, 0, float("nan"), 5]), "annotation 5: the box .* has no area"),
        (one(bbox=[0, 1]), r"expected bbox: \[x, y, width, height\], got \[0, 1\]"),
        (one(category_id=4), "image_id=7 and category_id=4 are not both in the file"),
        (one(image_id=8), "image_id=8 and category_id=3 are not both in the file"),
        (annotations(images=[], annotations=[]), r"marks\.json has no images"),
        ('{"images": ' + "[" * 100_000, r"marks\.json is not what COCO calls"),
        *(
            (
                annotations(images=[{"id": 7, "file_name": name, "height": 8, "width": 8}], annotations=[]),
                rf"file_name {name!r} is not within",
            )
            for name in ("../b.png", "/etc/hostname")
        ),
        (annotations(images=annotations()["images"] * 2), "4 images have 2 ids"),
        (
            annotations(images=[{"id": 7, "file_name": "gone.png", "height": 8, "width": 8}], annotations=[]),
            r"gone\.png' is not there \(1 of 1 images in .*marks\.json are missing\)",
        ),
    ],
)
def test_annotations_that_are_wrong_are_named(tmp_path: Path, content: Any, said: str) -> None:
    with pytest.raises(hr.DataError, match=said):
        opened(tmp_path, content)


def test_an_image_of_another_size_than_its_annotation_says_is_refused_when_it_is_read(tmp_path: Path) -> None:
    table = opened(tmp_path, annotations())
    save(tmp_path / "b.png", pixels(32, 24))
    assert table.rows(0, 1).rows == 1
    with pytest.raises(hr.SourceError, match=r"b\.png has 32 rows and 24 columns, and its annotation says 16 and 12"):
        table.rows(0, 2)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("cut.jpg", 0.6, "cannot be read as an image: .*truncated"),
        ("cut.png", 0.6, "cannot be read as an image: .*(truncated|broken)"),
        ("no.png", b"nothing", "cannot be read as an image: no format that Pillow knows"),
        ("empty.png", b"", "cannot be read as an image"),
        ("gone.png", None, "is not there"),
        (
            "postscript.png",
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
            "cannot be read as an image: no format",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, data: Any, said: str) -> None:
    path = save(tmp_path / name, pixels(64, 64))
    if data is None:
        path.unlink()
    else:
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * data)] if isinstance(data, float) else data)
    with pytest.raises(hr.SourceError, match=rf"{name} {said}"):
        vision.ImageFiles([path], (8, 8)).rows(0, 1)


def test_other_files_are_another_fingerprint(classes: tuple[Path, list[np.ndarray]]) -> None:
    root, _ = classes
    one, same, other = (vision.class_folders(root, size) for size in ((8, 8), (8, 8), (8, 9)))
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()
    root = shutil.copytree(root, root.with_name(f"{root.name}-moved"))
    assert vision.class_folders(root, (8, 8)).fingerprint() == one.fingerprint()
    save(root / "cat" / "1.png", pixels())
    changed = vision.class_folders(root, (8, 8)).fingerprint()
    (root / "cat" / "0.png").rename(root / "dog" / "0.png")
    assert len({one.fingerprint(), changed, vision.class_folders(root, (8, 8)).fingerprint()}) == 3


def test_other_masks_and_other_boxes_are_another_fingerprint(tmp_path: Path) -> None:
    image = save(tmp_path / "1.png", pixels())
    one, other = (save(tmp_path / name / "1.png", pixels()[..., 0]) for name in ("one", "other"))
    tables = [vision.ImageFiles([image], (8, 8), masks=[mask]) for mask in (one, other)]
    known = [vision.ImageFiles([image], (8, 8), known={"y": torch.full((1, 9000), k)}) for k in (0.0, 1.0)]
    assert len({table.fingerprint() for table in tables + known}) == 4
