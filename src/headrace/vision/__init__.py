"""Training on images: networks, samples, detectors, metrics, tables of image files, augmentation, pictures.

Nothing else in the library but `compat` uses this room. It calls `data`, `formats`, `adapters`, `loss` and `watch`.

```python
from headrace import vision

samples = vision.ImageSamples("detection", class_ids=3, channels=1)
model = vision.Detector(classes=3, channels=1)
trainer = hr.Trainer(model, vision.Detection(), torch.optim.Adam(model.parameters()), target=samples.target)
losses = trainer.step(samples.batch(list_of_dicts), full_batch=True)  # total_loss, focal, huber
found = trainer.predict({"image": images})  # (images, 100, 6): box, score, class
```
"""

from .anchors import Anchors as Anchors
from .anchors import Matches as Matches
from .anchors import match as match
from .augment import Augment as Augment
from .boxes import decode as decode
from .boxes import encode as encode
from .boxes import overlaps as overlaps
from .boxes import suppress as suppress
from .detection import NONE as NONE
from .detection import Detection as Detection
from .detection import Detector as Detector
from .detection import detections as detections
from .files import ImageFiles as ImageFiles
from .files import class_folders as class_folders
from .files import coco as coco
from .files import mask_folders as mask_folders
from .networks import ImageClassifier as ImageClassifier
from .networks import Segmenter as Segmenter
from .pictures import Pictures as Pictures
from .pictures import draw as draw
from .samples import ImageSamples as ImageSamples
from .scores import MeanAveragePrecision as MeanAveragePrecision
