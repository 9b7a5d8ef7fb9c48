"""The claim of one trainer on a run in an object store, so that a second one is refused."""

import json
import os
import re
import socket
import time
import uuid
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import RunError
from .document import parse_document
from .remote import Object, Remote

EXPIRY_S = 60.0  # after which a claim that is not renewed is taken over
RENEW_S = 10.0
POLL_S = 1.0
_FOLDER = "claim"
_NAME = re.compile(r"claim/(\d{6})\.json")


@dataclass
class Claim:
    """Claims have numbers, and the highest one counts. A new one is created in one operation (`If-None-Match`).

    Whether a claim has expired is seen by the times that the store gives its objects, never by a clock of this machine,
    and one that is renewed is alive. All checkpoints of a claim have higher numbers than those of the claims before:
    even a trainer that has slept through its expiry, and goes on writing, changes nothing that counts.

    So `check` need not be certain. It tells a trainer that was asleep before it writes for nothing. Where the claim was
    renewed less than half of `EXPIRY_S` ago by two clocks of this machine, one of which runs while it sleeps, nobody
    can have taken the run over, and nothing is asked. A machine that is stopped after a check, or whose clocks both
    stood still with it, writes a checkpoint that does not count, and is told when it renews its claim next.
    """

    remote: Remote
    number: int
    token: str
    before: str | None = None
    """The token of the claim before this one."""
    renewed: tuple[float, ...] = ()
    """When it was created or renewed last, by the clocks of this machine."""

    @classmethod
    def make(cls, remote: Remote, token: str, dead: Collection[str]) -> "Claim":
        """Claims a run; raises if another trainer is at work in it. `dead`: tokens of trainers that have ended."""
        while True:
            number, before = last_claim(remote, remote.objects(_FOLDER))
            if before is not None:
                _wait_for_expiry(remote, number, before, dead)
            claim = cls(remote, number + 1, token, token_of(before), _clocks())
            if claim._create():
                remote.remove([_name(number)] if number else [])
                return claim

    def renew(self, remote: Remote) -> None:
        """Says that this trainer is alive; raises if another has taken the run over."""
        began = _clocks()
        self._ask(remote)
        remote.write(_name(self.number), self._text())
        self.renewed = began

    def check(self) -> None:
        """Raises if another trainer has taken the run over."""
        passed = [now - then for now, then in zip(_clocks(), self.renewed, strict=True)]
        if not all(0 <= each < EXPIRY_S / 2 for each in passed):
            self._ask(self.remote)

    def _ask(self, remote: Remote) -> None:
        """A claim of a higher number is seen even if this one was written again after it."""
        number, text = last_claim(remote, remote.objects(_FOLDER))
        if number == self.number and token_of(text) == self.token:
            return
        raise RunError(
            f"{self.remote.url} has been taken over by another trainer, since this one did not renew its claim for "
            f"{EXPIRY_S:g} s. What it trains from here on is not kept; end it, or name another run."
        )

    def release(self) -> None:
        """Lets another trainer in at once. The number stays taken."""
        self.remote.write(_name(self.number), self._text(released=True))

    def _create(self) -> bool:
        """Creates the claim, unless another trainer has. A second try has to fail, where the store can tell."""
        name, text = _name(self.number), self._text()
        try:
            if not self.remote.create(name, text):
                return False
            is_exclusive = not self.remote.create(name, self._text())
        except RunError as error:
            if not isinstance(error.__cause__, TypeError) and "NotImplemented" not in str(error):
                raise
            is_exclusive = False
        if not is_exclusive:
            self.remote.write(name, text)
            warnings.warn(
                f"{self.remote.url} cannot create an object only where there is none (If-None-Match): two trainers "
                "that begin at the same moment are not noticed there. Start one at a time.",
                stacklevel=4,
            )
        return True

    def _text(self, **more: Any) -> bytes:
        facts = {"token": self.token, "host": socket.gethostname(), "process": os.getpid(), "beat": uuid.uuid4().hex}
        return json.dumps(facts | more).encode()


def _clocks() -> tuple[float, float]:
    """The seconds of a clock that nobody sets, and those of the day; both also run while the machine sleeps.

    Where the system has no such clock, the first does not.
    """
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot), time.time()


def last_claim(remote: Remote, objects: Mapping[str, Object]) -> tuple[int, bytes | None]:
    """The number of the claim that counts, and its text; 0 if there is none."""
    number = max((int(match[1]) for name in objects if (match := _NAME.fullmatch(name))), default=0)
    return number, remote.read(_name(number)) if number else None


def token_of(text: bytes | None) -> str | None:
    """The token in the text of a claim."""
    return None if text is None else _facts(text).get("token")


def _wait_for_expiry(remote: Remote, number: int, text: bytes, dead: Collection[str]) -> None:
    """Returns once the last claim is over; raises if its trainer is seen to be alive."""
    facts = _facts(text)
    if facts.get("released") or facts.get("token") in dead:
        return
    age = _age(remote, _name(number))
    began = time.monotonic()
    while age + time.monotonic() - began < EXPIRY_S:
        time.sleep(POLL_S)
        if (now := remote.read(_name(number))) != text:
            if now is not None and _facts(now).get("released"):
                return
            raise RunError(
                f"{remote.url} is in use by process {facts.get('process')} on {facts.get('host')}, which renewed its "
                f"claim {age:.0f} s before this one was made, and again since. One trainer at a time: wait for it, end "
                "it, or name another run."
            )


def _age(remote: Remote, name: str) -> float:
    """For how many seconds an object has been there, by the clock of the store: it is asked to write another."""
    probe = f"claim/clock-{uuid.uuid4().hex}"
    remote.write(probe, b"")
    objects = remote.objects(_FOLDER)
    remote.remove([probe])
    now, then = (objects[each].modified if each in objects else None for each in (probe, name))
    return 0.0 if now is None or then is None else max(0.0, now - then)


def _name(number: int) -> str:
    return f"claim/{number:06d}.json"


def _facts(text: bytes) -> dict[str, Any]:
    try:
        found = parse_document(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
