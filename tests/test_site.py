"""Goal: the documents can be made a site, in which every link leads somewhere and every public name is found.

Method: `tools/site` makes it in a directory of the test's own, as `make docs` does; every warning of Sphinx is an error
there. The pages are read as text. The rest needs no Sphinx: what docstrings become, what a page may load, and whether
each drawing has its picture.
"""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "site"
NEEDED = ("furo", "myst_parser", "sphinx")

LACKING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
takes_long = pytest.mark.timeout(600)  # on a machine that has other things to do
needs_sphinx = pytest.mark.skipif(bool(LACKING), reason=f"needs {', '.join(LACKING)}: `make docs` fetches them")


def tool(name: str) -> ModuleType:
    """A module of tools/site, which isn't a package."""
    spec = importlib.util.spec_from_file_location(f"site_{name}", TOOL / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    run = subprocess.run([sys.executable, str(TOOL), "--out", str(out)], cwd=ROOT, capture_output=True, text=True,
                         timeout=500)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return out / "html"


@needs_sphinx
@takes_long
@pytest.mark.slow
def test_the_site_is_made_without_a_warning(made: Path) -> None:
    """And has a page for each document, and one for each part of the API."""
    pages = {str(path.relative_to(made)) for path in made.rglob("*.html")}
    assert {f"docs/{path.stem}.html" for path in (ROOT / "docs").glob("*.md")} <= pages
    assert {f"api/{path.stem}.html" for path in (ROOT / "docs" / "site" / "api").glob("*.rst")} <= pages
    assert {"index.html", "README.html", "ARCHITECTURE.html", "SECURITY.html", "search.html"} <= pages


@needs_sphinx
@takes_long
@pytest.mark.slow
def test_names_are_found(made: Path) -> None:
    """By their anchors, which is what links from elsewhere go by."""
    reading = (made / "api" / "reading.html").read_text()
    assert 'id="dds.DataReader.take"' in reading
    policies = (made / "api" / "qos.html").read_text()
    assert 'id="dds.Policy.History.KeepLast.depth"' in policies and "alias of" not in policies
    assert 'id="spindle.links.Link.call"' in (made / "api" / "links.html").read_text()
    assert 'id="spindle.client.Session.open_writer"' in (made / "api" / "client.html").read_text()


@needs_sphinx
@takes_long
@pytest.mark.slow
def test_drawings_and_pictures_are_in_the_pages(made: Path) -> None:
    page = (made / "ARCHITECTURE.html").read_text()
    assert page.count('class="drawing only-light"') == page.count('class="drawing only-dark"') == 3
    assert "flowchart TB" not in page
    front = (made / "index.html").read_text()
    shown = re.findall(r'<img[^>]* src="([^"]+)"', front)
    assert len(shown) >= 4 and all((made / one).is_file() for one in shown)


@needs_sphinx
@takes_long
@pytest.mark.slow
def test_a_dead_link_fails_the_site(tmp_path: Path) -> None:
    """Method: a tree with the tool and one document that links to nowhere."""
    for name in ("tools/site", "docs/site"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", str(ROOT / name), str(tmp_path / name)], check=True)
    for name in ("docs/cockpit", "docs/paper", "docs/pictures", "packaging/examples", "examples/data", "docs/site/api"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    for page in (tmp_path / "docs" / "site" / "api").glob("*.rst"):
        page.unlink()
    (tmp_path / "docs" / "site" / "index.md").write_text(
        "# Here\n\n[nowhere](../lost.md) [there](../../README.md#gone)\n")
    (tmp_path / "README.md").write_text("# There\n")
    run = subprocess.run([sys.executable, str(tmp_path / "tools" / "site")], cwd=tmp_path, capture_output=True,
                         text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert run.returncode != 0
    assert "docs/lost.md" in run.stderr and "gone" in run.stderr and "must be mended" in run.stderr


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "site" / "api").glob("*.rst")), ids=lambda page: page.stem)
def test_what_the_reference_names_exists(page: Path) -> None:
    """What `make docs` would say of a name that was changed, without Sphinx."""
    named = re.findall(r"^\.\. auto\w+:: ([\w.]+)", page.read_text(), re.MULTILINE)
    for name in named:
        pkgutil.resolve_name(name)


def test_every_drawing_has_its_picture() -> None:
    """What `make docs` would say, without it; and no picture is left of a drawing that was changed."""
    drawn = tool("drawn")
    assert set(drawn.FOLDER.glob("*.svg")) == set(drawn.wanted()), "run `make docs-pictures ARGS=drawings`"


def test_pictures_load_nothing_from_elsewhere() -> None:
    main = tool("__main__")
    assert main.foreign(ROOT / "docs" / "pictures") == []


@pytest.mark.parametrize(("name", "text"), [
    ("a.html", '<script src="https://cdn.example/x.js"></script>'),
    ("a.html", '<link rel="stylesheet" href="//fonts.example/x.css">'),
    ("a.html", '<link rel="dns-prefetch preconnect" href="https://fonts.example">'),
    ("a.html", '<img alt="x" src="http://pictures.example/x.png">'),
    ("a.html", '<p style="background: url(https://pictures.example/x.png)">'),
    ("a.css", "@import 'https://fonts.example/x.css';"),
    ("a.css", "@font-face { src: url(//fonts.example/x.woff2) }"),
    ("a.js", 'import("https://cdn.example/mermaid.mjs")'),
    ("a.svg", '<svg><image href="https://pictures.example/x.png"/></svg>'),
])
def test_what_a_page_would_load_from_elsewhere_is_found(tmp_path: Path, name: str, text: str) -> None:
    main = tool("__main__")
    (tmp_path / name).write_text(text)
    (found,) = main.foreign(tmp_path)
    assert found.startswith(f"{name} loads ") and ".example" in found


def test_links_to_elsewhere_are_no_loading(tmp_path: Path) -> None:
    main = tool("__main__")
    (tmp_path / "a.html").write_text(
        '<a href="https://example.org">there</a><link rel="canonical" href="https://example.org/a">'
        '<svg xmlns="http://www.w3.org/2000/svg"></svg><script src="own.js"></script>')
    assert main.foreign(tmp_path) == []


@pytest.mark.parametrize(("docstring", "wanted"), [
    (["Take *all* of `take()`, 2**3, a_ and |x|."],
     [r"Take \*all\* of :py:spanned:`take()`, 2\*\*3, a\_ and \|x\|.", ""]),
    (["What.", "", "node_id  of the node", "nodes    `a b`,", "         or none", "Raises X."],
     ["What.", "", "``node_id``", "    of the node", "``nodes``", "    ``a b``, or none", "", "Raises X.", ""]),
    (["port: the only one", "    that it has.", "Rules: none"],
     ["``port``", "    the only one that it has.", "", "Rules: none", ""]),
    (["It is so:", "", "    a = 1", "", "    b = 2", "", "- one", "- two"],
     ["It is so:", "", ".. code-block:: python", "", "    a = 1", "", "    b = 2", "",
      "- one", "- two", ""]),
])
def test_docstrings_become_what_sphinx_reads(docstring: list[str], wanted: list[str]) -> None:
    assert tool("docstrings").converted(docstring) == wanted


@pytest.mark.slow
def test_the_program_of_the_front_page_runs(runtime_dir: Path, tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "site" / "index.md").read_text(),
                         re.DOTALL | re.MULTILINE)
    (tmp_path / "program.py").write_text(code)
    run = subprocess.run([sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, timeout=60,
                         env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (run.returncode, run.stdout, run.stderr) == (0, "b'good morning'\n", "")
