"""A model's passes: which of them are recorded, proven and replayed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from time import perf_counter, thread_time
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...arena.arena import Arena
from ...data.batch import Batch
from ...errors import ModelError
from ...loss.base import Term
from ...loss.objective import Objective, Terms
from ...workers.comm import Comm, Turns
from ..settings import is_compiled, is_recomputed
from .program import Builder, Memory
from .proof import Proof
from .recording import Recording
from .state import PassState
from .tape import PassKind, Snapshot, Tape, outputs_of, same_terms

Wanted = Literal["auto"] | bool
Eager = Callable[[Batch, Recording | None, bool], Mapping[str, Term]]
"""A pass by torch, recorded if a recording is given; and whether it is the update's, or one beside it."""
Replay = Callable[[Tape, Batch], Mapping[str, Term]]
LARGEST = 16 << 20
"""Bytes of gradients or of planned memory from which on a pass of few operations is arithmetic, and saves little."""
SMALL = 32 << 10
"""Bytes that each operation may have beside: a pass of many small operations is not large for that."""
PRODUCTS = 1 << 28
"""Products of rows and weights of linear layers from which on a pass is arithmetic: to record it takes a few passes."""
MADE = 8 * LARGEST
"""Bytes of all that a pass makes from which on it is not even tried."""
KINDS = 32
"""How many kinds of passes are remembered, since each recording takes memory."""
SEEN = 2
"""A pass is recorded when its like has been seen so often."""
LATEST = 64
"""Those who take turns with a worker that records learn from its passes what that costs, or do not wait any longer."""
SHARE = 0.01
"""Recordings and comparisons take at most this share of the time; the first recording is made in any case."""
GAIN = 1.0
"""A replay takes at most so much of the eager pass's time, or is not worth it. The rest of its update is quicker."""


def is_fine(clock: Callable[[], float]) -> bool:
    """Whether a clock goes on between two looks at it: that of threads ticks every 15 ms on some systems."""
    return all(clock() < clock() for _ in range(3))


clock = thread_time if is_fine(thread_time) else perf_counter
"""The processor time of the thread that trains: neither other programs nor other workers of this process count."""
TOO_LARGE = "a pass is so large that nothing would be saved"
DRAWN = "a pass draws random numbers, and another thread draws some at the same time"
DIFFERS = "a pass made a second time, from its recording, does not give torch's bits"


class Tapes:
    """The passes of one optimizer's updates: those left to torch, and replays of those that are proven and quicker.

    Both give the same bits. `wanted`: "auto", `True` (a pass that is not replayed is an error) or `False`. `note` says
    what has been decided, and why.
    """

    def __init__(
        self,
        wanted: Wanted,
        model: nn.Module,
        objective: Objective,
        device: torch.device,
        comm: Comm,
        arena: Arena | None = None,
    ) -> None:
        self.wanted, self.note = wanted, ""
        self._model, self._objective, self._arena, self._device = model, objective, arena, device
        self._kinds: dict[Any, PassKind] = {}
        self.turns, self._memory = comm.turns or Turns(), Memory()
        self._last: tuple[Any, PassKind] | None = None
        self.divided = False  # whether workers take turns within a pass, so that each needs planned memory of its own
        self.watched = True
        """Whether anybody may change the model between two passes of `outputs`."""
        self._of_macrobatch: tuple[Tape | None, Any, int] = None, None, 0  # for its next batch, if that is alike
        self._start, self._spent_s = clock(), 0.0
        layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
        self._weights = sum(param.numel() for layer in layers for param in layer.parameters())  # asks no `weight`
        self.possible = wanted is not False
        if self.possible and device.type != "cpu":
            self._refuse(f"the model is on {device}")
        elif self.possible and arena is not None and not arena.vectors:
            self._refuse("no parameter is stored in a vector, as with arena=False")
        elif self.possible and any(map(is_compiled, model.modules())):
            self._refuse("the model is compiled")
        elif self.possible and any(map(is_recomputed, model.modules())):
            self._refuse("parts of the model are computed again in the backward pass")
        elif wanted == "auto" and sum(p.nbytes for p in model.parameters()) > LARGEST:
            self._refuse("the model is so large that nothing would be saved")

    def kind_of(self, part: Batch, first: bool) -> PassKind | None:
        """The passes like that of this microbatch, the `first` of an update or not; `None` if they are torch's."""
        if not self.possible or (self._arena is not None and not self._arena.proven):
            return None
        known = None if self._arena is None else self._objective.known(part)
        likeness = (first, self.divided, part.rows, part.total, part._share, known, *map(_layout, part.fields.items()))
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
        if kind.seen == 1 and self.wanted == "auto" and part.rows * self._weights > PRODUCTS:
            self._refuse(TOO_LARGE, kind)
        return None if kind.refused else kind

    def outputs(self, batch: Batch, call: Callable[[Batch], Any]) -> Any:
        """What the model returns for a batch, as `call` does; for a model that is not being trained."""
        tape, macrobatch, rows = self._of_macrobatch
        if tape is not None and batch.macrobatch is macrobatch and batch.rows == rows:
            return tape.outputs(batch)
        kind = self.kind_of(batch, True)
        if kind is None:
            return call(batch)
        tape = self.ready(kind)
        if tape is not None:
            kind.replays += 1
            if not self.watched and batch.macrobatch is not None:
                self._of_macrobatch = tape, batch.macrobatch, batch.rows
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
        """One pass of each kind is compared with torch's again, before any of it is replayed."""
        self._last, self._of_macrobatch = None, (None, None, 0)
        for kind in self._kinds.values():
            kind.due = True
            kind.rests = kind.tape is not None and kind.seen - kind.seen_before < 2
            kind.seen_before = kind.seen

    def release(self) -> None:
        """Lets go of all recordings, and of the nodes that add up gradients."""
        self._of_macrobatch = None, None, 0
        if self.turns.first is self:
            self.turns.first, self.turns.gain_s = None, 0.0
        for kind in self._kinds.values():
            kind.forget()

    def ready(self, kind: PassKind) -> Tape | None:
        """The recording, if the next pass is a replay of it."""
        if kind.tape is not None and not kind.tape.state.holds():  # as it is before an update brings parameters home
            self.release()
        return None if kind.due else kind.tape

    def learn(self, kind: PassKind, part: Batch, first: bool, eager: Eager, replay: Replay) -> Mapping[str, Term]:
        """A pass by torch, which is recorded if it is time to, or compared with a replay."""
        if kind.tape is not None and not kind.tape.state.holds():
            self.release()
        if kind.rests or (kind.tape is None and not self._is_due(kind)):
            kind.rests = False
            return self._timed(kind, part, eager)
        start = clock()
        before = self._snapshot()
        if kind.tape is None:
            terms = self._record(kind, part, before, eager, first)
        else:
            terms = self._timed(kind, part, eager)
            self._compare(kind, part, before, terms, replay)
        self._spent_s += clock() - start
        return terms

    def _is_due(self, kind: PassKind) -> bool:
        """Whether a pass is to be recorded now."""
        if kind.seen <= SEEN or self.wanted is True:
            return kind.seen > SEEN
        is_affordable = self._spent_s <= max(0.0, SHARE * (clock() - self._start))  # another thread may go on
        return is_affordable and self.turns.pays(self, kind.seen, LATEST)

    def _timed(self, kind: PassKind, part: Batch, eager: Eager) -> Mapping[str, Term]:
        start = clock()
        terms = eager(part, None, True)
        kind.eager_s = min(kind.eager_s, clock() - start)
        return terms

    def _snapshot(self, others: Sequence[Tensor] = ()) -> Snapshot:
        return Snapshot(self._model, self._arena, self._device, others)

    # --- recording ----------------------------------------------------------------------------------------

    def _record(self, kind: PassKind, part: Batch, before: Snapshot, eager: Eager, first: bool) -> Mapping[str, Term]:
        """A pass by torch. If those like it may be replayed, it is made a second time, to be recorded."""
        state = PassState(self._model, self._objective, trained=self._arena is not None)
        proof, gradients = Proof(state), self._gradients()
        if problem := self._obstacle(state):
            self._refuse(problem, kind)
            return eager(part, None, True)
        with proof:
            terms = eager(part, None, True)
        proof.conclude()
        if not self._teaches(terms):
            kind.forget()
            return terms
        problem = proof.problem or self._changes(state, gradients)
        if problem := problem or self._make_tape(kind, part, before, terms, eager, first, state):
            self._refuse(problem, kind)
        return terms

    def _gradients(self) -> list[Tensor | None]:
        """The gradients of the model's parameters, if it is trained."""
        return [param.grad for param in self._model.parameters()] if self._arena is not None else []

    def _teaches(self, terms: Mapping[str, Term]) -> bool:
        """Whether there is a backward pass, if the model is trained."""
        return self._arena is None or any(float(term.weight) for term in terms.values())

    def _changes(self, state: PassState, gradients: Sequence[Tensor | None]) -> str:
        """What a pass has changed that it must not change, if anything."""
        params = list(self._model.parameters())
        if not state.holds():
            return "a pass changes what the model holds"
        if any(param.grad is not was for param, was in zip(params, gradients, strict=False)):
            return "a pass exchanges a gradient"
        if gradients and any(tensor.requires_grad for tensor in state.others(params)):
            return "a tensor with a gradient is no parameter of the model"
        return ""

    def _obstacle(self, state: PassState) -> str:
        """Why no pass can be recorded now, if none can."""
        if self._arena is not None and any(param.requires_grad for param in self._arena.loose):
            return "not all parameters are stored in a vector: single numbers and sparse gradients are not"
        return "" if state.is_plain() else "hooks, autocast or a mode of torch change what operations do"

    def _recording(self, part: Batch, state: PassState) -> Recording:
        """A recording of a pass, which may write into buffers that share memory with nothing else."""
        streams = {f"x{k}": value for k, value in enumerate(part.fields.values())}
        fixed = [*self._model.parameters(), *state.tensors]
        memory = {tensor.untyped_storage().data_ptr() for tensor in fixed}
        buffers = list(self._model.buffers())
        writable = [buffer for buffer in buffers if buffer.untyped_storage().data_ptr() not in memory]
        present = [each for each in self._gradients() if each is not None]
        return Recording(streams, [*fixed, *buffers], writable, present)

    def _make_tape(
        self,
        kind: PassKind,
        part: Batch,
        before: Snapshot,
        terms: Mapping[str, Term],
        eager: Eager,
        first: bool,
        state: PassState,
    ) -> str:
        """Makes the tape of a pass, which is made a second time; why there is none, if there is none."""
        recording, is_auto = self._recording(part, state), self.wanted == "auto"
        problem = self._made_twice(before, terms, lambda: eager(part, recording, False), recording, state.memory())
        recording.end()
        if problem := recording.problem or problem:
            return problem
        made = [value.nbytes for call in recording.calls for value in call.made() if value.base is None]
        beside = SMALL * len(recording.calls)
        if is_auto and (sum(made) > MADE + 8 * beside or max(made, default=0) > LARGEST):
            return TOO_LARGE
        after, draws = self._snapshot(), recording.draws
        before.restore(draws)
        found = [value for gradient in self._homed() if (value := recording.value_of(gradient)) is not None]
        memory = self._memory if self.divided else self.turns.memory
        try:
            program = Builder(recording, found, first, memory, self.turns.forms).program()
            fills = self._arena is not None and self._arena.addresses <= program.fills
            kind.tape = Tape(program, state, list(part.fields), recording.seeded, terms, fills)
            problem = TOO_LARGE if is_auto and program.nbytes > LARGEST + beside else ""
            self._keep_other_gradients(state, recording)
        except Exception as error:  # torch's pass has been made, and counts
            problem = f"{type(error).__name__} while it was built: {error}"
        after.restore(draws)
        return problem

    def _homed(self) -> list[Tensor]:
        """The gradients that are stored in vectors."""
        params = [] if self._arena is None else self._arena.params
        return [param.grad for param in params if param.grad is not None]

    def _keep_other_gradients(self, state: PassState, recording: Recording) -> None:
        """Gradients of parameters that the optimizer does not have stay where they are, if a pass adds to them."""
        written = {value.root for call in recording.calls for value in call.writes}
        homed = set(map(id, self._homed()))
        for param in self._model.parameters() if self._arena is not None else ():
            if param.grad is not None and id(param.grad) not in homed and recording.value_of(param.grad) in written:
                state.keeps_gradient(param)

    # --- comparing ----------------------------------------------------------------------------------------

    def _made_twice(
        self,
        before: Snapshot,
        terms: Mapping[str, Term],
        make: Callable[[], Mapping[str, Term]],
        source: Recording | Tape,
        others: Sequence[Tensor] = (),
    ) -> str:
        """Makes a pass a second time, which changes nothing; how it differs from the first, if it does.

        `source`: the tape that it is made from, or the recording that it is made for, which tells only afterwards
        whether it draws random numbers. `others` are tensors that it may write into.
        """
        after = self._snapshot(others)
        draws = source.draws if isinstance(source, Tape) else not before.drew_as(after)
        before.restore(draws)
        second = make()
        found = self._snapshot()
        same = same_terms(terms, second) and after.equals(found)
        is_disturbed = source.draws and not after.drew_as(found)
        after.restore(draws)
        return DRAWN if is_disturbed else "" if same else DIFFERS

    def _compare(
        self, kind: PassKind, part: Batch, before: Snapshot, terms: Mapping[str, Term], replay: Replay
    ) -> None:
        """Compares a replay with a pass by torch that has been made."""
        tape = kind.tape
        assert tape is not None

        is_first = not kind.replays

        def make() -> Mapping[str, Term]:
            start = clock()
            second = replay(tape, part)
            kind.replay_s = min(kind.replay_s, clock() - start)
            return second

        def make_first() -> Mapping[str, Term]:  # calls another function: one that called itself would keep the batch
            second = make()
            if kind.replay_s > GAIN * kind.eager_s:  # perhaps its memory was in no cache
                before.restore(tape.draws)
                second = make()
            return second

        problem = self._made_twice(before, terms, make_first if is_first else make, tape)
        ratio = kind.replay_s / kind.eager_s
        if problem == DRAWN:
            self._refuse(DRAWN, kind)
        elif problem and kind.replays:
            raise ModelError(
                f"a replayed pass differs from torch's after {kind.replays} replays: something that decides in Python "
                "has changed, which could not be seen before. Train from the last checkpoint with tape=False."
            )
        elif problem:
            self._refuse(problem, kind)
        elif is_first and ratio > GAIN and self.wanted == "auto":
            self._refuse(f"a replay takes {ratio:.2f} of an eager pass", kind)
        else:
            kind.due = False
            if is_first:
                self.turns.learn(self._spent_s - 2 * kind.eager_s, kind.eager_s - kind.replay_s)
                self.note = f"passes are replayed from a tape, in {ratio:.2f} of an eager pass's time"

    def _refuse(self, why: str, kind: PassKind | None = None) -> None:
        """Passes of a kind, or all, are left to torch."""
        if kind is None:
            self.possible = False
        else:
            kind.refused, kind.tape = True, None
        self.note = f"passes are left to torch: {why}"
        if self.wanted is True:
            raise ModelError(f"tape=True, and a pass cannot be recorded: {why}. Use tape='auto'.")


def _layout(stream: tuple[str, Any]) -> tuple[Any, ...]:
    """What a replay takes for granted of a stream."""
    name, value = stream
    return (name, value.shape, value.dtype, value.stride()) if type(value) is Tensor else (name, type(value))
