"""Faults for `scripts/mutate.py`: each breaks a promise of GUARANTEES.md, and the tests that must notice are named."""

from pathlib import Path
from typing import NamedTuple


class Fault(NamedTuple):
    """A text of the library, which stands in it once, and what stands there instead."""

    what: str
    old: str
    new: str
    tests: tuple[str, ...]


def applied(fault: Fault, source: Path) -> tuple[Path, str]:
    """The file with a fault, and its text with it; raises unless the fault has one place."""
    places = [(path, text) for path in sorted(source.rglob("*.py")) if fault.old in (text := path.read_text())]
    count = sum(text.count(fault.old) for _, text in places)
    if count != 1:
        raise ValueError(f"{fault.what}: its text stands in the library {count} times, not once:\n{fault.old}")
    ((path, text),) = places
    return path, text.replace(fault.old, fault.new)


def _fault(what: str, old: str, new: str, *tests: str) -> Fault:
    return Fault(what, old, new, tuple(f"tests/{test}" for test in tests))


POWER = "store/test_power_loss.py"
KILL = "store/test_kill_during_save.py"
FLIPPED = "store/test_flipped_bits.py"
RETENTION = "store/test_retention.py"
OBJECTS = "store/test_object_store.py"
CHEATS = "step/test_tape_cheats.py::test_a_pass_that_changes_gives_the_bits_of_torch_or_is_an_error"

FILES = [
    _fault(
        "a file is not synced",
        'perform("fsync", _sync, self.path, self._fd)',
        "pass",
        POWER,
    ),
    _fault(
        "a directory is not synced",
        'perform("sync_dir", _sync_dir, path)',
        "pass",
        POWER,
    ),
    _fault(
        "a small file gets its name before it is synced",
        "        file.write(data)\n        file.sync()\n    replace(beside, path)",
        "        file.write(data)\n    replace(beside, path)",
        POWER,
    ),
    _fault(
        "COMMIT is written before the names of the other files are certain",
        "        disk.sync_dir(directory)\n        disk.sync_dir(self.path)\n        disk.write_file",
        "        disk.write_file",
        POWER,
    ),
    _fault(
        "a directory without COMMIT is a checkpoint",
        "if os.path.lexists(self.path / place.name / COMMIT)]\n        if not complete",
        "]\n        if not complete",
        KILL,
        RETENTION,
    ),
    _fault(
        "a checkpoint is removed from behind, COMMIT perhaps last",
        "            disk.unlink(self.path / place.name / COMMIT)  # from here on it is none\n",
        "",
        KILL,
    ),
    _fault(
        "the hash of a file is not compared",
        "if sha256 != written.sha256:",
        "if False:",
        FLIPPED,
    ),
    _fault(
        "the hash of the manifest is not compared",
        "if commit.strip() != hashlib.sha256(data).hexdigest().encode():",
        "if False:",
        FLIPPED,
    ),
    _fault(
        "the oldest checkpoint is taken for the newest",
        "for place in reversed(places):\n            try:\n                found = self._read",
        "for place in places:\n            try:\n                found = self._read",
        FLIPPED,
        "train/test_runs.py",
    ),
    _fault(
        "one checkpoint too few stays",
        "own[: -self._keep] if",
        "own[: 1 - self._keep] if",
        RETENTION,
    ),
    _fault(
        "the best checkpoint does not stay",
        "if place.step not in best]",
        "if True]",
        RETENTION,
    ),
    _fault(
        "a checkpoint of another run is loaded",
        "if self._run_id is not None and manifest.run_id != self._run_id:",
        "if False:",
        "store/test_hostile.py",
        FLIPPED,
    ),
    _fault(
        "links in a run are followed",
        '"O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"',
        '"O_CLOEXEC", "O_NONBLOCK", "O_BINARY"',
        "store/test_hostile.py",
        "store/test_disk.py",
    ),
    _fault(
        "a header of any length is parsed",
        "if len(data) < 8 or length > min(limit, len(data) - 8):",
        "if len(data) < 8:",
        "store/test_hostile.py",
    ),
    _fault(
        "floats are rounded when they are saved",
        "if isinstance(value, float) and math.isfinite(value):\n        return float(value)",
        "if isinstance(value, float) and math.isfinite(value):\n        return round(float(value), 12)",
        "store/test_codec.py",
    ),
    _fault(
        "NumPy's generator is not restored",
        '    np.random.set_state(state["numpy"])\n',
        "",
        "store/test_rng.py",
        "store/test_object_store.py::test_a_training_that_forgets_its_random_state_would_be_noticed",
    ),
    _fault(
        "what is saved is no copy",
        "copies = self._copier({key: local(tensor) for key, tensor in tensors.items()})",
        "copies = {key: local(tensor) for key, tensor in tensors.items()}",
        "store/test_async_save.py",
    ),
    _fault(
        "a failed write is forgotten",
        "        except BaseException as error:\n            self._failure = error",
        "        except BaseException:\n            pass",
        "store/test_saver.py",
    ),
    _fault(
        "a checkpoint is on the disk before the report that it has seen",
        "            if self._writes:\n                self._run.sync()\n",
        "",
        "store/test_metrics_file.py",
    ),
    _fault(
        "reports after the checkpoint stay when a training goes on",
        'if row is not None and row["step"] <= step and row.get("samples", 0) <= samples:',
        "if row is not None:",
        "store/test_metrics_file.py",
        "store/test_run.py",
    ),
    _fault(
        "the zip that makes a checkpoint complete is uploaded without its large files",
        "    for name in large:\n",
        "    for name in []:\n",
        OBJECTS,
    ),
    _fault(
        "a trainer that was taken over goes on uploading",
        "        try:\n            self._claim.check()\n",
        "        try:\n            pass\n",
        f"{OBJECTS}::test_a_trainer_that_wakes_up_before_its_zip_leaves_no_checkpoint_that_lacks_its_large_file",
    ),
    _fault(
        "a run in an object store is let to two trainers",
        'if facts.get("released") or facts.get("token") in dead:',
        "if True:",
        f"{OBJECTS}::test_a_second_trainer_is_refused_and_lets_in_once_the_first_is_dead",
    ),
]

UPDATES = [
    _fault(
        "a sum is not divided by its weight",
        "key = (factor / weight, term.sum.dtype)",
        "key = (factor, term.sum.dtype)",
        "step/test_bit_identical.py",
    ),
    _fault(
        "every microbatch is divided by its own weight",
        "one.add(part, outcome, lambda _: divisors,",
        "one.add(part, outcome, lambda mine: mine,",
        "step/test_splits.py",
    ),
    _fault(
        "a forward pass for weights draws random numbers",
        "with torch.no_grad(), self.buffers.unchanged(self.device):",
        "with torch.no_grad():",
        "step/test_splits.py",
    ),
    _fault(
        "an update that is not finite is made",
        "if math.isfinite(number) and all(map(math.isfinite, doubts.values())):",
        "if True:",
        "step/test_nonfinite.py",
    ),
    _fault(
        "a buffer that is not finite is not seen",
        "            number += float(total(moved))\n",
        "            pass\n",
        "step/test_nonfinite.py",
    ),
    _fault(
        "on a device, updates after a bad one are made",
        "            bad |= self._count > 0\n",
        "            pass\n",
        "step/test_nonfinite.py",
    ),
    _fault(
        "buffers stay changed after an update that has failed",
        "        self.arena.discard()\n        self.buffers.restore()\n        self._precision.discard()",
        "        self.arena.discard()\n        self._precision.discard()",
        "step/test_failed_steps.py",
        "step/test_nonfinite.py",
    ),
    _fault(
        "an update that has failed has drawn random numbers",
        "                update.put_random_state(random)\n            update.undo(error)",
        "                pass\n            update.undo(error)",
        "step/test_failed_steps.py",
        "train/test_memory.py",
    ),
    _fault(
        "gradients are clipped before they are unscaled",
        "            self._precision.unscale(self.arena, gradients)\n",
        "            pass\n",
        "step/test_precision.py",
    ),
    _fault(
        "the norm is clipped to its square",
        "torch.clamp(norm / (before + 1e-6), max=1.0)",
        "torch.clamp(norm / (before + 1e-6), max=1.0) ** 2",
        "step/test_bit_identical.py",
        "step/test_joint.py",
    ),
    _fault(
        "a schedule is ahead of its training",
        "        progress = max(shares)\n",
        "        progress = min(1.0, max(shares) + 1e-3)\n",
        "train/test_schedule.py",
    ),
]

TAPE = [
    _fault(
        "a tape is replayed whatever has changed",
        "if kind.state is not None and not kind.state.holds():  # as it is before",
        "if False:  # as it is before",
        "step/test_tape_cheats.py",
    ),
    _fault(
        "a replay is never compared with torch again",
        "                kind.due = max(1, kind.due)\n",
        "                pass\n",
        "step/test_tape_cheats.py::test_a_change_that_no_check_sees_is_found_in_the_next_epoch",
    ),
    _fault(
        "a replay that differs is used",
        "problem = self._made_twice(before, terms, make_last if is_last else make, tape)",
        'problem = self._made_twice(before, terms, make_last if is_last else make, tape) and ""',
        "step/test_tape_cheats.py::test_a_change_that_no_check_sees_is_found_in_the_next_epoch",
        "step/test_tape_columns.py",
        "step/test_tape_models.py",
    ),
    _fault(
        "what a forward pass changes in Python is no obstacle",
        '            self._note(f"{where(code, line)} {what}")\n',
        "            pass\n",
        "step/test_tape_ordinary.py",
        "step/test_tape_cheats.py",
    ),
    _fault(
        "a hook or a mode of torch that comes late is not seen",
        "if not self.is_plain() or settings() != self._settings:",
        "if settings() != self._settings:",
        f"{CHEATS}[late_module_hook]",
        f"{CHEATS}[function_mode_late]",
    ),
    _fault(
        "the first microbatch is replayed like the others",
        "likeness = (first, self.divided,",
        "likeness = (True, self.divided,",
        "train/test_repeats.py",
    ),
    _fault(
        "workers that have their turn within a pass use the same memory",
        "self._memory if self.divided else self.turns.memory",
        "self.turns.memory",
        "workers/test_worker_settings.py",
    ),
    _fault(
        "what another virtual worker has changed for all is not noticed",
        "self._turns.touches == self._touches",
        "self._turns is not None",
        "train/test_between_updates.py",
    ),
    _fault(
        "hooks of the nodes that add up gradients are not seen",
        "self._hooks.append(handle.hooks_dict_ref())",
        "pass",
        f"{CHEATS}[hook_of_a_node_held_from_the_beginning]",
        f"{CHEATS}[hook_of_a_node_until_late]",
    ),
]

DATA = [
    _fault(
        "the cursor is one row behind",
        "return self.cursor(self.position)",
        "return self.cursor(max(0, self.position - 1))",
        "testing/test_check_source.py",
        "data/test_reader.py",
    ),
    _fault(
        "the reader gives its last row twice",
        "self.position += 0 if macrobatch is None else sum(macrobatch.totals)",
        "self.position += 0 if macrobatch is None else sum(macrobatch.totals) - 1",
        "data/test_reader.py",
    ),
    _fault(
        "the row behind the short block is mistaken",
        "after = positions >= (slot + 1) * size - missing  #",
        "after = positions > (slot + 1) * size - missing  #",
        "data/test_order.py",
    ),
    _fault(
        "the last row of a worker's part is left out",
        "return rows * self.index // self.count, rows * (self.index + 1) // self.count",
        "return rows * self.index // self.count, max(0, rows * (self.index + 1) // self.count - 1)",
        "testing/test_check_source.py",
        "workers/test_invariants.py",
    ),
    _fault(
        "random numbers of a row do not depend on the epoch",
        "return cls(_mix_(_mix_(key + epochs * _GOLDEN) + rows * _GOLDEN))",
        "return cls(_mix_(_mix_(key + 0 * epochs) + rows * _GOLDEN))",
        "data/test_draws.py",
        "data/test_maps.py",
    ),
    _fault(
        "a feed that is left forgets where its source stood",
        "            self.source.load_state_dict(cursor)\n        self._remaining.clear()",
        "            pass\n        self._remaining.clear()",
        "data/test_feed.py",
    ),
    _fault(
        "the seed of a run is not that of its order",
        'keys = (epoch, Permutation(self.n, "rows", *key[:3]), None, None, 0)',
        'keys = (epoch, Permutation(self.n, "rows", VERSION, 0, epoch), None, None, 0)',
        "data/test_order.py",
    ),
]

WORKERS = [
    _fault(
        "rows that were given back are leased twice",
        "self.free[:1] = [(stop, gap)] if stop < gap else []",
        "self.free[:1] = [(start, gap)] if stop < gap else []",
        "workers/test_leases.py",
    ),
    _fault(
        "rows of workers that are no more are never read again",
        "for worker in [worker for worker in self.out if worker >= workers]:",
        "for worker in list[int]():",
        "workers/test_leases.py",
        "workers/test_elastic_resume.py",
    ),
    _fault(
        "workers weigh alike whatever their rows are",
        'self._rows if self.weights == "rows" else 1)',
        "1)",
        "workers/test_periodic.py",
    ),
    _fault(
        "the rows of a round are not saved",
        'return {"rows": self._rows, "total": self._total}',
        'return {"rows": 0, "total": 0}',
        "workers/test_periodic.py",
        "workers/test_invariants.py",
    ),
    _fault(
        "counters of workers are not agreed on",
        "        largest(self.comm, replica.counts)\n        if self.reset",
        "        if self.reset",
        "workers/test_periodic.py",
    ),
    _fault(
        "the center goes away from its workers",
        "torch._foreach_add_(center, d)",
        "torch._foreach_sub_(center, d)",
        "workers/test_center.py",
    ),
    _fault(
        "rows are sent to the center twice",
        "self.unsent_rows, self._used, self._due = 0, [], False\n\n    def refresh",
        "self._used, self._due = [], False\n\n    def refresh",
        "workers/test_center.py",
    ),
    _fault(
        "the halves of a sum depend on who adds them",
        "middle = (start + stop) // 2\n    left = ",
        "middle = start + 1\n    left = ",
        "workers/test_same_bits.py",
    ),
    _fault(
        "each worker divides by the weight of its own rows",
        "lambda rows: self._strategy.totals(rows[0]))",
        "lambda rows: dict(rows[0]))",
        "workers/test_invariants.py",
    ),
    _fault(
        "a parameter that one worker froze is trained by the others",
        "if 0 < frozen < self._workers:",
        "if False:",
        "workers/test_frozen_on_workers.py",
    ),
    _fault(
        "the error of another worker ends nobody",
        "            os._exit(1)\n\n\ndef read_report",
        "            self._nudge()\n\n\ndef read_report",
        "workers/test_lost_workers.py",
        "engines/test_process_failures.py",
    ),
    _fault(
        "one worker stops and the others do not",
        "        stop, leave, save, seconds = vector.tolist()",
        "        stop, leave, save, seconds = [0.0, *vector.tolist()[1:]]",
        "workers/test_stop_vote.py",
    ),
]

RUNS = [
    _fault(
        "a run goes on with other settings unasked",
        "if found and not self._override:",
        "if False:",
        "train/test_run_refusals.py",
        "train/test_run_settings.py",
    ),
    _fault(
        "two trainers work in one run",
        "        lock.acquire()\n    except Timeout:",
        "        pass\n    except Timeout:",
        "train/test_second_trainer.py",
    ),
    _fault(
        "the random numbers of a run are not restored",
        '                rng.restore(resumed.mine["rng"], self._trainer.device)\n',
        "                pass\n",
        "train/test_runs.py",
        "journeys/test_exact_resume.py",
    ),
    _fault(
        "a validation that was cut short draws random numbers",
        "            rng.restore(before, self._trainer.device)\n            raise",
        "            raise",
        "train/test_preempt.py::test_a_validation_that_is_cut_short_has_drawn_no_random_numbers",
    ),
    _fault(
        "the first update after a resume counts its batch anew",
        "        info.counters.batch = 0 if info.ends_epoch else info.batch\n",
        "        info.counters.batch = 0\n",
        "journeys/test_exact_resume.py",
    ),
    _fault(
        "a part of a checkpoint is not checked",
        "        check(parts[part], shape, contents.where(file, part))\n",
        "        pass\n",
        "journeys/test_hostile_runs.py",
    ),
    _fault(
        "code of a run is executed without trust",
        "    if not trust:\n",
        "    if False:\n",
        "journeys/test_untrusted_runs.py",
    ),
]

FAULTS = [*FILES, *UPDATES, *TAPE, *DATA, *WORKERS, *RUNS]
