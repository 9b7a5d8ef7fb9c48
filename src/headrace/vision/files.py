"""Tables over image files: folders of classes, images with masks, and COCO's annotations; Pillow reads the files."""

import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.arrays import values_digest
from ..data.batch import Batch, Stream
from ..data.encoding import Encoding
from ..data.fields import Rows, take
from ..data.ragged import Ragged
from ..data.source import Table, fingerprint_of
from ..errors import ConfigError, DataError, SourceError
from ..formats.paths import DataFile, digests
from ..store.system import cores
from .augment import IMAGE, MASK
from .boxes import areas, cut_to
from .samples import TARGETS

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
LABEL, BOXES = TARGETS["classification"], TARGETS["detection"]
PIXEL = 255.0
BITS_PER_SAMPLE = 258  # a tag of TIFF
FORMATS = ("BMP", "GIF", "JPEG", "PPM", "PNG", "TIFF", "WEBP")  # no others: that of PostScript runs programs


class ImageFiles(Table):
    """A table of image files, which are decoded and resized when they are read.

    Images are (channels, *size), float32: (pixel / 255 − `mean`) / `std`.

    Args:
        files: the images.
        size: height and width.
        channels: 1 for grey, or 3.
        mean: a number, or one for each channel.
        std: a number, or one for each channel.
        masks: for each image a file with a class at each pixel, resized to the nearest.
        known: other streams, as columns in memory.
        classes: the names of the classes.
        threads: how many threads decode a batch while the model trains.
    """

    thread_safe = True

    def __init__(
        self,
        files: Sequence[str | Path],
        size: tuple[int, int],
        *,
        channels: int = 3,
        mean: float | Sequence[float] = 0.5,
        std: float | Sequence[float] = 0.5,
        masks: Sequence[str | Path] = (),
        known: Mapping[str, Tensor | Rows] | None = None,
        classes: Sequence[str] = (),
        threads: int | None = None,
    ) -> None:
        if find_spec("PIL") is None:
            raise ConfigError('image files are read by Pillow, which is not installed: pip install "headrace[vision]".')
        if channels not in (1, 3) or not isinstance(size, tuple | list) or len(size) != 2 or min(size) < 1:
            raise ConfigError(f"channels= are 1 or 3, size= rows and columns, got channels={channels}, size={size!r}.")
        self.files, self.masks, self.known = [*map(Path, files)], [*map(Path, masks)], dict(known or {})
        counts = {"masks": len(self.masks) or len(self.files)} | {k: len(v) for k, v in self.known.items()}
        if not self.files or any(count != len(self.files) for count in counts.values()):
            listed = ", ".join(f"{name}: {count}" for name, count in counts.items())
            raise DataError(f"there are {len(self.files)} image files ({listed}). Give one of everything for each.")
        self.size, self.channels, self.classes = (size[0], size[1]), channels, tuple(classes)
        self.mean, self.std = (torch.as_tensor(v, dtype=torch.float32).view(-1, 1, 1) for v in (mean, std))
        if {len(self.mean), len(self.std)} - {1, channels} or not (self.std > 0).all():
            raise ConfigError(
                f"mean= and std= are one number, or one for each of {channels} channels, and std= is greater than 0, "
                f"got mean={mean!r} and std={std!r}."
            )
        self._fingerprint, self.threads = "", threads or min(4, cores())
        self.declared: Sequence[tuple[int, int]] = ()
        """The rows and columns that each image is said to have, if that is known."""

    @property
    def streams(self) -> Sequence[Stream]:
        masks = [Stream(MASK, self.size, "int64")] if self.masks else []
        known = [Stream.of(name, rows) for name, rows in self.known.items()]
        return [Stream(IMAGE, (self.channels, *self.size)), *masks, *known]

    def __len__(self) -> int:
        return len(self.files)

    @property
    def encoding(self) -> Encoding:
        return Encoding(tuple(self.streams), {LABEL: self.classes} if LABEL in self.known and self.classes else {})

    def take(self, indices: Tensor) -> Batch:
        rows = indices.tolist()
        masks = np.empty((len(rows), *self.size), np.int64) if self.masks else None

        def read(place: int) -> np.ndarray[Any, Any]:
            if masks is not None:
                masks[place] = self._mask(rows[place])
            return self.image(rows[place])

        # decoders release the interpreter's lock
        with ThreadPoolExecutor(self.threads) as pool:
            images = [*(pool.map if len(rows) > 1 else map)(read, range(len(rows)))]
        pixels = np.stack(images) if images else np.empty((0, *self.size, self.channels), np.uint8)
        fields = {IMAGE: self.normalised(torch.from_numpy(pixels))}
        if masks is not None:
            fields[MASK] = torch.from_numpy(masks)
        return Batch({**fields, **{name: take(known, indices) for name, known in self.known.items()}}, len(rows))

    def image(self, row: int) -> np.ndarray[Any, Any]:
        """The pixels of an image, (rows, columns, channels), from 0 to 255: uint8, or float32 of a file of 16 bits."""
        declared = self.declared[row] if self.declared else None
        pixels = _read(self.files[row], "L" if self.channels == 1 else "RGB", self.size, declared)
        return pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], self.channels, axis=2)  # one of grey

    def normalised(self, pixels: Tensor) -> Tensor:
        """Pixels (images, rows, columns, channels) as images (images, channels, rows, columns)."""
        image = pixels.movedim(-1, 1).float()
        return image.mul_(1 / (PIXEL * self.std)).sub_(self.mean / self.std).contiguous()

    def _mask(self, row: int) -> np.ndarray[Any, Any]:
        found = _read(self.masks[row], "", self.size)
        if found.ndim != 2:
            raise SourceError(
                f"{self.masks[row]} has {found.shape[-1]} channels. A mask has one: a class at each pixel."
            )
        if found.dtype.kind == "f":
            raise SourceError(f"{self.masks[row]} holds fractions. A mask has whole numbers: a class at each pixel.")
        return found

    def fingerprint(self) -> str:
        if not self._fingerprint:
            files = digests([DataFile.local(str(path)) for path in [*self.files, *self.masks]])
            known = [(name, values_digest(rows)) for name, rows in self.known.items()]
            mean, std = self.mean.tolist(), self.std.tolist()
            self._fingerprint = fingerprint_of(super().fingerprint(), mean, std, files, known)
        return self._fingerprint


def _read(
    path: Path, mode: str, size: tuple[int, int], declared: tuple[int, int] | None = None
) -> np.ndarray[Any, Any]:
    """The pixels of a file, in this mode and size; without a mode, as they are stored, and resized by the nearest."""
    from PIL import Image, UnidentifiedImageError

    if not path.is_file():  # a pipe would be waited for
        raise SourceError(f"{path} is not there, or no file.")
    try:
        with Image.open(path, formats=FORMATS) as file:
            if declared is not None and file.size != (declared[1], declared[0]):
                raise SourceError(
                    f"{path} has {file.height} rows and {file.width} columns, and its annotation says "
                    f"{declared[0]} and {declared[1]}, by which its boxes are placed. Correct the annotation."
                )
            image = _eight_bits(file, mode, path) if mode else file
            if image.size != (size[1], size[0]):
                way = Image.Resampling.BILINEAR if mode else Image.Resampling.NEAREST
                image = image.resize((size[1], size[0]), way)
            return np.array(image)
    except SourceError:
        raise
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = "no format that Pillow knows" if isinstance(error, UnidentifiedImageError) else str(error)
        raise SourceError(f"{path} cannot be read as an image: {reason}. Save it again, or leave it out.") from error


def _eight_bits(file: Any, mode: str, path: Path) -> Any:
    """An image of Pillow in this mode; one of 16 bits is scaled to 0 to 255, in mode "F", as Pillow would clip it."""
    from PIL import Image

    if file.mode.startswith("I;16") or (file.mode == "I" and file.format in ("PNG", "PPM")):
        bits = file.tag_v2.get(BITS_PER_SAMPLE, (16,))[0] if file.format == "TIFF" else 16
        return Image.fromarray(np.asarray(file, np.float32) * np.float32(PIXEL / (2**bits - 1)))
    if file.mode in ("I", "F"):
        kind = "whole numbers of 32 bits" if file.mode == "I" else "fractions"
        raise SourceError(
            f"{path} holds {kind}, and does not say which of them is white. Save it with 8 or 16 bits a pixel, "
            "from 0 to 255 or 65535."
        )
    return file.convert(mode)


def class_folders(root: str | Path, size: tuple[int, int], **options: Any) -> ImageFiles:
    """Images in one folder for each class; sorted folder names are the classes, and labels are `image_label_id`."""
    root = _folder(root)
    classes = sorted(path.name for path in root.iterdir() if path.is_dir())
    files = [[*_images(root / name)] for name in classes]
    if empty := [name for name, found in zip(classes, files, strict=True) if not found]:
        raise DataError(f"{root / empty[0]} has no image files ({', '.join(ENDINGS)}). Fill it, or remove it.")
    labels = torch.tensor([k for k, found in enumerate(files) for _ in found], dtype=torch.int64)
    flat = [path for found in files for path in found]
    if not flat:
        raise DataError(f"{root} has no folders with images: there is one for each class.")
    return ImageFiles(flat, size, known={LABEL: labels}, classes=classes, **options)


def mask_folders(
    images: str | Path, masks: str | Path, size: tuple[int, int], *, classes: Sequence[str] = (), **options: Any
) -> ImageFiles:
    """Images of one folder with masks of another: PNG files of the same names, with a class at each pixel."""
    files, folder = [*_images(_folder(images))], _folder(masks)
    found = [folder / f"{path.stem}.png" for path in files]
    if missing := [path for path in found if not path.is_file()]:
        raise DataError(f"{missing[0]} is not there ({len(missing)} masks are missing of {len(files)} images).")
    if not files:
        raise DataError(f"{images} has no image files ({', '.join(ENDINGS)}).")
    return ImageFiles(files, size, masks=found, classes=classes, **options)


def coco(annotations: str | Path, images: str | Path, size: tuple[int, int], **options: Any) -> ImageFiles:
    """Images with boxes from COCO's JSON; each item of the sequence `bbox` is row1, col1, row2, col2 and class.

    Boxes are resized with their images, and cut at the edges. Classes are the categories, sorted by id; `table.classes`
    has their names. Annotations of crowds are left out.
    """
    path, folder = Path(annotations), _folder(images)
    try:
        if not path.is_file():
            raise FileNotFoundError(f"{path} is no file")
        found = json.loads(path.read_bytes())
        categories = sorted((int(each["id"]), str(each["name"])) for each in found["categories"])
        pictures = {int(each["id"]): each for each in found["images"]}
        named = [str(each["file_name"]) for each in pictures.values()]
        declared = [(int(each["height"]), int(each["width"])) for each in pictures.values()]
        scales = {k: (size[0] / high, size[1] / wide) for k, (high, wide) in zip(pictures, declared, strict=True)}
        marked = [each for each in found["annotations"] if not each.get("iscrowd")]
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError, RecursionError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path} is not what COCO calls object detection annotations: {reason}.") from error
    if not named:
        raise DataError(f"{path} has no images.")
    if outside := [name for name in named if not (folder / name).resolve().is_relative_to(folder.resolve())]:
        raise DataError(f"{path}: file_name {outside[0]!r} is not within {folder}. Name files of this folder.")
    names = [folder / name for name in named]
    if len(pictures) < len(found["images"]):
        raise DataError(f"{path}: {len(found['images'])} images have {len(pictures)} ids. Each has an id of its own.")
    if missing := [name for name in names if not name.is_file()]:
        raise DataError(f"'{missing[0]}' is not there ({len(missing)} of {len(names)} images in {path} are missing).")
    numbers = {category: k for k, (category, _) in enumerate(categories)}
    rows: dict[int, list[Tensor]] = {k: [] for k in pictures}
    for each in marked:
        picture, category = each.get("image_id"), each.get("category_id")
        who = f"{path}, annotation {each.get('id')!r}"
        if picture not in rows or category not in numbers:
            raise DataError(f"{who}: image_id={picture!r} and category_id={category!r} are not both in the file.")
        rows[picture].append(_box(each, scales[picture], size, numbers[category], who))
    boxes = Ragged.of([torch.stack(found) if found else torch.zeros(0, 5) for found in rows.values()])
    table = ImageFiles(names, size, known={BOXES: boxes}, classes=[name for _, name in categories], **options)
    table.declared = declared
    return table


def _box(each: Mapping[str, Any], scale: tuple[float, float], size: tuple[int, int], label: int, who: str) -> Tensor:
    try:
        column, row, wide, high = map(float, each["bbox"])
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{who}: expected bbox: [x, y, width, height], got {each.get('bbox')!r}.") from None
    corners = [row * scale[0], column * scale[1], (row + high) * scale[0], (column + wide) * scale[1]]
    box = cut_to(torch.tensor(corners), *size)
    if not all(map(math.isfinite, corners)) or not min(wide, high) > 0 or not areas(box) > 0:
        raise DataError(f"{who}: the box {each['bbox']} has no area in its image. Drop it, or repair it.")
    return torch.cat([box, torch.tensor([float(label)])])


def _folder(path: str | Path) -> Path:
    if not Path(path).is_dir():
        raise DataError(f"{path} is no folder.")
    return Path(path)


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS)
