"""Training on images: networks, samples, detectors, metrics, tables of image files, augmentation, pictures.

A leaf, which nothing of the library calls but a dialect. It calls `data`, `formats`, `adapters`, `loss` and `watch`.

```python
from headrace import vision

samples = vision.ImageSamples("detection", class_ids=3, channels=1)
model = vision.Detector(classes=3, channels=1)
trainer = hr.Trainer(model, vision.Detection(), torch.optim.Adam(model.parameters()), target=samples.target)
losses = trainer.step(samples.batch(list_of_dicts), full_batch=True)  # total_loss, focal, huber
found = trainer.predict({"image": images})  # (images, 100, 6): box, score, class
```

Samples: `ImageSamples(task, class_ids)`. Networks: `ImageClassifier`, `Segmenter`, `Detector`. For detectors:
`Detection` (the objective), `Anchors`, `detections`, `match`, `encode`, `decode`, `overlaps`, `suppress`, `NONE`, and
the metric `MeanAveragePrecision`. Files: `class_folders`, `mask_folders`, `coco`,
`ImageFiles`; `Augment`; to try things on, `draw_shapes`. Pictures: `draw`, and the callback `Pictures`.
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
from .shapes import draw_shapes

__all__ = [
    "NONE",
    "Anchors",
    "Augment",
    "Detection",
    "Detector",
    "ImageClassifier",
    "ImageFiles",
    "Matches",
    "MeanAveragePrecision",
    "ImageSamples",
    "Pictures",
    "Segmenter",
    "class_folders",
    "coco",
    "decode",
    "detections",
    "draw",
    "draw_shapes",
    "encode",
    "mask_folders",
    "match",
    "overlaps",
    "suppress",
]
