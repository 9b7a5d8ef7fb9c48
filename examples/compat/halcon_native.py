# %% [markdown]
# The training of `halcon_legacy.py` in headrace's own words: the same losses.

# %%
import torch

import headrace as hr
from headrace import vision


# %% 16 images of two kinds: bright above, and bright below.
def main():
    torch.manual_seed(0)
    images = 0.3 * torch.randn(16, 1, 8, 8)
    images[:8, :, :4] += 1
    images[8:, :, 4:] += 1
    labels = torch.tensor([0] * 8 + [1] * 8)

    model = vision.ImageClassifier(2, channels=1)
    optimizer = hr.MomentumSGD(model.parameters(), lr=0.02, momentum=0.9)
    loss = hr.CrossEntropy() + hr.L2Prior(0.0005)
    trainer = hr.Trainer(model, loss, optimizer, batch_size=8, microbatch=4, device="cpu")
    losses = []
    for epoch in range(5):
        if epoch == 3:
            optimizer.param_groups[0]["lr"] = 0.005
        for part in (slice(0, None, 2), slice(1, None, 2)):
            losses.append(float(trainer.step((images[part], labels[part]), full_batch=True)["cross_entropy"]))
    answers = trainer.predict({"image": images}, batch_size=4)
    return {"losses": losses, "classes": (answers.argmax(1) + 1).tolist()}


if __name__ == "__main__":
    print(main())
