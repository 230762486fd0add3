"""Make the site of the documents, in build/site/html.

    python tools/site [--fresh]

Why staged: the documents lie where people on GitHub look for them (the root, docs/, examples/), and their links go by
these places. A copy gives Sphinx the same places, with docs/site/index.md as the front page.

Rules: every warning is an error. What comes out loads nothing from another host: that is checked, page by page.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build" / "site"

# What a page loads, as opposed to what it links to.
LOADING = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("audio", "src"),
           ("object", "data"), ("embed", "src"), ("use", "href"), ("image", "href"), ("img", "srcset")}
LINKS_LOADED = {"stylesheet", "icon", "preload", "modulepreload", "prefetch", "preconnect", "dns-prefetch", "manifest"}
IN_STYLES = re.compile(r"""(?:url\(\s*|@import\s+)['"]?\s*((?:https?:)?//[^'")\s]+)""")
IN_SCRIPTS = re.compile(r"""(?:import|from|importScripts|fetch|\.src\s*=)\s*\(?\s*['"`]((?:https?:)?//[^'"`]+)""")


def stage(source: Path) -> None:
    """The tree that Sphinx reads: copies with the times of the files, so that it makes anew only what was changed."""
    if source.exists():
        shutil.rmtree(source)
    source.mkdir(parents=True)
    for pattern in ("*.md", "LICENSE", "examples/README.md", "examples/data/*.md", "examples/*.py", "docs/*.md",
                    "docs/*.toml"):
        for path in ROOT.glob(pattern):
            place = source / path.relative_to(ROOT)
            place.parent.mkdir(exist_ok=True, parents=True)
            if path.suffix == ".md":
                place.write_text(staged(path), encoding="utf-8")
            else:
                shutil.copyfile(path, place)
            shutil.copystat(path, place)
    for folder in ("docs/cockpit", "docs/paper", "docs/pictures", "packaging/examples"):
        shutil.copytree(ROOT / folder, source / folder)
    front = ROOT / "docs" / "site" / "index.md"
    text = front.read_text(encoding="utf-8").replace("](../../", "](").replace("](../", "](docs/")
    (source / "index.md").write_text(text, encoding="utf-8")
    shutil.copystat(front, source / "index.md")
    shutil.copytree(ROOT / "docs" / "site" / "api", source / "api")


def staged(document: Path) -> str:
    """A document in which links to folders of the repository, which the site doesn't have, are only their names. One
    without a title (a licence) is no page of the site's contents."""
    def name_only(link: re.Match[str]) -> str:
        return link.group(1) if (document.parent / link.group(2)).is_dir() else link.group(0)

    text = document.read_text(encoding="utf-8")
    return ("" if text.startswith("# ") else "---\norphan: true\n---\n\n") + re.sub(
        r"\[([^]]+)\]\(([^):#]+)\)", name_only, text)


class Loads(HTMLParser):
    """Collects what a page loads from another host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        loaded = [values.get(name, "") for its, name in LOADING if its == tag]
        if tag == "link" and LINKS_LOADED & set(values.get("rel", "").split()):
            loaded.append(values.get("href", ""))
        self.found += [one for one in loaded if re.match(r"\s*(?:https?:)?//", one)]
        self.found += IN_STYLES.findall(values.get("style", ""))


def foreign(html: Path) -> list[str]:
    """What files of the site load from another host."""
    wrong = []
    for path in sorted(html.rglob("*")):
        if path.suffix not in (".html", ".css", ".js", ".svg") or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        found = []
        if path.suffix in (".html", ".svg"):
            page = Loads()
            page.feed(text)
            found += page.found
        if path.suffix != ".js":
            found += IN_STYLES.findall(text)
        if path.suffix != ".css":
            found += IN_SCRIPTS.findall(text)
        wrong += [f"{path.relative_to(html)} loads {one}" for one in dict.fromkeys(found)]
    return wrong


def build(out: Path, fresh: bool) -> int:
    from sphinx.cmd.build import main as sphinx

    source, html, trees = out / "source", out / "html", out / "trees"
    stage(source)
    if fresh:
        shutil.rmtree(html, ignore_errors=True)
        shutil.rmtree(trees, ignore_errors=True)
    status = sphinx(["--quiet", "--fail-on-warning", "--keep-going", "--color" if sys.stderr.isatty() else "--no-color",
                     "-b", "html", "-c", str(Path(__file__).parent), "-d", str(trees), str(source), str(html)])
    if status:
        print("The site was not made: what is said above must be mended first.", file=sys.stderr)
        return status
    if wrong := foreign(html):
        print("\n".join(wrong), "The site must load nothing from other hosts.", sep="\n", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the site of the documents.")
    parser.add_argument("--out", type=Path, default=BUILD, help="where; the pages are in html/ there [build/site]")
    parser.add_argument("--fresh", action="store_true", help="make every page anew")
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    status = build(options.out.resolve(), options.fresh)
    if not status:
        print(f"The site is made: open {os.path.relpath(options.out / 'html' / 'index.html')}")
    return status


if __name__ == "__main__":
    sys.exit(main())
