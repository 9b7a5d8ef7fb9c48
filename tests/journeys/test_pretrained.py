"""Fine-tuning of models of transformers and peft: the bits of the plain loop, and the best step in the hub's format."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit.late import peft, transformers
from torch import nn

import headrace as hr

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("peft") is None, reason="transformers and peft are not installed"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
ROWS, BATCH, EPOCHS = 96, 16, 3
X = torch.randint(1, 50, (ROWS, 12), generator=torch.Generator().manual_seed(0))
DATA = {"input_ids": X, "attention_mask": torch.ones_like(X), "labels": X[:, 0] % 3}
SETTINGS = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 3}


def bert(lora: bool) -> Any:
    """A classifier made from a configuration, since nothing is downloaded; with adapters in its attention."""
    torch.manual_seed(0)
    config = transformers.BertConfig(**SETTINGS, intermediate_size=32, max_position_embeddings=16)
    model = transformers.BertForSequenceClassification(config)
    if lora:
        config = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"])
        return peft.get_peft_model(model, config)
    return model


def rates_by_layer(model: nn.Module) -> torch.optim.Optimizer:
    """A head that learns fast, and layers that learn the slower the deeper they are."""
    groups: dict[float, list[nn.Parameter]] = {}
    for name, param in model.named_parameters():
        if param.requires_grad:
            rate = 1e-2 if "classifier" in name else 1e-3 if "layer.1" in name else 1e-4
            groups.setdefault(rate, []).append(param)
    return torch.optim.AdamW([{"params": params, "lr": rate} for rate, params in groups.items()], weight_decay=0.0)


def frozen(model: nn.Module, is_frozen: bool) -> None:
    for name, param in model.named_parameters():
        if "embeddings" in name:
            param.requires_grad_(not is_frozen)


def by_hand(lora: bool) -> Any:
    model = bert(lora).train()
    optimizer = rates_by_layer(model)
    torch.manual_seed(1)
    for epoch in range(EPOCHS):
        if not lora:
            frozen(model, epoch < 1)
        for start in range(0, ROWS, BATCH):
            batch = {name: column[start : start + BATCH] for name, column in DATA.items()}
            optimizer.zero_grad()
            labels = batch.pop("labels")
            F.cross_entropy(model(**batch).logits, labels).backward()
            optimizer.step()
    return model


def tuned(lora: bool, run: Any, **options: Any) -> hr.Trainer:
    model = bert(lora)
    loss = hr.CrossEntropy(output="logits")
    trainer = hr.Trainer(model, loss, rates_by_layer(model), batch_size=BATCH, order="none", target="labels")
    callbacks = [] if lora else [hr.Freeze("*embeddings*", until="1 epoch")]
    torch.manual_seed(1)
    trainer.fit(DATA, epochs=EPOCHS, progress=False, callbacks=callbacks, run=run, **options)
    return trainer


@pytest.mark.parametrize("lora", [False, True], ids=["rates by layer, unfreezing", "LoRA"])
def test_fine_tuning_has_the_bits_of_the_plain_loop_and_its_best_step_is_read_by_from_pretrained(
    lora: bool, tmp_path: Path
) -> None:
    run = hr.Run(tmp_path / "run", checkpoint="trainable") if lora else tmp_path / "run"
    trainer = tuned(lora, run, val=DATA)
    expected, found = by_hand(lora), trainer.model
    assert all(map(torch.equal, expected.parameters(), found.parameters()))
    assert not all(map(torch.equal, bert(lora).parameters(), found.parameters()))
    path = hr.save_pretrained(bert(lora), tmp_path / "hub", run=tmp_path / "run")
    assert list(path.glob("*.safetensors"))
    assert not list(path.glob("*.bin"))
    if lora:
        assert {file.name for file in path.glob("adapter_*")} == {"adapter_config.json", "adapter_model.safetensors"}
        read = peft.PeftModel.from_pretrained(bert(False), path)
    else:
        read = transformers.BertForSequenceClassification.from_pretrained(path)
    hr.load_weights(trainer.model, tmp_path / "run")
    batch = {name: DATA[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        assert torch.equal(read.eval()(**batch).logits, trainer.model.eval()(**batch).logits)


def test_a_model_without_this_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(hr.ModelError, match="a Linear has no save_pretrained"):
        hr.save_pretrained(nn.Linear(2, 2), tmp_path)
