"""The documentation as a browser shows it: in a narrow window."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from kit.browser import chromium, dom
from kit.sampled import nightly

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ["index.html", "trainer.html", "reference/trainer.html", *nightly("switch.html", "report.html")]
WIDE = """<script>window.addEventListener("load", () => {
document.title = document.documentElement.scrollWidth + " of " + window.innerWidth; })</script></body>"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site: a copy of what scripts/check has just built, else a new one."""
    made, built = tmp_path_factory.mktemp("site"), ROOT / "build" / "site"
    sources = [ROOT / "mkdocs.yml", ROOT / "CHANGELOG.md", *DOCS.rglob("*.*"), *(ROOT / "src").rglob("*.py")]
    if (built / "404.html").is_file() and max(map(changed, sources)) < changed(built / "404.html"):
        return shutil.copytree(built, made, dirs_exist_ok=True)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(made)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def changed(path: Path) -> float:
    return path.stat().st_mtime


def test_the_site_has_every_page_and_asks_nobody_else_for_anything(site: Path) -> None:
    built = {page.relative_to(site).with_suffix(""): page for page in site.rglob("*.html") if "-probe" not in page.name}
    assert built.keys() == {page.relative_to(DOCS).with_suffix("") for page in DOCS.rglob("*.md")} | {Path("404")}
    for page in built.values():
        tags = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page.read_text())
        tags = [tag for tag in tags if not re.search(r"rel=[\"']?canonical", tag)]
        assert [tag for tag in tags if re.search(r"(?:src|href)=[\"']?https?:", tag)] == [], page.name


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_a_narrow_window_and_says_nothing_to_the_console(page: str, site: Path, address: str) -> None:
    chromium()
    probe = site / page.replace(".html", "-probe.html")
    probe.write_text((site / page).read_text().replace("</body>", WIDE))
    html, said = dom(f"{address}/{page.replace('.html', '-probe.html')}", "--window-size=500,900")
    assert said == []
    ((content, window),) = re.findall(r"<title>(\d+) of (\d+)</title>", html)
    assert int(content) <= int(window), "nothing but code and tables scrolls sideways"


def test_the_search_ranks_guides_above_the_reference_and_the_changes(site: Path) -> None:
    documents = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    boosts = {each["location"].partition("#")[0]: each.get("boost", 1) for each in documents}
    assert len(boosts) > 30
    assert {page for page, boost in boosts.items() if boost < 1} == {
        page for page in boosts if page.startswith("reference/") or page == "changelog.html"
    }
