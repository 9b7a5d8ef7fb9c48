# %% [markdown]
# Boxes: a small detector learns to find rectangles in drawn images, from scratch; its pictures are in the run.

# %%
import torch

import headrace as hr
from headrace import vision

# %% 400 images of 32x32 pixels. Any table with the streams "image" and "bbox" will do: vision.coco(json, folder, size).
torch.manual_seed(0)
image, bbox = 0.1 * torch.randn(400, 1, 32, 32), torch.zeros(400, 1, 5)
for k in range(400):
    height, width = torch.randint(8, 16, (2,)).tolist()
    row, col = torch.randint(0, 32 - height, ()).item(), torch.randint(0, 32 - width, ()).item()
    image[k, :, row : row + height, col : col + width] += 1.0
    kind = k % 2  # a full rectangle, or its edge alone
    image[k, :, row + 2 : row + height - 2, col + 2 : col + width - 2] -= float(kind)
    bbox[k, 0] = torch.tensor([row, col, row + height, col + width, kind])
table = hr.ArrayTable({"image": image, "bbox": bbox})
train, test = hr.split(table, 0.8, 0.2, seed=0)

# %% Anchors of two sizes at every 4th and every 8th pixel.
torch.manual_seed(0)
anchors = vision.Anchors(strides=(4, 8), sizes=(2.0, 2.8))
model = vision.Detector(classes=2, channels=1, widths=(8, 16, 32, 32), features=32, anchors=anchors)
trainer = hr.Trainer(
    model,
    loss=vision.Detection(bbox_heads_weight=4.0, max_boxes=10),
    optimizer=torch.optim.Adam(model.parameters(), lr=5e-3),
    batch_size=16,
    target="bbox",
    metrics={"map": vision.MeanAveragePrecision(iou=0.5)},
    schedule=hr.OneCycle(),
    augment=vision.Augment(mirror=0.5, mirror_rows=0.5),  # boxes move with their images
)
pictures = vision.Pictures(test, count=6, classes=("rectangle", "edge"))
history = trainer.fit(train, test=test, epochs=15, run="runs/boxes", callbacks=[pictures])

# %% The best boxes of one image: row1, col1, row2, col2, score and class.
print(trainer.predict({"image": image[:1]})[0, :3])
print(f"test map {history.last['test/map']:.3f}")
