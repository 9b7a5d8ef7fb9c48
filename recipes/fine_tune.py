"""Fine-tunes a model of transformers: all of its layers, or adapters of peft beside frozen ones."""

import ast
import inspect
from typing import Any

import torch
from torch import nn

import headrace as hr


def lines(length: int) -> dict[str, torch.Tensor]:
    """Lines of two modules of Python's standard library, in bytes, and which of the two each is from."""
    texts = [[line.strip() for line in inspect.getsource(module).splitlines()] for module in (ast, inspect)]
    pairs = [(line.encode()[:length], k) for k, found in enumerate(texts) for line in found if len(line) > 10]
    ids = torch.zeros(len(pairs), length, dtype=torch.long)
    for row, (line, _) in enumerate(pairs):
        ids[row, : len(line)] = torch.tensor([*line])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([k for _, k in pairs])}


def classifier(pretrained: str, length: int) -> Any:
    """The model of a directory or of the hub, or a small one without training, which needs no network."""
    from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification

    if pretrained:
        return AutoModelForSequenceClassification.from_pretrained(pretrained, num_labels=2)
    size = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    return BertForSequenceClassification(BertConfig(vocab_size=256, max_position_embeddings=length, **size))


def groups(model: nn.Module, lr: float, decay: float) -> list[dict[str, Any]]:
    """The trained parameters, layer by layer: the last learns at `lr`, each one before at `decay` times that."""
    layers: dict[int, list[nn.Parameter]] = {}
    depth = 1 + max(int(part) for name, _ in model.named_parameters() for part in name.split(".") if part.isdigit())
    for name, param in model.named_parameters():
        if param.requires_grad:
            number = next((int(part) for part in name.split(".") if part.isdigit()), None)
            layer = -1 if "embeddings" in name else depth if number is None else number
            layers.setdefault(layer, []).append(param)
    return [{"params": params, "lr": lr * decay ** (depth - layer)} for layer, params in layers.items()]


def fine_tune(
    pretrained: str = "", lora: int = 0, lr: float = 1e-3, decay: float = 0.8, frozen: int = 1, epochs: int = 4
) -> hr.Recipe:
    """Trains a model to say which of two modules a line of Python is from.

    Args:
        pretrained: a directory that `save_pretrained` has written, or a name on the hub; empty: from scratch.
        lora: rank of adapters in the attention, beside a frozen model; with 0 all parameters are trained.
        lr: learning rate of the last layers.
        decay: factor of the rate from each layer to the one before it.
        frozen: epochs after which the embeddings are trained too, if there are no adapters.
        epochs: passes over about 3,000 lines.
    """
    length = 48
    train, val = hr.split(hr.ArrayTable(lines(length)), 0.9, 0.1)
    torch.manual_seed(0)
    model = classifier(pretrained, length)
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=lora, target_modules=["query", "value"]))
    trainer = hr.Trainer(
        model,
        hr.CrossEntropy(output="logits"),
        torch.optim.AdamW(groups(model, lr, decay)),
        batch_size=32,
        target="labels",
        metrics="accuracy",
        schedule=hr.Linear(warmup=0.1),
    )
    freeze = [] if lora else [hr.Freeze("*embeddings*", until=f"{frozen} epochs")]
    return hr.Recipe(trainer, train, val, fit={"epochs": epochs, "callbacks": [*freeze, hr.BestModel("val/loss")]})


if __name__ == "__main__":
    print(f"{fine_tune().run().best['val/accuracy']:.3f} of the lines")
