"""The documentation: links lead somewhere, public names are explained, nothing is out of date."""

import builtins
import inspect
import re
import shlex
import tomllib
from itertools import takewhile
from pathlib import Path
from pydoc import locate
from types import ModuleType
from typing import Any

import pytest
from kit.imports import module_at, names_of

import headrace
from headrace.app.cli import main
from headrace.app.cli.commands import make_app
from headrace.watch.callback import HOOKS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("**/*.md"))
README = ROOT / "README.md"
HERE = re.compile(
    r"\]\(https://(?:github|raw\.githubusercontent)\.com/headrace/headrace/(?:blob/)?main/([^)#]+)#?([^)]*)\)"
)
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in links."""
    blocks = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = [title.replace("`", "").lower() for title in re.findall(r"^#+ (.+)$", blocks, flags=re.MULTILINE)]
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title)).strip("-") for title in titles}


def broken(page: Path) -> list[str]:
    """The links of a page by the address of a file in the repository that lead nowhere; mkdocs checks all others."""
    found = [(path, ROOT / path, anchor) for path, anchor in HERE.findall(page.read_text())]
    return [path for path, file, anchor in found if not file.is_file() or (anchor and anchor not in anchors(file))]


@pytest.fixture(scope="module")
def made() -> ModuleType:
    """The script that makes pages from the source."""
    return module_at(ROOT / "scripts" / "pages.py")


def test_every_link_to_the_repository_leads_somewhere(tmp_path: Path) -> None:
    """All links of the README are absolute, so that the page works on the package index."""
    assert {page.name: wrong for page in [README, *PAGES] if (wrong := broken(page))} == {}
    assert len(HERE.findall(README.read_text())) >= 20
    assert not re.search(r"\]\((?!https://)", README.read_text())
    where = "https://github.com/headrace/headrace/blob/main"
    (page := tmp_path / "page.md").write_text("".join(f"[a]({where}/{p})" for p in ("docs/data.md#lists", "none.md")))
    assert broken(page) == ["none.md"], "the control"


def test_the_site_and_the_citation_name_the_version() -> None:
    assert f"headrace {headrace.__version__}," in (ROOT / "mkdocs.yml").read_text()
    assert f"version: {headrace.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_public_name_is_told_of_by_hand() -> None:
    """The reference is made from the source, and is not enough; of errors it is."""
    text = "\n".join(page.read_text() for page in PAGES if page.parent.name != "reference")
    text += README.read_text()
    names = [name for name in names_of(headrace) if not name.endswith("Error")]
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


def test_no_page_names_what_is_not_there() -> None:
    """Of what is written as `hr.name`, in prose and in programs."""
    for page in [README, *PAGES]:
        named = set(re.findall(r"\bhr\.([A-Za-z_]\w*)", page.read_text()))
        assert {name for name in named if not hasattr(headrace, name)} == set(), page.name


def test_programs_of_pages_import_only_what_is_public() -> None:
    public = {"compat", "optuna", "sklearn", "testing", "vision"}
    for page in [README, *PAGES]:
        for room, module in re.findall(r"^(?:from|import) headrace\.(\w+)([\w.]*)", page.read_text(), re.MULTILINE):
            assert room in public, f"{page.name} imports headrace.{room}{module}"


def test_every_dependency_is_listed_on_the_page_of_the_architecture() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    listed = (DOCS / "architecture.md").read_text().partition("## Dependencies")[2].partition("\n\nRay")[0].lower()
    names = {re.split(r"[><=]", each)[0] for each in needed}
    assert {name for name in names if not re.search(rf"[| ,]{name}[ ,]", listed)} == set()


@pytest.mark.parametrize(
    ("name", "kind"), [("info", headrace.Info), ("trainer", headrace.Trainer), ("history", headrace.History)]
)
def test_no_page_names_an_attribute_that_is_not_there(name: str, kind: type) -> None:
    pages = [page for page in PAGES if page.name not in ("switch.md", "compatibility.md")]
    code = "\n".join(found for page in pages for found in CODE.findall(page.read_text()))
    named = set(re.findall(rf"(?<![.\w/]){name}\.([a-z_]+)\b", code)) - {"json", "safetensors"}  # files
    made = (
        {"optimizer", "optimizers", "model", "history"}
        if kind is headrace.Trainer
        else {"rows", "stopped", "marked", "run"}
    )  # with an instance
    assert len(named) >= 3
    assert named - made - set(dir(kind)) == set()


def test_every_hook_is_explained() -> None:
    page = (DOCS / "callbacks.md").read_text()
    pseudocode, table = page.partition("## Hooks")[::2]
    for hook in HOOKS:
        assert hook in pseudocode
        assert f"| `{hook}(" in table


def test_pages_that_are_made_from_the_source_are_up_to_date(made: ModuleType) -> None:
    for path, text in made.pages().items():
        assert path.read_text() == text, f"{path.name} is out of date: run scripts/docs"


def test_every_kind_of_error_has_advice() -> None:
    kinds = {name for name in names_of(headrace) if name.endswith("Error")} - {"HeadraceError"}
    rows = re.findall(
        r"^\| `(\w+Error)` \((?:a )?`(\w+)`\) \| .+ \| .+ \|$", (DOCS / "problems.md").read_text(), flags=re.MULTILINE
    )
    assert {kind for kind, _ in rows} == kinds
    for kind, parent in rows:
        assert issubclass(getattr(headrace, kind), getattr(headrace, parent, None) or getattr(builtins, parent))


def test_the_figures_of_the_strategies_are_those_that_were_measured() -> None:
    measured = (ROOT / "benchmarks" / "results" / "workers.txt").read_text()
    page = (DOCS / "strategies.md").read_text().partition("## Figures")[2]
    rows = [
        [cell.strip() for cell in row.strip("|").split("|")] for row in re.findall(r"^\| .*\|$", page, re.MULTILINE)
    ]
    assert len(rows) >= 7
    link = measured.partition("link:")[2].partition("\n\n")[0]
    for what, seconds, speed, epochs in rows[1:]:
        assert re.search(rf"^{re.escape(what)} +{seconds} +{speed} +\S+ +{epochs} ", link, re.MULTILINE), what
    in_prose = re.findall(r"(?<![\d.])\d+\.\d\d(?![\d.])", re.sub(r"^\|.*$", "", page, flags=re.MULTILINE))
    assert len(in_prose) >= 6
    assert [number for number in in_prose if number not in measured] == []


def commands(page: Path) -> list[list[str]]:
    """The calls of the command line that a page shows, in words."""
    found = []
    for block in re.findall(r"^```bash\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["headrace"]:
                found.append([*takewhile(lambda word: word not in (">", "|", "&&", "&"), words[1:])])
    return found


def test_every_command_that_is_shown_is_taken() -> None:
    """Those with a file of options need its recipe: the test below runs them."""
    shown = [words for page in [README, *PAGES] for words in commands(page)]
    assert len(shown) >= 15
    app = make_app([])
    for words in shown:
        if "--config" not in words:
            _, _, unknown, _ = app.parse_known_args([word for word in words if word != "--help"])
            assert {word for word in unknown if word.startswith("-")} <= {"--lr", "--hidden"}, words


def test_the_commands_of_the_recipes_work_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = DOCS / "command_line.md"
    (program,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    Path("clouds.py").write_text(program.partition("\n\nhistory =")[0] + "\n")
    Path("new.csv").write_text("x0,x1\n3.1,0.2\n-1.4,2.5\n")
    for words in commands(page):
        before = capsys.readouterr()
        try:
            status = main(words)
        except SystemExit as ended:  # of --help
            status = int(ended.code or 0)
        said = capsys.readouterr()
        assert status == 0, (words, before, said)
        if "--print-config" in words:
            Path("clouds.yaml").write_text(said.out)
    assert Path("answers.csv").read_text().count("\n") == 3
    assert Path("runs/clouds/report.html").is_file()
    for shown in re.findall(r"^headrace fit: .*$", page.read_text(), flags=re.MULTILINE):
        wrong = ["--hiden", "5"] if "hiden" in shown else ["--lr", "high"]
        assert main(["fit", "clouds.py", *wrong]) == 2
        assert capsys.readouterr().err.strip() == shown


@pytest.mark.parametrize("call", [headrace.Trainer, headrace.Trainer.fit], ids=["Trainer", "fit"])
def test_every_argument_of_the_trainer_is_explained_on_its_page(call: Any) -> None:
    page = (DOCS / "trainer.md").read_text().partition("## What the trainer takes")[2].partition("## History")[0]
    taken = [name for name in inspect.signature(call).parameters if name != "self"]
    assert [name for name in taken if not re.search(rf"`{name}[`=]", page)] == []


def test_what_the_architecture_names_is_there() -> None:
    named = re.findall(r"`(headrace\.[\w.]+)`", (DOCS / "architecture.md").read_text())
    assert len(named) >= 15
    for name in named:
        assert locate(name) is not None, name


def test_a_walk_through_the_house_enters_no_room_twice() -> None:
    walks = re.split(r"^## |^And back:", (DOCS / "architecture.md").read_text(), flags=re.MULTILINE)
    rooms = [re.findall(r"^\d\. (\w+):", walk, flags=re.MULTILINE) for walk in walks]
    assert [len(walk) for walk in rooms if walk] == [7, 4, 4]
    assert [walk for walk in rooms if len(set(walk)) < len(walk)] == []
