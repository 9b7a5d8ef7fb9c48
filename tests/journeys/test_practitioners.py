"""What people train in practice, each beside the loop that they would write: the same weights, bit for bit."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit.small import same
from torch import Tensor, nn
from torch.utils.data import DataLoader

import headrace as hr

# --- sentences of different lengths, padded by a loader ----------------------------------------------------


class Words(nn.Module):
    """The mean of the embeddings of a sentence, classified."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 8, padding_idx=0), nn.Linear(8, 2)

    def forward(self, ids: Tensor) -> Tensor:
        there = (ids != 0).unsqueeze(-1)
        mean = (self.embed(ids) * there).sum(1) / there.sum(1)
        scores: Tensor = self.head(mean)
        return scores


def sentences(count: int, seed: int) -> list[tuple[Tensor, int]]:
    """Sentences of 3 to 20 words, and whether a word below 10 is among them."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 21, (count,), generator=generator).tolist()
    found = [torch.randint(1, 50, (length,), generator=generator) for length in lengths]
    return [(ids, int((ids < 10).any())) for ids in found]


def padded(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    ids = nn.utils.rnn.pad_sequence([ids for ids, _ in samples], batch_first=True)
    return ids, torch.tensor([label for _, label in samples])


def loader(samples: list[tuple[Tensor, int]], shuffled: bool) -> DataLoader[Any]:
    drawn = torch.Generator().manual_seed(3)
    return DataLoader(samples, 32, shuffle=shuffled, collate_fn=padded, generator=drawn)  # type: ignore[arg-type]


def test_a_loader_that_pads_every_batch_trains_as_in_a_loop() -> None:
    train, val = sentences(300, 1), sentences(100, 2)

    def made() -> tuple[Words, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = Words()
        return model, torch.optim.Adam(model.parameters(), lr=1e-2)

    raw, optimizer = made()
    batches = loader(train, shuffled=True)
    for _ in range(3):
        for ids, labels in batches:
            optimizer.zero_grad()
            F.cross_entropy(raw(ids), labels).backward()
            optimizer.step()
    with torch.no_grad():
        right = sum(int((raw(ids).argmax(1) == labels).sum()) for ids, labels in loader(val, shuffled=False))

    model, optimizer = made()
    trainer = hr.Trainer(model, nn.CrossEntropyLoss(), optimizer, metrics=["accuracy"])
    history = trainer.fit(loader(train, shuffled=True), loader(val, shuffled=False), epochs=3, progress=False)
    assert same(raw, model)
    assert history.last["val/accuracy"] == pytest.approx(right / len(val))


# --- a network against another one -----------------------------------------------------------------------


class Adversaries(nn.Module):
    """A generator of numbers, and a critic that tells them from real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
        self.judge = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))


def critic_loss(model: Adversaries, real: Tensor) -> Tensor:
    made = model.make(torch.randn(len(real), 2)).detach()
    return F.softplus(-model.judge(real)).sum() + F.softplus(model.judge(made)).sum()


def maker_loss(model: Adversaries, rows: int) -> Tensor:
    return F.softplus(-model.judge(model.make(torch.randn(rows, 2)))).sum()


class Critic(hr.Objective):
    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        assert isinstance(model, Adversaries)
        return {"critic": hr.Term(critic_loss(model, batch["x"]), batch.rows)}


class Maker(hr.Objective):
    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        assert isinstance(model, Adversaries)
        return {"maker": hr.Term(maker_loss(model, batch.rows), batch.rows)}


def adversaries() -> tuple[Adversaries, dict[str, torch.optim.Optimizer]]:
    torch.manual_seed(0)
    model = Adversaries()
    return model, {
        "critic": torch.optim.Adam(model.judge.parameters(), lr=1e-2),
        "maker": torch.optim.Adam(model.make.parameters(), lr=1e-2),
    }


def test_a_critic_learns_three_times_for_each_time_of_the_generator_as_in_a_loop(tmp_path: Path) -> None:
    real = 3 + torch.randn(600, 1, generator=torch.Generator().manual_seed(1))

    def batches() -> Iterator[Tensor]:
        with hr.Feed(hr.Reader(hr.ArrayTable({"x": real}), order="none"), "cpu", batch_size=50) as feed:
            for _ in range(4):
                for batch in feed:
                    yield batch["x"]

    raw, optimizers = adversaries()
    torch.manual_seed(5)
    for step, rows in enumerate(batches(), 1):
        raw.zero_grad()
        (critic_loss(raw, rows) / len(rows)).backward()
        optimizers["critic"].step()
        if step % 3 == 0:
            raw.zero_grad()
            (maker_loss(raw, len(rows)) / len(rows)).backward()
            optimizers["maker"].step()

    def trained(run: Path, leave_at: int | None) -> Adversaries:
        model, optimizers = adversaries()
        critic, maker = optimizers.values()
        trainer = hr.Trainer(
            model,
            {"critic": Critic(), "maker": Maker()},
            {"critic": critic, "maker": (maker, "3 steps")},
            batch_size=50,
            order="none",
        )
        torch.manual_seed(5)
        for info in trainer.steps({"x": real}, epochs=4, run=run, progress=False):
            if info.step == leave_at:
                break
        return model

    assert same(raw, trained(tmp_path / "whole", None))
    trained(tmp_path / "parts", 19)
    assert same(raw, trained(tmp_path / "parts", None)), "it went on from the middle of a round"


# --- a small language model, which writes a little after every epoch ---------------------------------------

TEXT = "the mill turns as long as the water comes down the race to the wheel . " * 40
LETTERS = sorted(set(TEXT))
CODES = torch.tensor([LETTERS.index(letter) for letter in TEXT])
LENGTH = 16


class Block(nn.Module):
    """Causal attention and a layer on each letter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.back = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unsqueeze(1) for part in self.attend(self.before(x)).chunk(3, dim=-1))
        x = x + self.back(F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1))
        y: Tensor = x + self.think(self.after(x))
        return y


class Writer(nn.Module):
    """Scores of the next letter at every place: (rows, letters, places), as the loss wants them."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), width), nn.Embedding(LENGTH, width)
        self.block, self.drop = Block(width), nn.Dropout(0.1)
        self.head = nn.Linear(width, len(LETTERS))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.letters(ids) + self.places(torch.arange(ids.shape[1]))
        scores: Tensor = self.head(self.drop(self.block(x)))
        return scores.transpose(1, 2)

    def write(self, begin: str, count: int) -> str:
        """Goes on from `begin`, each letter the likeliest."""
        for _ in range(count):
            ids = torch.tensor([[LETTERS.index(letter) for letter in begin[-LENGTH:]]])
            begin += LETTERS[int(self(ids)[0, :, -1].argmax())]
        return begin


class Writes(hr.Callback):
    """Lets the averaged model write at the end of every epoch; presses Ctrl-C after a step, once."""

    def __init__(self, interrupt_at: int | None = None) -> None:
        self.texts: list[str] = []
        self.interrupt_at = interrupt_at

    def on_step_end(self, info: hr.Info) -> None:
        if info.step == self.interrupt_at:
            self.interrupt_at = None
            os.kill(os.getpid(), signal.SIGINT)

    def on_epoch_end(self, info: hr.Info, row: dict[str, Any]) -> None:
        with info.evaluating() as model:
            assert not model.training
            self.texts.append(model.write("the wheel", 12))


def windows(begin: int, end: int) -> hr.ArrayTable:
    starts = torch.arange(begin, end, 3).unsqueeze(1) + torch.arange(LENGTH)
    return hr.ArrayTable({"x": CODES[starts], "y": CODES[starts + 1]})


def test_a_small_gpt_is_trained_averaged_interrupted_and_writes_as_in_a_loop(tmp_path: Path) -> None:
    train, val = windows(0, 2000), windows(2000, 2800)
    decay, epochs = 0.9, 4

    def made() -> tuple[Writer, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = Writer()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    raw, optimizer = made()
    mean, count, texts = made()[0].eval(), 0, []
    torch.manual_seed(5)
    with hr.Feed(hr.Reader(train, seed=0), "cpu", batch_size=32) as feed:
        for _ in range(epochs):
            raw.train()
            for batch in feed:
                optimizer.zero_grad()
                F.cross_entropy(raw(batch["x"]), batch["y"]).backward()
                optimizer.step()
                share = max(1 - decay, 1 / (count + 1))
                count += 1
                with torch.no_grad():
                    for kept, now in zip(mean.parameters(), raw.parameters(), strict=True):
                        kept.lerp_(now, share)
            texts.append(mean.write("the wheel", 12))
    with torch.no_grad():
        rows = val.take(torch.arange(len(val)))
        loss = float(F.cross_entropy(mean(rows["x"]), rows["y"]))

    def trained(run: Path, writes: Writes) -> tuple[Writer, Callable[[], hr.History]]:
        model, optimizer = made()
        trainer = hr.Trainer(model, nn.CrossEntropyLoss(), optimizer, batch_size=32, seed=0)
        torch.manual_seed(5)
        data = hr.Reader(train, seed=0), val
        return model, lambda: trainer.fit(
            *data, epochs=epochs, run=run, callbacks=[hr.EMA(decay), writes], progress=False
        )

    writes = Writes()
    whole, fit = trained(tmp_path / "whole", writes)
    assert fit().last["val/loss"] == pytest.approx(loss, rel=1e-5)
    assert writes.texts == texts
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(whole.parameters(), mean.parameters(), strict=True))

    stopped, again = Writes(interrupt_at=50), Writes()
    _, fit = trained(tmp_path / "parts", stopped)
    with pytest.raises(KeyboardInterrupt):
        fit()
    parts, fit = trained(tmp_path / "parts", again)
    fit()
    assert same(whole, parts)
    assert stopped.texts + again.texts == texts


# --- an agent that learns from what it has met ----------------------------------------------------------------

PLACES, GOAL = 8, 7


def walk(place: int, right: bool) -> tuple[int, float, bool]:
    """A corridor with a reward at its end."""
    place = min(max(place + (1 if right else -1), 0), GOAL)
    return place, float(place == GOAL), place == GOAL


class Lookahead(hr.Objective):
    """The value of what was done, against the reward and the value of what can be done next."""

    def __init__(self, target: nn.Module) -> None:
        self.target = target

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        loss = lookahead_loss(model, self.target, batch.fields)
        return {"lookahead": hr.Term(loss * batch.rows, batch.rows)}


def lookahead_loss(model: nn.Module, target: nn.Module, rows: Any) -> Tensor:
    values = model(rows["place"]).gather(1, rows["action"].unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        future = target(rows["after"]).max(dim=1).values * (1 - rows["ended"])
    return F.smooth_l1_loss(values, rows["reward"] + 0.9 * future)


def values() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(PLACES, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))


def played(model: nn.Module, target: nn.Module, learn: Callable[[dict[str, Tensor]], Any]) -> list[int]:
    """Plays and learns after every move; the lengths of the games."""
    generator = torch.Generator().manual_seed(1)
    met: list[tuple[int, int, float, int, float]] = []
    lengths, place, begun = [], 0, 0
    for move in range(1200):
        with torch.no_grad():
            greedy = int(model(torch.tensor([place])).argmax())
        explores = float(torch.rand((), generator=generator)) < max(0.05, 1 - move / 600)
        action = int(torch.randint(2, (), generator=generator)) if explores else greedy
        after, reward, ended = walk(place, bool(action))
        met.append((place, action, reward, after, float(ended)))
        place = after
        if ended:
            lengths.append(move + 1 - begun)
            place, begun = 0, move + 1
        if move >= 64:
            drawn = torch.randint(len(met), (32,), generator=generator).tolist()
            columns = zip(*(met[k] for k in drawn), strict=True)
            names = ("place", "action", "reward", "after", "ended")
            learn({name: torch.tensor(column) for name, column in zip(names, columns, strict=True)})
        if move % 50 == 0:
            target.load_state_dict(model.state_dict())
    return lengths


def test_an_agent_learns_from_its_memory_as_in_a_loop() -> None:
    raw, target = values(), values()
    optimizer = torch.optim.Adam(raw.parameters(), lr=3e-3)

    def update(rows: dict[str, Tensor]) -> None:
        optimizer.zero_grad()
        lookahead_loss(raw, target, rows).backward()
        optimizer.step()

    lengths = played(raw, target, update)
    assert lengths[-1] < 10 < lengths[0], "7 moves are needed; the rest is exploring"

    model, target = values(), values()
    trainer = hr.Trainer(model, Lookahead(target), torch.optim.Adam(model.parameters(), lr=3e-3))
    assert played(model, target, trainer.step) == lengths
    trainer.release()
    assert same(raw, model)


# --- one network, two tasks ------------------------------------------------------------------------------------


class TwoTasks(nn.Module):
    """Names a digit and measures its ink."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.digit, self.ink = nn.Linear(32, 10), nn.Linear(32, 1)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        seen = self.body(image)
        return {"digit": self.digit(seen), "ink": self.ink(seen).squeeze(1)}


def test_two_tasks_are_trained_and_scored_on_two_sets_as_in_a_loop() -> None:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    image, digit = torch.tensor(pixels / 16).float(), torch.tensor(labels)
    data = {"image": image, "digit": digit, "ink": image.mean(1)}
    train, clean = ({name: column[rows] for name, column in data.items()} for rows in (slice(1400), slice(1400, None)))
    noise = torch.randn(clean["image"].shape, generator=torch.Generator().manual_seed(1))
    noisy = {**clean, "image": clean["image"] + noise}

    def made() -> tuple[TwoTasks, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = TwoTasks()
        return model, torch.optim.Adam(model.parameters(), lr=1e-2)

    raw, optimizer = made()
    with hr.Feed(hr.Reader(hr.ArrayTable(train), seed=0), "cpu", batch_size=100) as feed:
        for _ in range(8):
            for batch in feed:
                optimizer.zero_grad()
                found = raw(batch["image"])
                (F.mse_loss(found["ink"], batch["ink"]) + F.cross_entropy(found["digit"], batch["digit"])).backward()
                optimizer.step()
    expected = {}
    for name, rows in (("clean", clean), ("noisy", noisy)):
        with torch.no_grad():
            found = raw(rows["image"])
        expected[f"val/{name}/digit/accuracy"] = float((found["digit"].argmax(1) == rows["digit"]).float().mean())
        expected[f"val/{name}/ink/mae"] = float((found["ink"] - rows["ink"]).abs().mean())

    model, optimizer = made()
    trainer = hr.Trainer(
        model,
        hr.MSE(output="ink", target="ink") + hr.CrossEntropy(output="digit", target="digit"),
        optimizer,
        batch_size=100,
        inputs="image",
        metrics={"digit": ["accuracy"], "ink": ["mae"]},
    )
    history = trainer.fit(train, {"clean": clean, "noisy": noisy}, epochs=8, progress=False)
    assert {key: history.last[key] for key in expected} == pytest.approx(expected, rel=1e-4)
    assert expected["val/clean/digit/accuracy"] > 0.8 > expected["val/noisy/digit/accuracy"]


class Plays(hr.Source):
    """Moves in the corridor, each as the model that is being trained would make it now."""

    streams = (hr.Stream("place", dtype="int64"), hr.Stream("action", dtype="int64"), hr.Stream("gain"))
    endless = True

    def __init__(self, model: nn.Module) -> None:
        self.model, self.place = model, 0
        self.generator = torch.Generator().manual_seed(1)

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch:
        places, actions, rewards, ends = [], [], [], []
        for _ in range(size):
            with torch.no_grad():
                chances = self.model(torch.tensor([self.place])).softmax(1)[0]
            action = int(torch.multinomial(chances, 1, generator=self.generator))
            after, reward, ended = walk(self.place, bool(action))
            places.append(self.place)
            actions.append(action)
            rewards.append(reward - 0.05)
            ends.append(ended)
            self.place = 0 if ended else after
        gains, gain = [], 0.0
        for reward, ended in zip(reversed(rewards), reversed(ends), strict=True):
            gain = reward + 0.9 * gain * (not ended)
            gains.append(gain)
        return hr.Batch(
            {"place": torch.tensor(places), "action": torch.tensor(actions), "gain": torch.tensor(gains[::-1])}
        )

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state(), "place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])
        self.place = state["place"]


def regret(model: nn.Module, rows: Any) -> Any:
    chosen = model(rows["place"]).log_softmax(1).gather(1, rows["action"].unsqueeze(1)).squeeze(1)
    return -(chosen * rows["gain"]).sum()


class Reinforce(hr.Objective):
    """What went well is made likelier."""

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        return {"regret": hr.Term(regret(model, batch.fields), batch.rows)}


def test_an_agent_that_learns_from_what_it_does_now_is_trained_as_in_a_loop(tmp_path: Path) -> None:
    raw = values()
    optimizer = torch.optim.Adam(raw.parameters(), lr=1e-2)
    source = Plays(raw)
    for _ in range(60):
        batch = source.next_batch(20)
        optimizer.zero_grad()
        (regret(raw, batch.fields) / batch.rows).backward()
        optimizer.step()
    assert raw(torch.arange(GOAL)).argmax(1).all(), "it goes to the right from everywhere"

    def trained(run: Path, steps: int) -> nn.Module:
        model = values()
        trainer = hr.Trainer(model, Reinforce(), torch.optim.Adam(model.parameters(), lr=1e-2), batch_size=20)
        trainer.fit(Plays(model), steps=steps, run=run, progress=False)
        return model

    assert same(raw, trained(tmp_path / "whole", 60))
    trained(tmp_path / "parts", 23)
    assert same(raw, trained(tmp_path / "parts", 60))
