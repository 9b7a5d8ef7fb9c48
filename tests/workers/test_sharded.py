"""Sharded models: updates, scores and predictions are those of `Synchronous`; what cannot be done is refused."""

import re
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from kit.forked import start
from kit.sampled import nightly
from kit.sharded_models import (
    BATCH,
    CLASSES,
    MODELS,
    Layers,
    adam,
    by_workers,
    data,
    distance,
    full,
    in_workers,
    make,
    sgd,
)
from kit.torch_workers import run_program
from torch import nn

import headrace as hr
from headrace.errors import ConfigError, ModelError
from headrace.workers.here import here

CLOSE = 1e-6
SETTINGS: dict[str, dict[str, Any]] = {
    "layers": {"clip_norm": 0.05, "schedule": lambda progress: 1 - progress / 2},
    "tied": {"clip_norm": 0.5, "microbatch": 3, "recompute": "blocks.0"},
    "frozen": {"clip_value": 0.01},
    "adapted": {"microbatch": 5},
    "measuring": {"optimizer": sgd},
}
CALLBACKS: dict[str, Callable[[], list[hr.Callback]]] = {
    "layers": lambda: [hr.EMA(0.9)],
    "tied": lambda: [hr.BestModel("val/loss", restore=True)],
    "frozen": lambda: [hr.Freeze("last.bias", until="2 epochs")],
    "adapted": lambda: [hr.EarlyStopping("val/loss", patience=1)],
    "measuring": lambda: [],
}


def trained(kind: str, strategy: hr.Strategy) -> tuple[dict[str, Any], list[dict[str, Any]], torch.Tensor]:
    """What three epochs give: weights, reports, predictions."""
    trainer = make(kind, strategy=strategy, **SETTINGS[kind])
    sets = data(kind)
    some = {name: rows[:33] for name, rows in sets.items()}  # the last batch leaves a worker without rows
    history = trainer.fit(sets, val=some, epochs=3, progress=False, callbacks=CALLBACKS[kind]())
    return full(trainer.model), history.rows, trainer.predict({"x": sets["x"][:17]})


def are_equal(kinds: list[str]) -> None:
    for kind in kinds:
        is_equal(kind)


def is_equal(kind: str) -> None:
    sharded, synchronous = trained(kind, hr.Sharded("blocks.*")), trained(kind, hr.Synchronous())
    assert len(synchronous[1]) >= 3
    assert distance(sharded[0], synchronous[0]) <= CLOSE
    assert torch.allclose(sharded[2], synchronous[2], atol=5e-6)
    for one, other in zip(sharded[1], synchronous[1], strict=True):
        timed = ("minutes", "rows/s")
        assert {n: v for n, v in one.items() if n not in timed} == pytest.approx(
            {n: v for n, v in other.items() if n not in timed}, abs=1e-5
        )


@pytest.mark.parametrize(
    ("workers", "kinds"),
    [(2, ["layers", "frozen", "adapted"]), (3, ["tied", "measuring"]), *nightly((2, ["tied", "measuring"]))],
    ids=str,
)
def test_a_sharded_training_is_that_of_workers_with_complete_models(
    workers: int, kinds: list[str], tmp_path: Path
) -> None:
    in_workers(are_equal, tmp_path, kinds, workers=workers)


# --- rows that a worker does not have, and numbers that are not finite ------------------------------------


def meets_bad_rows() -> None:
    sets = data("layers", 34)  # the last batch has 2 rows
    sets["x"][20] = float("nan")
    skipping = [
        make("layers", nonfinite="skip", order="none", strategy=strategy)
        for strategy in (hr.Sharded(), hr.Synchronous())
    ]
    for trainer in skipping:
        trainer.fit(sets, epochs=2, progress=False)
        assert trainer.skipped == 2
    assert distance(full(skipping[0].model), full(skipping[1].model)) <= CLOSE


def stops_at_a_bad_row() -> None:
    sets = data("layers", 34)
    sets["x"][20] = float("nan")
    make("layers", order="none").fit(sets, epochs=2, progress=False)


def begins_with_one_row() -> None:
    make("layers").fit(data("layers", 1), epochs=1, progress=False)


def has_few_rows() -> None:
    """Of batches of one row, one of two workers has nothing: it uses rows of before."""
    for kind in ("layers", "tied"):
        sets = data(kind, BATCH + 1)
        trainers = [make(kind, microbatch=3, strategy=strategy) for strategy in (hr.Sharded("blocks.*"), None)]
        for trainer in trainers:
            trainer.fit(sets, epochs=3, progress=False)
        assert distance(full(trainers[0].model), full(trainers[1].model)) <= CLOSE


def refuses() -> None:
    meta = torch.device("meta")
    with meta:
        empty = Layers()
    stepped = Layers()
    optimizer = adam(stepped.parameters())
    stepped(torch.zeros(1, 6)).sum().backward()
    optimizer.step()
    several = {"a": adam(stepped.blocks.parameters()), "b": adam(stepped.last.parameters())}

    class Own(hr.Trainer):
        def train_step(self, batch: hr.Batch) -> hr.Outcome:
            return super().train_step(batch)

    def made(model: nn.Module, *patterns: str, optimizer: Any = adam, kind: Any = hr.Trainer, **settings: Any) -> None:
        loss = {key: hr.CrossEntropy() for key in optimizer} if isinstance(optimizer, dict) else hr.CrossEntropy()
        kind(model, loss, optimizer, strategy=hr.Sharded(*patterns), **settings)

    sets = data("layers", 34)
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: hr.Sharded(params="int8"), "unknown params 'int8'"),  # type: ignore[arg-type]
        (lambda: hr.Sharded(replicas=0), "number of sharded copies"),
        (lambda: hr.Sharded(init=3), "a path of safetensors"),  # type: ignore[arg-type]
        (lambda: made(Layers(), "block.*"), "no module is called so"),
        (lambda: made(Layers(), "blocks"), "Shard what is in it: 'blocks.*'"),
        (lambda: made(MODELS["tied"](), "embedding"), "'embedding.weight' is used in several parts of the model"),
        (lambda: made(empty), "Say how it begins"),
        (lambda: made(stepped, optimizer=optimizer), "the optimizer has made steps"),
        (lambda: made(stepped, optimizer=several), "one optimizer, got a dict of several"),
        (lambda: made(Layers(), precision="bf16"), "Use hr.Sharded(params='bf16')"),
        (lambda: made(Layers(), microbatch="auto"), "Use a number of rows"),
        (lambda: made(Layers(), tape=True), "Use no tape"),
        (lambda: made(Layers(), kind=Own), "Use an hr.Objective"),
        (lambda: make("layers", strategy=hr.Sharded(replicas=5)), "cannot be divided into 5 groups"),
        (lambda: make("layers").find_lr(sets), "here is a sharded model"),
        (lambda: make("layers").find_batch_size(sets), "here is a sharded model"),
    ]
    for call, message in cases:
        with pytest.raises((ConfigError, ModelError), match=re.escape(message)):
            call()
    made(Layers(), optimizer=adam)  # and after all that, one is made


class Branches(Layers):
    """Each worker uses another layer at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.others = nn.ModuleList([nn.Linear(5, CLASSES), nn.Linear(5, CLASSES)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.others[here().shard.index](x)  # type: ignore[no-any-return]


def reaches_others() -> None:
    trainer = hr.Trainer(Branches(), hr.CrossEntropy(), sgd, batch_size=BATCH, strategy=hr.Sharded("blocks.*"))
    trainer.fit(data("layers"), epochs=1, progress=False)


def tunes_an_adapter() -> None:
    """A model of transformers with adapters of peft."""
    import peft
    import transformers

    words = torch.randint(1, 50, (48, 6), generator=torch.Generator().manual_seed(0))
    sets = {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words[:, 0] % 3}
    found = []
    for strategy in (hr.Sharded("*.encoder.layer.*"), hr.Synchronous()):
        torch.manual_seed(0)
        sizes: Any = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = transformers.BertConfig(**sizes, num_labels=3, intermediate_size=32, max_position_embeddings=8)  # type: ignore[call-arg]
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0  # workers draw numbers of their own
        lora = peft.LoraConfig(task_type="SEQ_CLS", r=4, lora_dropout=0.0, target_modules=["query", "value"])
        model = peft.get_peft_model(transformers.BertForSequenceClassification(config), lora)
        model.one = nn.Parameter(torch.ones(1), requires_grad=False)  # of which a worker has nothing
        loss = hr.CrossEntropy(output="logits", target="labels")
        trainer = hr.Trainer(model, loss, adam, batch_size=BATCH, strategy=strategy)
        with tempfile.TemporaryDirectory() as folder:
            path = here().all_gather(folder)[0] if strategy.shards else folder
            trainer.fit(sets, epochs=4, progress=False, run=hr.Run(path, checkpoint="trainable"))
        found.append(full(trainer.model))
    assert distance(*found) <= CLOSE
    assert any("lora_B" in name and float(value.abs().max()) > 1e-3 for name, value in found[0].items())


def import_and_tune() -> None:
    """The workers are forks of a process that has these packages, which take seconds to import."""
    import peft  # noqa: F401
    import transformers  # noqa: F401

    by_workers(tunes_an_adapter)


def even(module: nn.Module) -> None:
    """Gives a module numbers that depend on their place alone."""
    for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
        tensor.copy_(torch.linspace(-0.5, 0.5, tensor.numel()).reshape(tensor.shape))


def trained_by(make_model: Callable[[], nn.Module], strategy: hr.Strategy, run: Any = None) -> Any:
    trainer = hr.Trainer(make_model(), hr.CrossEntropy(), sgd, batch_size=BATCH, strategy=strategy)
    trainer.fit(data("tied"), epochs=2, progress=False, run=run)
    return trainer.model


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return MODELS["tied"]()


def evenly() -> nn.Module:
    model = MODELS["tied"]()
    with torch.no_grad():
        model.apply(even)
    return model


def begins_without_values() -> None:
    expected = full(trained_by(evenly, hr.Synchronous()))
    found = trained_by(on_meta, hr.Sharded("blocks.*", init=even))
    assert distance(full(found), expected) <= CLOSE
    assert found.head.weight is found.embedding.weight
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "weights.safetensors")
        safetensors.torch.save_file({n: t for n, t in evenly().state_dict().items() if n != "head.weight"}, file)
        for path in (file, folder):
            assert distance(full(trained_by(on_meta, hr.Sharded("blocks.*", init=path))), expected) <= CLOSE
        with torch.device("meta"):
            other = Layers()
        with pytest.raises(ModelError, match=r"lacks blocks\.0"):
            hr.Trainer(other, hr.CrossEntropy(), adam, strategy=hr.Sharded("blocks.*", init=file))


def computes_otherwise() -> None:
    """In half precision, with shards on the host, in two copies: close, equal, equal."""
    expected = full(trained_by(evenly, hr.Synchronous()))
    half = trained_by(evenly, hr.Sharded("blocks.*", params="bf16"))
    assert {each.dtype for each in half.parameters()} == {torch.float32}
    assert CLOSE < distance(full(half), expected) < 0.05
    assert distance(full(trained_by(evenly, hr.Sharded("blocks.*", offload=True))), expected) <= CLOSE


def has_two_copies(run: str) -> None:
    expected = full(trained_by(evenly, hr.Synchronous()))
    found = trained_by(evenly, hr.Sharded("blocks.*", replicas=2), run)
    assert distance(full(found), expected) <= CLOSE
    assert (
        sorted(path.name for path in Path(run).glob("checkpoints/*/shard-*-optim.safetensors"))[-1][:11]
        == "shard-00001"
    )


def goes_on_with_one_copy(run: str) -> None:
    trainer = hr.Trainer(on_meta(), hr.CrossEntropy(), sgd, batch_size=BATCH, strategy=hr.Sharded(init=even))
    trainer.fit(data("tied"), epochs=3, progress=False, run=run)
    expected = hr.Trainer(evenly(), hr.CrossEntropy(), sgd, batch_size=BATCH)
    expected.fit(data("tied"), epochs=3, progress=False)
    assert distance(full(trainer.model), full(expected.model)) <= 1e-5


def test_copies_of_a_sharded_model_write_one_checkpoint(tmp_path: Path) -> None:
    in_workers(has_two_copies, tmp_path, str(tmp_path / "run"), workers=4)
    in_workers(goes_on_with_one_copy, tmp_path, str(tmp_path / "run"))


class Holds(torch.optim.Optimizer):
    """Holds another optimizer, whose state is saved of complete models only."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})
        self.inner = torch.optim.SGD(self.param_groups, momentum=0.9)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


def says_what_is_lost() -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.warns(UserWarning, match="Of a sharded model only"):
        run = here().all_gather(folder)[0]
        make("layers", optimizer=Holds).fit(data("layers"), epochs=1, progress=False, run=run)


def do_the_same() -> None:
    for what in (meets_bad_rows, has_few_rows, refuses, begins_without_values, computes_otherwise, says_what_is_lost):
        what()


def test_workers_do_the_same(tmp_path: Path) -> None:
    in_workers(do_the_same, tmp_path)


@pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")
def test_workers_tune_an_adapter_of_a_sharded_model(tmp_path: Path) -> None:
    with start(import_and_tune, tmp_path) as child:
        assert child.ending() == 0, child.output


FAILURES = {
    "reaches_others": r"workers have used different parameters in one update: not all of them others\.0\.bias, others",
    "stops_at_a_bad_row": "NonFiniteError: step 2 .*a gradient is not finite on worker 0. The weights are as they were",
    "begins_with_one_row": "Give the first batch at least one row for each worker.",
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_one_worker_meets_ends_all(name: str, tmp_path: Path) -> None:
    output = in_workers(globals()[name], tmp_path, code=1)
    assert re.search(FAILURES[name], output), output


def test_the_recipe_of_a_gpt_learns_on_two_processes(tmp_path: Path) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "gpt_sharded.py"
    with start(run_program, tmp_path, recipe, tmp_path) as child:
        assert child.ending() == 0, child.output
    assert "sharded over 2 workers, without arena and tape" in child.output
    assert 1 < float(child.output.split()[-1]) < 3.6  # of log(128) = 4.85


def test_workers_without_processes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"this is a process of its own\. Make the trainer"):
        make("layers")

    def main() -> None:
        make("layers")

    with pytest.raises(ConfigError, match="this is a virtual worker"):
        hr.launch(main, workers=2)
    with pytest.raises(ConfigError, match="a rehearsal on virtual workers has no such processes"):
        make("layers", strategy=None).work_with(hr.Sharded())
