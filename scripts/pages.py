"""Writes the pages of the documentation that are made: error messages, public names, lines that a task takes."""

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE, DOCS = ROOT / "src" / "headrace", ROOT / "docs"
sys.path.insert(0, str(ROOT / "src"))  # where it has not been installed

PARTS = {
    "Data": "data formats adapters",
    "Losses, metrics and models": "loss arena",
    "Several workers": "workers engines",
    "Callbacks and what was reported": "watch",
    "Trainer": "length step train",
    "Runs": "store",
    "Recipes and the command line": "app __main__",
    "Images": "vision",
    "scikit-learn and Optuna": "sklearn optuna",
    "Kits": "testing",
}
"""Parts of the library, as a user sees them, and the modules of each. What is in none is the trainer's."""

ADVICE = {
    "ConfigError": """
        An argument or a setting cannot work. Nearly always it is found before the first update: change what the message
        names. It is a `ValueError`.""",
    "DataError": """
        Rows, streams or targets do not fit each other, or the model. The message names the data (train, val or test),
        the stream and, if it is known, the row. It is a `ValueError`.""",
    "SourceError": """
        A source, a table, a loader or a file returned something other than it declared, or failed. For those of your
        own, `headrace.testing.sources.check_source` and `check_table` try everything at once. Bad lines of CNTK's
        format are dropped with `bad_rows="skip"`. It is a `DataError`.""",
    "ModelError": """
        The model or the optimizer cannot be trained as given. Change it before you make the trainer. It is a
        `ValueError`.""",
    "NonFiniteError": """
        A loss, a gradient or a batch statistic is NaN or infinite; the term is named, and weights, buffers and
        optimizer are as they were before the step. Look at the data first (`scan=True`), then lower the rate or clip;
        `nonfinite="skip"` leaves such updates out. It is an `ArithmeticError`.""",
    "OutOfMemoryError": """
        The memory is too small for the batch. Use the `microbatch=` that the message names, or `"auto"`: the update
        stays the same. It is a `MemoryError`.""",
    "RunError": """
        The run's directory cannot be used: another trainer is in it, it is full, it cannot be written, it is no run.
        Checkpoints that were there are as they were. It is an `OSError`.""",
    "WorkerError": """
        Another worker failed, was lost, or keeps the others waiting; the message says which one, at which step, and
        why. Look at that worker's own output first. With `run=`, `restarts=` begins again from the last checkpoint. It
        is a `RuntimeError`.""",
    "CheckpointError": """
        A checkpoint cannot be used here: it is of another model, of other settings, of a later version. Set things as
        they were, name another run, or, where the message says so, pass `override=True`. It is a `ValueError`.""",
    "CorruptError": """
        A checkpoint's bytes are not those that were written. A training continues by itself from the checkpoint before
        it, with a warning; the damaged files are kept. `headrace checkpoint verify` says what is damaged. It is a
        `CheckpointError`.""",
}
"""What to do, by the class of the error."""

TOP = "<!-- Made from the source by scripts/docs: change scripts/pages.py, not this file. -->\n"


def main() -> None:
    for path, text in pages().items():
        path.write_text(text)


def pages() -> dict[Path, str]:
    """Every page that is made, as it should be."""
    migrate = DOCS / "migrate.md"
    return {
        DOCS / "errors.md": errors_page(),
        DOCS / "names.md": names_page(),
        migrate: with_lines(migrate.read_text()),
    }


# --- error messages ---------------------------------------------------------------------------------------


def errors_page() -> str:
    found: dict[str, dict[str, list[str]]] = {kind: {part: [] for part in PARTS} for kind in ADVICE}
    for path in sorted(SOURCE.rglob("*.py")):
        for kind, message in messages(path):
            of_part = found[kind][part_of(path.relative_to(SOURCE).parts[0].removesuffix(".py"))]
            if message not in of_part:
                of_part.append(message)
    lines = [TOP, "# Error messages", "", INTRODUCTION, ""]
    for kind, by_part in found.items():
        lines += [f"## {kind}", "", inspect.cleandoc(ADVICE[kind]), ""]
        for part, texts in by_part.items():
            if texts:
                lines += [f"**{part}**", "", *(f"- {quoted(text)}" for text in sorted(texts, key=in_words)), ""]
    return "\n".join(lines)


INTRODUCTION = """\
This page lists every error message of the library. `{…}` stands for a part that differs from case to case. To find a
message, search the page for words of it. A message says what was expected, what was given instead, and what to do.
Every class is a subclass of `hr.HeadraceError`, and also of the built-in exception in parentheses.

```text
HeadraceError
├── ConfigError      (ValueError)
├── DataError        (ValueError)
│   └── SourceError
├── ModelError       (ValueError)
├── NonFiniteError   (ArithmeticError)
├── OutOfMemoryError (MemoryError)
├── RunError         (OSError)
├── WorkerError      (RuntimeError)
└── CheckpointError  (ValueError)
    └── CorruptError
```"""


def messages(path: Path) -> Iterator[tuple[str, str]]:
    """The class and the text of every error that a file makes."""
    tree = ast.parse(path.read_text())
    given = returned(tree) | texts(tree.body)
    for function, node in within(tree, tree):
        if not isinstance(node.func, ast.Name) or node.func.id not in (*ADVICE, "Problem") or not node.args:
            continue
        known = given | texts(ast.walk(function) if function is not tree else ())
        if node.func.id in ADVICE:
            kind, text = node.func.id, template(node.args[0], known)
        else:  # of a line of a file
            said, advice = (template(argument, known) for argument in node.args[1:3])
            kind, text = "SourceError", f"stream {{stream}} of {{path}}, line {{…}} (byte {{…}}): {said}. {advice}"
        if re.search(r"[a-z]{2,}", re.sub(r"\{[^}]*\}", "", text)):
            yield kind, " ".join(text.split())


def within(node: ast.AST, function: ast.AST) -> Iterator[tuple[ast.AST, ast.Call]]:
    """Every call, and the innermost function that it stands in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield function, child
        yield from within(child, child if isinstance(child, ast.FunctionDef) else function)


def texts(nodes: Iterable[ast.AST]) -> dict[str, ast.expr]:
    """What names stand for that are given a text, and given one once."""
    found: dict[str, list[ast.expr]] = {}
    for node in nodes:
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Name):
                found.setdefault(target.id, []).append(node.value)
    return {name: values[0] for name, values in found.items() if len(values) == 1 and is_text(values[0])}


def returned(tree: ast.Module) -> dict[str, ast.expr]:
    """The texts that functions return which do nothing else, by name."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            values = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value is not None]
            if len(values) == 1 and is_text(values[0]):
                found[f"{node.name}()"] = values[0]
    return found


def is_text(node: ast.expr) -> bool:
    match node:
        case ast.JoinedStr() | ast.Constant(value=str()):
            return True
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return is_text(left) or is_text(right)
    return False


def template(node: ast.expr, known: Mapping[str, ast.expr]) -> str:
    """A text as it is made, with the names of what differs in braces."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(template(part, known) for part in parts)
        case ast.FormattedValue(value=value):
            return template(value, known)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return template(left, known) + template(right, known)
        case ast.Call(func=ast.Name(id="unknown"), args=[what, *_]):
            return f"unknown {template(what, known)} {{…}}. Did you mean {{…}}? (or: Choose one of: {{…}}.)"
        case ast.Call(func=ast.Name(id="repr" | "str"), args=[inner]):
            return template(inner, known)
        case ast.Name(id=name) if name in known:
            return template(known[name], without(known, name))
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if f"{name}()" in known:
            return template(known[f"{name}()"], without(known, f"{name}()"))
        case ast.Name(id=name) | ast.Attribute(attr=name) if len(name) > 2 and not name.startswith("_"):
            return f"{{{name}}}"
    return "{…}"


def without(known: Mapping[str, ast.expr], name: str) -> dict[str, ast.expr]:
    """A name that is made of itself is written out once."""
    return {other: text for other, text in known.items() if other != name}


def quoted(text: str) -> str:
    """A message as code, whatever it holds."""
    ticks = "``" if "`" in text else "`"
    space = " " if ticks == "``" else ""
    return f"{ticks}{space}{text}{space}{ticks}"


def in_words(text: str) -> tuple[str, str]:
    """The order in which messages are listed: by their words, wherever what differs stands."""
    return re.sub(r"\{[^}]*\}|[^a-z ]", "", text.lower()).strip(), text


def part_of(module: str) -> str:
    return next((part for part, modules in PARTS.items() if module in modules.split()), "Trainer")


# --- names ------------------------------------------------------------------------------------------------


def names_page() -> str:
    import headrace

    by_part: dict[str, list[str]] = {part: [] for part in PARTS}
    for module, names in headrace._HOMES.items():
        part = "Errors" if module == "errors" else part_of(module.partition(".")[0])
        by_part.setdefault(part, []).extend(f"headrace.{name}" for name in names)
    for part, room in (("Images", "vision"), ("Kits", "testing")):
        by_part[part] = [f"headrace.{room}.{name}" for name in import_module(f"headrace.{room}").__all__]
    lines = [TOP, "# Every name", "", "What `import headrace as hr` offers, by the part of the library.", ""]
    for part, names in by_part.items():
        if names:
            lines += [f"## {part}", "", *(f"::: {name}" for name in sorted(names)), ""]
    return "\n".join(lines)


# --- lines that a task takes ------------------------------------------------------------------------------

TASKS = {
    "with_headrace": ("headrace", "migrate.md"),
    "with_keras": ("[Keras](from_keras.md)", "from_keras.md"),
    "with_skorch": ("[skorch](from_skorch.md)", "from_skorch.md"),
    "with_lightning": ("[Lightning](from_lightning.md)", "from_lightning.md"),
    "with_transformers": ("[Hugging Face Trainer](from_transformers.md)", "from_transformers.md"),
    "loop": ("[a loop by hand](from_loop.md)", "migrate.md"),
    "with_accelerate": ("[Accelerate](from_accelerate.md)", "from_accelerate.md"),
}
"""The programs that do the same: by the name of the file, the library and the page that shows the program."""


def program(name: str, page: str) -> str:
    """A program that a page shows as the file `name`.py."""
    (found,) = re.findall(rf'^```python title="{name}\.py"\n(.*?)^```$', page, flags=re.MULTILINE | re.DOTALL)
    return str(found)


def code_lines(text: str) -> int:
    """The lines of a program that are neither empty nor a comment alone."""
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines())


def with_lines(text: str) -> str:
    """The page of migrations with the lines of each program, fewest first."""
    counted = {what: code_lines(program(name, (DOCS / page).read_text())) for name, (what, page) in TASKS.items()}
    rows = "".join(f"| {what} | {lines} |\n" for what, lines in sorted(counted.items(), key=lambda each: each[1]))
    table = f"| library | lines of code |\n|---|---|\n{rows}"
    return re.sub(r"(<!-- lines[^\n]*-->\n).*?(<!-- end of lines -->)", rf"\g<1>{table}\g<2>", text, flags=re.DOTALL)


if __name__ == "__main__":
    main()
