"""The parts of a training's state, as a checkpoint holds them, and what each of them looks like."""

from typing import Any

from .shape import AMOUNT, ANY, COUNT, DICT, FLAG, NUMBER, ROWS, SCALAR, TENSOR, TEXT, Shape, check, each, maybe

_COUNTERS = {"steps": COUNT, "samples": COUNT, "epochs": COUNT, "minutes": AMOUNT}
_PLACE = {"batch": COUNT, "rows": COUNT, "ends_epoch": FLAG}
_ROW = {"epoch": COUNT, "step": COUNT, "samples": COUNT, "rate": NUMBER}
_SCHEDULER = {"kind": maybe(TEXT), "state": maybe(DICT), "total": maybe(NUMBER), "waits": maybe(FLAG)}
_EPOCH = {"steps": maybe(COUNT), "samples": maybe(COUNT), "batches": maybe(COUNT)}
_RATES = [_SCHEDULER | _EPOCH]  # of torch's schedulers, or of a function of the progress
_GROUP = {"lr": maybe(SCALAR), "initial_lr": maybe(SCALAR)}
_OPTIMIZER = {"kind": TEXT, "groups": [_GROUP], "names": [[TEXT]], "state": each(DICT), "elsewhere": [TEXT]}
_TALLY = {"coefficients": each(SCALAR), "sums": each(NUMBER), "weights": each(NUMBER), "waiting": each([ANY])}
_METRICS = {"task": maybe(DICT), "block": [TENSOR], "live": each(DICT)}
_RNG = {"python": [ANY], "numpy": DICT, "torch": TENSOR, "cuda": maybe(TENSOR)}
_TRAINED = {"weights": maybe(each(TENSOR)), "counts": maybe([TENSOR])}

_BEST = {"key": TEXT, "value": SCALAR, "step": COUNT, "keep": [COUNT], "restore": FLAG}
_WORKER = {
    "rng": _RNG,
    "tally": _TALLY,
    "metrics": _METRICS,
    "microbatch": maybe(COUNT),
    "strategy": maybe(DICT),
    "optimizers": maybe(each(_OPTIMIZER)),
    "updates": maybe(COUNT),
    "counters": maybe(_COUNTERS),
    "place": maybe(_PLACE),
    "done": maybe([TEXT]),
    "complete": maybe(FLAG),
    "rates": maybe(_RATES),
    "trained": maybe(_TRAINED),
    **_TRAINED,
}
PARTS: dict[str, Shape] = {
    "model": each(TENSOR),
    "extra": DICT,
    "step": {
        "updates": COUNT,
        "skipped": COUNT,
        "microbatch": maybe(COUNT),
        "settings": maybe({"microbatch": maybe(ROWS), "clip_norm": maybe(AMOUNT), "clip_value": maybe(AMOUNT)}),
        "scaler": DICT,
        "optimizers": each(_OPTIMIZER),
    },
    "modules": {"transient": each(TENSOR), "others": [DICT]},
    "counters": _COUNTERS,
    "place": _PLACE,
    "done": [TEXT],
    "complete": FLAG,
    "rates": _RATES,
    "callbacks": each(ANY),
    "best": maybe(_BEST),
    "marks": each(_BEST),
    "config": DICT,
    "limits": each(NUMBER),
    "frozen": each([TEXT]),
    "noted": each(NUMBER),
    "shares": [NUMBER],
    "history": [_ROW],
    "source": {"cursor": ANY, "initial": ANY},
    "worker": _WORKER,
}
"""The parts that every checkpoint has."""
_OF_SEVERAL: dict[str, Shape] = {
    "round": {"counters": maybe(_COUNTERS), "place": maybe(_PLACE), "cursor": maybe(ANY)},
    "strategy": DICT,
    "kind": TEXT,
    "agrees": FLAG,
}
"""Those of several workers."""


def check_part(part: str, value: Any, at: str) -> None:
    """Raises unless a part of the state looks as it should; of "worker 1" and so on nothing may be known."""
    if not part.startswith("worker "):
        check(value, (PARTS | _OF_SEVERAL).get(part, ANY), at)
    elif value != {}:
        check(value, _WORKER, at)
