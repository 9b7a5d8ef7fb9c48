"""Thousands of checkpoints with something changed in them, which COMMIT vouches for: an error of ours, or a result."""

import copy
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from kit.fault_harness import RUN, recommit, scratch
from kit.sampled import seeds
from kit.spoilt import spoilt

from headrace.errors import HeadraceError
from headrace.store.checkpoints import Store
from headrace.store.codec import decode, encode
from headrace.store.contents import Contents

STEP, LIMIT_S = 1, 10.0
SEEDS = seeds(200, nightly=2000)
COUNT = len(SEEDS)


@pytest.fixture
def store() -> Iterator[Store]:
    tensors: dict[str, torch.Tensor] = {}
    numpy = {"bit_generator": "MT19937", "state": {"key": np.arange(624, dtype=np.uint32), "pos": 7}, "gauss": 0.5}
    state = {
        "rng": {"python": [3, torch.arange(625), None], "numpy": numpy},
        "odd": (1, 2.5, float("nan")),
        "items": {1: "one", (2, 3): None},
    }
    document = encode({"step": STEP, **state, "names": ["α", "b"], "deep": {"a": [{"b": [1, [2]]}]}}, tensors, "state")
    model = {
        "weight": torch.arange(6.0).view(3, 2),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "count": torch.tensor(3),
    }
    files = {"model.safetensors": {**model, "none": torch.empty(0, 4)}, "rank-00000.safetensors": tensors}
    with scratch() as path:
        store = Store(path / "checkpoints", RUN)
        store.save(Contents(STEP, {"trainer.json": document}, files))
        use(store)
        yield store


def use(store: Store) -> None:
    """Everything that reads a checkpoint, up to the values that were saved."""
    store.verify(STEP)
    found = store.load(STEP)
    tensors = {name: tensor for file in found.tensors.values() for name, tensor in file.items()}
    for document in found.documents.values():
        decode(document, tensors)


def survey(store: Store, change: Callable[[Random], None]) -> dict[str, int]:
    """What using a changed checkpoint came to, so many times; another error than ours is kept in full."""
    outcomes, slowest_s = Counter[str](), 0.0
    for seed in SEEDS:
        change(Random(seed))
        start_s = time.process_time()
        try:
            use(store)
            outcome = "a result"
        except HeadraceError as error:
            outcome = type(error).__name__
        except Exception as error:
            outcome = f"{type(error).__name__}: {str(error)[:60]}"
        slowest_s = max(slowest_s, time.process_time() - start_s)
        outcomes[outcome] += 1
    assert slowest_s < LIMIT_S
    return outcomes


def only_ours(outcomes: dict[str, int]) -> None:
    assert sum(outcomes.values()) == COUNT
    others = {name: n for name, n in outcomes.items() if name not in ("a result", "CorruptError", "CheckpointError")}
    assert others == {}
    assert outcomes["CorruptError"] > COUNT / 20, "hardly a change was noticed: is it made?"


# --- what is changed --------------------------------------------------------------------------------------

ODD: list[Any] = [None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**30, 0.5, -0.0, 1e308, "", "a", "0"]
ODD += [float("inf"), float("nan"), "\ud800", "x" * 5000, "../x", "F32", "$tensor", [], {}, [[]], [None], {"": None}]
ODD += [{"$tensor": None}, {"$tensor": []}, {"$tensor": {}}, {"$tensor": 1}, {"$array": "half"}, {"$array": []}]
ODD += [{"$float": None}, {"$float": "x"}, {"$float": []}, {"$float": "1" * 5000}, {"$tuple": 1}, {"$tuple": None}]
ODD += [{"$items": 1}, {"$items": [1]}, {"$items": [[[], 1]]}, {"$items": [[1, 2, 3]]}, {"$items": {"a": 1}}]
ODD += ["@10", "@100", "@400", "@900", "@30000"]  # in the text, so many lists in each other
ODD += [{"$unknown": 1}, {"$": 1}, {"$items": [[{"$tensor": "half"}, 1]]}, {"$tuple": {"$tuple": []}}]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a document, as what it is in and the key or the number it has there."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [place for key in keys for place in [(value, key), *places(value[key])]]


def restructured(document: Any, random: Random) -> Any:
    """One to three changes of what a document holds."""
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        found = places(document)
        if not found:
            break
        inside, key = random.choice(found)
        how = random.randrange(6)
        if how == 0:
            del inside[key]
        elif how == 1:
            inside[key] = [inside[key]]
        elif how == 2 and isinstance(inside, list):
            inside.append(inside[key])
        elif how == 3 and isinstance(inside, dict):
            inside[random.choice(["$tensor", "$", "a", "", "\ud800", "__metadata__"])] = inside.pop(key)
        elif how == 4:
            other, there = random.choice(found)
            inside[key] = json.loads(json.dumps(other[there]))
        else:
            inside[key] = copy.deepcopy(random.choice(ODD))  # which the next change may change
    return document


def nested(text: str) -> str:
    """Puts lists in lists where `ODD` has "@" and how many."""
    return re.sub(r'"@(\d+)"', lambda found: "[" * int(found[1]) + "]" * int(found[1]), text)


def mutated(data: bytes, random: Random) -> bytes:
    """JSON with something else in it, in two of three cases with its structure changed."""
    if random.randrange(3) == 0:
        return spoilt(data, random, most=1)
    return nested(json.dumps(restructured(json.loads(data), random))).encode()


# --- the surveys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["manifest.json", "trainer.json"])
def test_any_document_gives_an_error_of_ours_or_a_result(name: str, store: Store) -> None:
    path = store.at(STEP)
    data = (path / name).read_bytes()

    def change(random: Random) -> None:
        changed = mutated(data, random)
        recommit(path, changed) if name == "manifest.json" else recommit(path, files={name: changed})

    only_ours(survey(store, change))


@pytest.mark.parametrize("agreeing", [False, True], ids=["manifest as it was", "manifest agreeing"])
def test_any_header_of_tensors_gives_an_error_of_ours_or_a_result(agreeing: bool, store: Store) -> None:
    path = store.at(STEP)
    data = (path / "model.safetensors").read_bytes()
    told = (path / "manifest.json").read_bytes()
    length = int.from_bytes(data[:8], "little")

    def change(random: Random) -> None:
        header = mutated(data[8 : 8 + length], random)
        announced = len(header) if random.random() < 0.9 else random.choice([0, 1, 2**20, 2**63, len(header) + 1])
        changed = announced.to_bytes(8, "little") + header + data[8 + length :]
        recommit(path, manifest=agreed(told, header) if agreeing else told)
        recommit(path, files={"model.safetensors": changed})

    outcomes = survey(store, change)
    only_ours(outcomes)
    assert outcomes["CorruptError"] > COUNT / 2


def agreed(told: bytes, header: bytes) -> bytes:
    """A manifest that tells the tensors as a header does, as far as that can be read."""
    manifest = json.loads(told)
    try:
        found = json.loads(header)
        manifest["tensors"]["model.safetensors"] = {
            name: [entry["dtype"], entry["shape"]] for name, entry in found.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return json.dumps(manifest).encode()


def test_the_surveys_notice_an_error_that_is_not_ours(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the same survey, of a reader that believes what it reads."""
    monkeypatch.setattr("headrace.store.contents.check", lambda *_: None)
    data = (store.at(STEP) / "manifest.json").read_bytes()
    outcomes = survey(store, lambda random: recommit(store.at(STEP), manifest=mutated(data, random)))
    with pytest.raises(AssertionError):
        only_ours(outcomes)
