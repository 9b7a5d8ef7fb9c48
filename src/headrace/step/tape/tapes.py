"""A model's passes: which of them are recorded, proven and replayed."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...arena.arena import Arena
from ...data.batch import Batch
from ...errors import ModelError
from ...loss.base import Term
from ...loss.objective import Objective, Terms
from .program import Builder, Memory
from .proof import Proof
from .recording import Recording
from .snapshot import Snapshot, same_bits, same_terms
from .state import PassState
from .tape import Tape, outputs_of

Wanted = Literal["auto"] | bool
Eager = Callable[[Batch, Recording | None, bool], Mapping[str, Term]]
"""A pass by torch, recorded if a recording is given; and whether it is the update's, or one beside it."""
Replay = Callable[[Tape, Batch], Mapping[str, Term]]
LARGEST = 16 << 20
"""Bytes of gradients or of planned memory from which on a pass is arithmetic, and little time can be saved."""
MADE = 8 * LARGEST
"""Bytes of all that a pass makes from which on it is not even tried."""
SLOW = 0.05
"""Seconds of a pass from which on it is not even tried: what a replay saves is less than the recording costs."""
KINDS = 8
"""How many kinds of passes are remembered."""
SEEN, CHECKS = 2, 2
"""A pass is recorded when its like has been seen so often, and replayed when it has been compared so often."""
SEEN_OF_MANY = 64
"""As `SEEN`, for workers that take turns, each of which records its own."""
RARE = 32
"""Passes of which another kind has been seen more than so many times as often are not recorded."""
CHANGES = 4
"""How often what a model holds may change before its passes are not recorded any more."""
TOO_LARGE = "a pass is so large that nothing would be saved"
TOO_SLOW = "a pass takes so long that nothing would be saved"
DRAWN = "a pass draws random numbers, and another thread draws some at the same time"
GAIN = 0.97
"""A replay takes at most so much of the eager pass's time, or is not worth it."""


@dataclass(eq=False, slots=True)
class PassKind:
    """Passes alike: those of batches with the same streams and shapes."""

    seen: int = 0
    tape: Tape | None = None
    state: PassState | None = None
    refused: bool = False
    due: int = CHECKS
    """How many comparisons are to be made before the next replay."""
    changes: int = 0
    replays: int = 0
    seeds: Sequence[Tensor] | None = None
    """What the backward pass begins with, if all batches of the kind have the same."""
    eager_s: float = math.inf
    replay_s: float = math.inf

    def forget(self) -> None:
        """The recording is of no use any more."""
        self.tape, self.state, self.seeds, self.seen, self.due = None, None, None, 0, CHECKS


class Tapes:
    """The passes of one optimizer's updates: those left to torch, and replays of those that are proven and quicker.

    Both give the same bits. `wanted`: "auto", `True` (what cannot be recorded is an error) or `False`. `note` says what
    has been decided, and why.
    """

    def __init__(
        self,
        wanted: Wanted,
        model: nn.Module,
        objective: Objective,
        device: torch.device,
        memory: Memory | None,
        arena: Arena | None = None,
    ) -> None:
        self.wanted, self.note = wanted, ""
        self._model, self._objective, self._arena, self._device = model, objective, arena, device
        self._kinds: dict[Any, PassKind] = {}
        self._memory = {} if memory is None else memory
        self._patience = SEEN if memory is None else SEEN_OF_MANY
        self._last: tuple[Any, PassKind] | None = None
        self.watched = True
        """Whether anybody may change the model between two passes of `outputs`."""
        self._again: tuple[Tape | None, Any, int] = None, None, 0  # for the next batch of a macrobatch, if it is alike
        self.possible = wanted is not False
        if self.possible and device.type != "cpu":
            self._refuse(f"the model is on {device}")
        elif self.possible and arena is not None and not arena.vectors:
            self._refuse("no parameter is stored in a vector, as with arena=False")
        elif self.possible and any(map(_is_compiled, model.modules())):
            self._refuse("the model is compiled")
        elif wanted == "auto" and sum(p.nbytes for p in model.parameters()) > LARGEST:
            self._refuse("the model is so large that nothing would be saved")

    def kind_of(self, part: Batch, first: bool) -> PassKind | None:
        """The passes like that of this microbatch, the `first` of an update or not; `None` if they are torch's."""
        if not self.possible or (self._arena is not None and not self._arena.proven):
            return None
        known = None if self._arena is None else self._objective.known(part)
        likeness = (first, part.rows, part.total, part._share, known, *map(_layout, part.fields.items()))
        if self._last is None or self._last[0] != likeness:
            for name, value in part.fields.items():
                if type(value) is not Tensor:
                    self._refuse(f"stream {name!r} is a {type(value).__name__}")
                    return None
            if likeness not in self._kinds and len(self._kinds) >= KINDS:
                del self._kinds[min(self._kinds, key=lambda k: self._kinds[k].seen)]
            self._last = likeness, self._kinds.setdefault(likeness, PassKind())
        kind = self._last[1]
        kind.seen += 1
        return None if kind.refused else kind

    def outputs(self, batch: Batch, call: Callable[[Batch], Any]) -> Any:
        """What the model returns for a batch, as `call` does; for a model that is not being trained."""
        tape, whole, rows = self._again
        if tape is not None and batch.whole is whole and batch.rows == rows:
            return tape.outputs(batch)
        kind = self.kind_of(batch, True)
        if kind is None:
            return call(batch)
        tape = self.ready(kind)
        if tape is not None:
            kind.replays += 1
            if not self.watched and batch.whole is not None:
                self._again = tape, batch.whole, batch.rows
            return tape.outputs(batch)

        def eager(batch: Batch, recording: Recording | None, counts: bool) -> Terms:
            terms = Terms()
            with recording or nullcontext():
                terms.outputs = call(batch)
                if recording is not None:
                    recording.end_forward(terms, terms.outputs)
            return terms

        return outputs_of(self.learn(kind, batch, True, eager, lambda tape, batch: tape.forward(batch)))

    def end_epoch(self) -> None:
        """One pass of each kind is compared with torch's again; one that comes once in an epoch is not recorded."""
        self._last, self._again = None, (None, None, 0)
        for key, kind in list(self._kinds.items()):
            if kind.tape is not None:
                kind.due = max(1, kind.due)
            elif not kind.refused and kind.seen <= self._patience:
                del self._kinds[key]

    def ready(self, kind: PassKind) -> Tape | None:
        """The recording, if the next pass is a replay of it."""
        if kind.state is None:
            return None
        if not kind.state.holds():  # as it is before an update brings parameters home
            self._changed(kind)
            return None
        return None if kind.due else kind.tape

    def learn(self, kind: PassKind, part: Batch, first: bool, eager: Eager, replay: Replay) -> Mapping[str, Term]:
        """A pass by torch, which is recorded if it is time to, or compared with a replay."""
        if kind.state is not None and not kind.state.holds():
            self._changed(kind)
        if kind.tape is None and (kind.seen <= self._patience or self._is_rare(kind)):
            return self._timed(kind, part, eager)
        if kind.tape is None and self.wanted == "auto" and kind.eager_s > SLOW:
            self._refuse(TOO_SLOW, kind)
            return eager(part, None, True)
        before = Snapshot(self._model, self._arena, self._device)
        records = kind.tape is None
        terms = self._record(kind, part, before, eager, first) if records else self._timed(kind, part, eager)
        if kind.tape is None:
            return terms
        after = Snapshot(self._model, self._arena, self._device)
        before.restore(kind.tape.random)
        start = time.perf_counter()
        again = replay(kind.tape, part)
        kind.replay_s = min(kind.replay_s, time.perf_counter() - start)
        found = Snapshot(self._model, self._arena, self._device)
        same, draws = same_terms(terms, again) and after.equals(found), kind.tape.random
        if draws and not after.drew_as(found):
            after.restore(draws)
            self._refuse(DRAWN, kind)
            return terms
        if kind.due == 1 and kind.replay_s > GAIN * kind.eager_s:  # perhaps since its memory was in no cache
            before.restore(draws)
            start = time.perf_counter()
            replay(kind.tape, part)
            kind.replay_s = min(kind.replay_s, time.perf_counter() - start)
        after.restore(draws)
        self._judge(kind, same)
        return terms

    def _timed(self, kind: PassKind, part: Batch, eager: Eager) -> Mapping[str, Term]:
        start = time.perf_counter()
        terms = eager(part, None, True)
        kind.eager_s = min(kind.eager_s, time.perf_counter() - start)
        return terms

    def _is_rare(self, kind: PassKind) -> bool:
        """Whether so few passes are of this kind that recording it would take longer than its replays save."""
        return self.wanted == "auto" and max(each.seen for each in self._kinds.values()) > RARE * kind.seen

    def _record(self, kind: PassKind, part: Batch, before: "Snapshot", eager: Eager, first: bool) -> Mapping[str, Term]:
        """A pass by torch; it is recorded if the pass before has been proven.

        What is recorded beside the pass that counts is called a second time, which nothing may notice.
        """
        insists, proven = self.wanted is True, kind.state
        state = proven or PassState(self._model, self._objective)
        problem = "" if state.is_plain() else "hooks, autocast or a mode of torch change what operations do"
        if self._arena is not None and any(param.requires_grad for param in self._arena.loose):
            problem = "not all parameters are stored in a vector: single numbers and sparse gradients are not"
        if problem:
            self._refuse(problem, kind)
            return eager(part, None, True)
        params = list(self._model.parameters())
        gradients = [p.grad for p in params] if self._arena is not None else []
        recording = self._recording(part, [*params, *state.tensors], gradients)
        proof = Proof(state)
        with proof if proven is None else nullcontext():
            terms = eager(part, recording if insists else None, True)
        if proven is None:
            proof.conclude()
        if self._arena is not None and not any(float(term.weight) for term in terms.values()):
            kind.forget()  # a batch that teaches nothing does not show the backward pass
            return terms
        recording.end()
        problem = proof.reads_memory if insists else proof.problem or recording.problem
        if not problem and not state.holds():
            problem = "a pass changes what the model holds"
        if not problem and any(p.grad is not was for p, was in zip(params, gradients, strict=False)):
            problem = "a pass exchanges a gradient"
        if not problem and gradients and any(tensor.requires_grad for tensor in state.others(params)):
            problem = "a tensor with a gradient is no parameter of the model"
        if not problem and proven is None and not insists:
            kind.state = state
            return terms
        if not problem and not insists:  # some operations compute in another way while they are recorded
            problem = self._record_again(part, before, terms, eager, recording, state.memory())
        recording.end()
        problem = recording.problem or problem
        made = [value.nbytes for call in recording.calls for value in call.made() if value.base is None]
        if self.wanted == "auto" and (sum(made) > MADE or max(made, default=0) > LARGEST):
            problem = problem or TOO_LARGE
        if problem := problem or self._build(kind, part, before, terms, recording, first):
            self._refuse(problem, kind)
            return terms
        kind.state = state
        self._keep_other_gradients(state, recording, params)
        return terms

    def _recording(self, part: Batch, fixed: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Recording:
        """A recording of a pass, which may write into buffers that share memory with nothing else."""
        given: dict[str, Any] = {f"x{k}": value for k, value in enumerate(part.fields.values())}
        memory = {tensor.untyped_storage().data_ptr() for tensor in fixed}
        buffers = list(self._model.buffers())
        own = [buffer for buffer in buffers if buffer.untyped_storage().data_ptr() not in memory]
        return Recording(given, [*fixed, *buffers], own, [each for each in gradients if each is not None])

    def _homed(self) -> list[Tensor]:
        """The gradients that are stored in vectors."""
        params = [] if self._arena is None else self._arena.params
        return [param.grad for param in params if param.grad is not None]

    def _keep_other_gradients(self, state: PassState, recording: Recording, params: Sequence[Tensor]) -> None:
        """Gradients of parameters that the optimizer does not have stay where they are, if a pass adds to them."""
        written = {value.root for call in recording.calls for value in call.writes}
        homed = set(map(id, self._homed()))
        for param in params if self._arena is not None else ():
            if param.grad is not None and id(param.grad) not in homed and recording.value_of(param.grad) in written:
                state.keeps_gradient(param)

    def _build(
        self,
        kind: PassKind,
        part: Batch,
        before: "Snapshot",
        terms: Mapping[str, Term],
        recording: Recording,
        first: bool,
    ) -> str:
        """Makes the tape of a recording, and changes nothing else; why it is of no use, if it is not."""
        problem = ""
        after, draws = Snapshot(self._model, self._arena, self._device), any(call.random for call in recording.calls)
        before.restore(draws)
        found = [value for gradient in self._homed() if (value := recording.value_of(gradient)) is not None]
        try:
            program = Builder(recording, found, first, self._memory).program()
            fills = self._arena is not None and self._arena.addresses <= program.fills
            kind.tape = Tape(program, list(part.fields), recording.seeded, terms, fills)
            problem = TOO_LARGE if self.wanted == "auto" and program.nbytes > LARGEST else ""
        except Exception as error:  # torch's pass has been made, and counts
            problem = f"{type(error).__name__} while it was built: {error}"
        after.restore(draws)
        return problem

    def _record_again(
        self,
        part: Batch,
        before: "Snapshot",
        terms: Mapping[str, Term],
        eager: Eager,
        recording: Recording,
        held: Sequence[Tensor],
    ) -> str:
        """Records a pass that has been made, and changes nothing; why the recording is not of use, if it is not."""
        after = Snapshot(self._model, self._arena, self._device)
        copies, draws = [tensor.detach().clone() for tensor in held], not before.drew_as(after)
        before.restore(draws)
        again = eager(part, recording, False)
        found = Snapshot(self._model, self._arena, self._device)
        same, alone = same_terms(terms, again) and after.equals(found), not draws or after.drew_as(found)
        for tensor, copy in zip(held, copies, strict=True):
            if not same_bits(tensor, copy):  # it writes into what is no buffer, which is refused
                tensor.data.copy_(copy)
        after.restore(draws)
        if recording.problem:
            return ""
        return "a recorded pass does not give torch's bits" if alone and not same else "" if alone else DRAWN

    def _judge(self, kind: PassKind, same: bool) -> None:
        """What a comparison has shown."""
        assert kind.tape is not None
        if not same and kind.replays:
            raise ModelError(
                f"a replayed pass differs from torch's after {kind.replays} replays: something that decides in Python "
                "has changed, which could not be seen before. Train from the last checkpoint with tape=False."
            )
        if not same:
            self._refuse("a replay does not give torch's bits", kind)
            return
        kind.due -= 1
        if kind.due or kind.replays:
            return
        ratio = kind.replay_s / kind.eager_s
        if ratio > GAIN and self.wanted == "auto":
            self._refuse(f"a replay takes {ratio:.2f} of an eager pass", kind)
        else:
            self.note = f"passes are replayed from a tape, in {ratio:.2f} of an eager pass's time"

    def _changed(self, kind: PassKind) -> None:
        """What a model holds is not what it was when its pass was recorded."""
        kind.forget()
        kind.changes += 1
        if kind.changes > CHANGES and self.wanted == "auto":
            self._refuse("what the model holds changes again and again", kind)

    def _refuse(self, why: str, kind: PassKind | None = None) -> None:
        """Passes of a kind, or all, are left to torch."""
        if kind is None:
            self.possible = False
        else:
            kind.refused, kind.tape, kind.state = True, None, None
        self.note = f"passes are left to torch: {why}"
        if self.wanted is True:
            raise ModelError(f"tape=True, and a pass cannot be recorded: {why}. Use tape='auto'.")


def _is_compiled(module: nn.Module) -> bool:
    return module._compiled_call_impl is not None or "_orig_mod" in module._modules


def _layout(stream: tuple[str, Any]) -> tuple[Any, ...]:
    """What a replay takes for granted of a stream."""
    name, value = stream
    return (name, value.shape, value.dtype, value.stride()) if type(value) is Tensor else (name, type(value))
