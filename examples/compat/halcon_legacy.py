# %% [markdown]
# A classifier trained by the operators of HALCON, a batch at a time; `halcon_native.py` has the same without them.

# %%
import torch

import headrace.compat.halcon as ha


# %% 16 images of two kinds: bright above, and bright below.
def main():
    torch.manual_seed(0)
    images = 0.3 * torch.randn(16, 1, 8, 8)
    images[:8, :, :4] += 1
    images[8:, :, 4:] += 1
    samples = [{"image": image, "image_label_id": 1 if k < 8 else 2} for k, image in enumerate(images)]

    model = ha.create_dl_model(
        "classification", [1, 2], image_width=8, image_height=8, image_num_channels=1, runtime="cpu"
    )
    ha.set_dl_model_param(model, "batch_size", 4)
    ha.set_dl_model_param(model, "batch_size_multiplier", 2)
    ha.set_dl_model_param(model, "weight_prior", 0.0005)
    ha.set_dl_model_param(model, "learning_rate", 0.02)
    losses = []
    for epoch in range(5):
        if epoch == 3:
            ha.set_dl_model_param(model, "learning_rate", 0.005)
        for batch in (samples[::2], samples[1::2]):
            losses.append(ha.train_dl_model_batch(model, batch)["cross_entropy"])
    results = ha.apply_dl_model(model, samples)
    return {"losses": losses, "classes": [result["classification_class_ids"][0] for result in results]}


if __name__ == "__main__":
    print(main())
