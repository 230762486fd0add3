"""Goal: the page is whole where the package is installed, is its own, and says under which licence the rest came.

Method: the files are read, and what pyproject.toml puts into a wheel is compared with what there is.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
STATIC = ROOT / "spindle" / "cockpit" / "static"
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())


def test_everything_goes_into_a_wheel() -> None:
    line = re.search(r'^"spindle\.cockpit" = \[(.*)\]$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert line is not None
    globs = re.findall(r'"([^"]+)"', line[1])
    for path in FILES:
        name = str(path.relative_to(STATIC.parent))
        assert any(fnmatch(name, glob) and name.count("/") == glob.count("/") for glob in globs), name


def test_what_is_not_ours_lies_apart_with_its_licence() -> None:
    vendors = [path for path in (STATIC / "vendor").iterdir()]
    assert vendors
    for vendor in vendors:
        assert (vendor / "LICENSE").read_text().strip() and "licence" in (vendor / "README.txt").read_text()


def test_modules_import_files_that_are_there() -> None:
    for path in FILES:
        if path.suffix == ".js" and "vendor" not in path.parts:
            for name in re.findall(r'^import .* from "([^"]+)"', path.read_text(), re.MULTILINE):
                assert (path.parent / name).is_file(), f"{path.name} imports {name}"
        if path.suffix == ".html":
            for name in re.findall(r'(?:src|href)="([^"#]+)"', path.read_text()):
                assert name == "./" or (path.parent / name).is_file(), f"{path.name} names {name}"


def test_nothing_in_a_page_needs_what_its_policy_forbids() -> None:
    """No script or style within a page, no handler in an attribute: Content-Security-Policy allows files alone."""
    for path in FILES:
        if path.suffix == ".html":
            text = path.read_text()
            assert not re.search(r"<style|style=|\son\w+=|javascript:", text), path
            assert all('src="' in tag for tag in re.findall(r"<script[^>]*>", text)), path
        if path.suffix == ".js" and "vendor" not in path.parts:
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function",
                                 path.read_text()), f"{path}: what others have named must stay text"
