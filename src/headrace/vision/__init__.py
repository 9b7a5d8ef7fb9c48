"""Training on images: networks, samples, detectors, metrics, tables of image files, augmentation, pictures.

Nothing else in the library but `compat` uses this room. It calls `store`, `data`, `formats`, `adapters`, `loss` and
`watch`.
"""

from .anchors import Anchors, Matches, match
from .augment import Augment
from .boxes import decode, encode, overlaps, suppress
from .detection import NONE, Detection, Detector, detections
from .files import ImageFiles, class_folders, coco, mask_folders
from .networks import ImageClassifier, Segmenter
from .pictures import Pictures, draw
from .samples import ImageSamples
from .scores import MeanAveragePrecision

__all__ = ["NONE", "Anchors", "Augment", "Detection", "Detector", "ImageClassifier", "ImageFiles", "ImageSamples"]
__all__ += ["Matches", "MeanAveragePrecision", "Pictures", "Segmenter", "class_folders", "coco", "decode", "detections"]
__all__ += ["draw", "encode", "mask_folders", "match", "overlaps", "suppress"]
