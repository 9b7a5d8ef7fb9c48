"""Faults for `scripts/mutate.py`: each breaks a promise of GUARANTEES.md, and the tests that must notice are named.

A fault is written as a patch: what it is and, after |, the tests; after -, a text of the library, which stands in it
once; and after +, what stands there instead, if anything.
"""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Fault(NamedTuple):
    """A text of the library, which stands in it once, and what stands there instead."""

    what: str
    old: str
    new: str
    tests: tuple[str, ...]


@cache
def texts(source: Path) -> dict[Path, str]:
    """The files of the library as they are without a fault."""
    return {path: path.read_text() for path in sorted(source.rglob("*.py"))}


def applied(fault: Fault, source: Path) -> tuple[Path, str]:
    """The file with a fault, and its text with it; raises unless the fault has one place."""
    places = [(path, text) for path, text in texts(source).items() if fault.old in text]
    count = sum(text.count(fault.old) for _, text in places)
    if count != 1:
        raise ValueError(f"{fault.what}: its text stands in the library {count} times, not once:\n{fault.old}")
    ((path, text),) = places
    return path, text.replace(fault.old, fault.new)


def faults(text: str) -> list[Fault]:
    """The faults of a text, in its order."""
    found = []
    for block in re.split(r"\n(?=[^\s|+-])", text.strip()):
        if block[0] != "#":
            old, new = ([line[1:] for line in block.splitlines() if line[:1] == mark] for mark in "-+")
            what, *tests = "".join(line for line in block.splitlines() if line[:1] not in "-+").split("|")
            named = tuple(f"tests/{test}" for test in " ".join(tests).split())
            found.append(Fault(what.strip(), "\n".join(old), "\n".join(new), named))
    return found


FAULTS = faults(r"""
# --- files ---

a file is not synced | store/test_power_loss.py
-perform("fsync", _sync, self.path, self._fd)
+pass
a directory is not synced | store/test_power_loss.py
-perform("sync_dir", _sync_dir, path)
+pass
a small file gets its name before it is synced | store/test_power_loss.py
-        file.write(data)
-        file.sync()
-    replace(beside, path)
+        file.write(data)
+    replace(beside, path)
COMMIT is written before the names of the other files are certain | store/test_power_loss.py
-        disk.sync_dir(directory)
-        disk.sync_dir(self.path)
-        disk.write_file
+        disk.write_file
a directory without COMMIT is a checkpoint | store/test_kill_during_save.py store/test_retention.py
-if os.path.lexists(self.path / place.name / COMMIT)]
-        if not complete
+]
+        if not complete
a checkpoint is removed from behind, COMMIT perhaps last | store/test_kill_during_save.py
-            disk.unlink(self.path / place.name / COMMIT)  # from here on it is none
the hash of a file is not compared | store/test_flipped_bits.py
-if sha256 != written.sha256:
+if False:
the hash of the manifest is not compared | store/test_flipped_bits.py
-if commit.strip() != hashlib.sha256(data).hexdigest().encode():
+if False:
the oldest checkpoint is taken for the newest | store/test_flipped_bits.py train/test_runs.py
-for place in reversed(places):
-            try:
-                found = self._read
+for place in places:
+            try:
+                found = self._read
one checkpoint too few stays | store/test_retention.py
-own[: -self._keep] if
+own[: 1 - self._keep] if
the best checkpoint does not stay | store/test_retention.py
-if place.step not in best]
+if True]
a checkpoint of another run is loaded | store/test_hostile.py store/test_flipped_bits.py
-if self._run_id is not None and manifest.run_id != self._run_id:
+if False:
links in a run are followed | store/test_hostile.py store/test_disk.py
-"O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"
+"O_CLOEXEC", "O_NONBLOCK", "O_BINARY"
a header of any length is parsed | store/test_hostile.py
-if len(data) < 8 or length > min(limit, len(data) - 8):
+if len(data) < 8:
floats are rounded when they are saved | store/test_codec.py
-if isinstance(value, float) and math.isfinite(value):
-        return float(value)
+if isinstance(value, float) and math.isfinite(value):
+        return round(float(value), 12)
NumPy's generator is not restored | store/test_rng.py
| store/test_object_store.py::test_a_training_that_forgets_its_random_state_would_be_noticed
-    np.random.set_state(state["numpy"])
what is saved is no copy | store/test_async_save.py
-copies = self._copier({key: local(tensor) for key, tensor in tensors.items()})
+copies = {key: local(tensor) for key, tensor in tensors.items()}
a failed write is forgotten | store/test_async_save.py
-        except BaseException as error:
-            self._failure = error
+        except BaseException:
+            pass
a checkpoint is on the disk before the report that it has seen | store/test_metrics_file.py
-            if self._writes:
-                self._run.sync()
reports after the checkpoint stay when a training goes on | store/test_metrics_file.py store/test_run.py
-if row is not None and row["step"] <= step and row.get("samples", 0) <= samples:
+if row is not None:
the zip that makes a checkpoint complete is uploaded without its large files | store/test_object_store.py
-    for name in large:
+    for name in []:
a trainer that was taken over goes on uploading |
| store/test_object_store.py::test_a_trainer_that_wakes_up_before_its_zip_leaves_no_checkpoint_that_lacks_its_large_file
-        try:
-            self._claim.check()
+        try:
+            pass
a run in an object store is let to two trainers |
| store/test_object_store.py::test_a_second_trainer_is_refused_and_lets_in_once_the_first_is_dead
-if facts.get("released") or facts.get("token") in dead:
+if True:

# --- updates ---

a sum is not divided by its weight | step/test_bit_identical.py
-key = (factor / weight, term.sum.dtype)
+key = (factor, term.sum.dtype)
every microbatch is divided by its own weight | step/test_splits.py
-one.add(part, outcome, lambda _: divisors,
+one.add(part, outcome, lambda mine: mine,
a forward pass for weights draws random numbers | step/test_splits.py
-with torch.no_grad(), self.buffers.unchanged(self.device):
+with torch.no_grad():
an update that is not finite is made | step/test_nonfinite.py
-if math.isfinite(number) and all(map(math.isfinite, doubts.values())):
+if True:
a buffer that is not finite is not seen | step/test_nonfinite.py
-            number += float(total(moved))
+            pass
on a device, updates after a bad one are made | step/test_nonfinite.py
-            bad |= self._count > 0
+            pass
buffers stay changed after an update that has failed | step/test_failed_steps.py step/test_nonfinite.py
-        self.arena.discard()
-        self.buffers.restore()
-        self._precision.discard()
+        self.arena.discard()
+        self._precision.discard()
an update that has failed has drawn random numbers | step/test_failed_steps.py train/test_memory.py
-                update.put_random_state(random)
-            update.undo(error)
+                pass
+            update.undo(error)
gradients are clipped before they are unscaled | step/test_precision.py
-            self._precision.unscale(self.arena, gradients)
+            pass
the norm is clipped to its square | step/test_bit_identical.py step/test_joint.py
-torch.clamp(norm / (before + 1e-6), max=1.0)
+torch.clamp(norm / (before + 1e-6), max=1.0) ** 2
a schedule is ahead of its training | train/test_schedule.py
-        progress = max(shares)
+        progress = min(1.0, max(shares) + 1e-3)

# --- the tape ---

a tape is replayed whatever has changed | step/test_tape_cheats.py
-if kind.tape is not None and not kind.tape.state.holds():  # as it is before
+if False:  # as it is before
a replay is never compared with torch again |
| step/test_tape_cheats.py::test_a_change_that_no_check_sees_is_found_in_the_next_epoch
-            kind.due = True
+            pass
a replay that differs is used | step/test_tape_cheats.py::test_a_change_that_no_check_sees_is_found_in_the_next_epoch
| step/test_tape_columns.py step/test_tape_models.py
-problem = self._made_twice(before, terms, make_first if is_first else make, tape)
+problem = self._made_twice(before, terms, make_first if is_first else make, tape) and ""
what a forward pass changes in Python is no obstacle | step/test_tape_ordinary.py step/test_tape_cheats.py
-            self._note(f"{where(code, line)} {what}")
+            pass
a hook or a mode of torch that comes late is not seen |
| step/test_tape_cheats.py::test_a_pass_that_changes_gives_the_bits_of_torch_or_is_an_error[late_module_hook]
| step/test_tape_cheats.py::test_a_pass_that_changes_gives_the_bits_of_torch_or_is_an_error[function_mode_late]
-if not self.is_plain() or settings() != self._settings:
+if settings() != self._settings:
the first microbatch is replayed like the others | train/test_repeats.py
-likeness = (first, self.divided,
+likeness = (True, self.divided,
workers that have their turn within a pass use the same memory | workers/test_worker_settings.py
-self._memory if self.divided else self.turns.memory
+self.turns.memory
what another virtual worker has changed for all is not noticed | train/test_between_updates.py
-self._turns.touches == self._touches
+self._turns is not None
hooks of the nodes that add up gradients are not seen |
| step/test_tape_cheats.py::test_a_pass_that_changes_gives_the_bits_of_torch_or_is_an_error[hook_of_a_node_held_from_the_beginning]
| step/test_tape_cheats.py::test_a_pass_that_changes_gives_the_bits_of_torch_or_is_an_error[hook_of_a_node_until_late]
-self._hooks.append(handle.hooks_dict_ref())
+pass

# --- data ---

the cursor is one row behind | testing/test_check_source.py data/test_reader.py
-return self.cursor(self.position)
+return self.cursor(max(0, self.position - 1))
the reader gives its last row twice | data/test_reader.py
-self.position += 0 if macrobatch is None else sum(macrobatch.totals)
+self.position += 0 if macrobatch is None else sum(macrobatch.totals) - 1
the row behind the short block is mistaken | data/test_order.py
-begins = (slot + 1) * size - missing  #
+begins = (slot + 1) * size - missing + 1  #
the last row of a worker's part is left out | testing/test_check_source.py workers/test_invariants.py
-return rows * self.index // self.count, rows * (self.index + 1) // self.count
+return rows * self.index // self.count, max(0, rows * (self.index + 1) // self.count - 1)
random numbers of a row do not depend on the epoch | data/test_draws.py data/test_maps.py
-return cls(_mix_(_mix_(key + epochs * _GOLDEN) + rows * _GOLDEN))
+return cls(_mix_(_mix_(key + 0 * epochs) + rows * _GOLDEN))
a feed that is left forgets where its source stood | data/test_feed.py
-            self.source.load_state_dict(cursor)
-        self._remaining.clear()
+            pass
+        self._remaining.clear()
the seed of a run is not that of its order | data/test_order.py
-keys = (epoch, Permutation(self.n, "rows", *key[:3]), None, None, 0)
+keys = (epoch, Permutation(self.n, "rows", VERSION, 0, epoch), None, None, 0)

# --- workers ---

rows that were given back are leased twice | workers/test_leases.py
-self.free[:1] = [(stop, gap)] if stop < gap else []
+self.free[:1] = [(start, gap)] if stop < gap else []
rows of workers that are no more are never read again | workers/test_leases.py workers/test_elastic_resume.py
-for worker in [worker for worker in self.out if worker >= workers]:
+for worker in list[int]():
workers weigh alike whatever their rows are | workers/test_periodic.py
-self._rows if self.weights == "rows" else 1)
+1)
the rows of a round are not saved | workers/test_periodic.py workers/test_invariants.py
-return {"rows": self._rows, "total": self._total}
+return {"rows": 0, "total": 0}
counters of workers are not agreed on | workers/test_periodic.py
-        largest(self.comm, replica.counts)
-        if self.reset
+        if self.reset
the center goes away from its workers | workers/test_center.py
-torch._foreach_add_(center, d)
+torch._foreach_sub_(center, d)
rows are sent to the center twice | workers/test_center.py
-self.unsent_rows, self._used, self._due = 0, [], False
-
-    def refresh
+self._used, self._due = [], False
+
+    def refresh
the halves of a sum depend on who adds them | workers/test_same_bits.py
-middle = (start + stop) // 2
-    left =
+middle = start + 1
+    left =
each worker divides by the weight of its own rows | workers/test_invariants.py
-lambda rows: self._strategy.totals(rows[0]))
+lambda rows: dict(rows[0]))
a parameter that one worker froze is trained by the others | workers/test_frozen_on_workers.py
-if 0 < frozen < self._workers:
+if False:
the error of another worker ends nobody | workers/test_lost_workers.py engines/test_process_failures.py
-            os._exit(1)
-
-
-def read_report
+            self._nudge()
+
+
+def read_report
one worker stops and the others do not | workers/test_stop_vote.py
-        stop, leave, save, seconds = vector.tolist()
+        stop, leave, save, seconds = [0.0, *vector.tolist()[1:]]

# --- runs ---

a run goes on with other settings unasked | train/test_run_refusals.py train/test_run_settings.py
-if found and not self._override:
+if False:
two trainers work in one run | train/test_second_trainer.py
-        lock.acquire()
-    except Timeout:
+        pass
+    except Timeout:
the random numbers of a run are not restored | train/test_runs.py journeys/test_exact_resume.py
-                rng.restore(resumed.mine["rng"], self._trainer.device)
+                pass
a validation that was cut short draws random numbers |
| train/test_preempt.py::test_a_validation_that_is_cut_short_has_drawn_no_random_numbers
-            rng.restore(before, self._trainer.device)
-            raise
+            raise
the first update after a resume counts its batch anew | journeys/test_exact_resume.py
-        info.counters.batch = 0 if info.ends_epoch else info.batch
+        info.counters.batch = 0
a part of a checkpoint is not checked | journeys/test_hostile_runs.py
-        check(parts[part], shape, contents.where(file, part))
+        pass
code of a run is executed without trust | journeys/test_untrusted_runs.py
-    if not trust:
+    if False:
""")  # noqa: E501
