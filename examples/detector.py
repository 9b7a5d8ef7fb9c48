# %% [markdown]
# Boxes: a small detector learns to find shapes in drawn images, from scratch; its pictures are in the run.

# %%
import torch

import headrace as hr
from headrace import vision

# %% 400 images of 32x32 pixels. Any table with the streams "image" and "bbox" will do: vision.coco(json, folder, size).
drawn = vision.draw_shapes(400, size=32, max_shapes=2)
table = hr.ArrayTable({"image": drawn.image, "bbox": drawn.bbox})
train, test = hr.split(table, 0.8, 0.2, seed=0)
augmented = hr.map(train, vision.Augment(mirror=0.5, mirror_rows=0.5))  # boxes move with their images

# %% Anchors of two sizes at every 4th and every 8th pixel.
torch.manual_seed(0)
anchors = vision.Anchors(strides=(4, 8), sizes=(2.0, 2.8))
model = vision.Detector(classes=4, channels=1, widths=(8, 16, 32, 32), features=32, anchors=anchors)
trainer = hr.Trainer(
    model,
    loss=vision.Detection(bbox_heads_weight=4.0, max_boxes=10),
    optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
    batch_size=16,
    target="bbox",
    metrics={"map": vision.MeanAveragePrecision(iou=0.5)},
    schedule=hr.OneCycle(),
)
pictures = vision.Pictures(test, count=6, classes=("disc", "square", "triangle", "cross"))
history = trainer.fit(augmented, test=test, epochs=15, run="runs/shapes", callbacks=[pictures])

# %% The best boxes of one image: row1, col1, row2, col2, score and class.
print(trainer.predict({"image": drawn.image[:1]})[0, :3])
print(f"test map {history.last['test/map']:.3f}")
