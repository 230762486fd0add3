"""The CPythons on this machine that Spindle is for; `pythons.py --test [--python VERSION]
[pytest arguments]` runs the tests on each, or on those that are named.

Rules: of each version the latest release is taken; without the headers or venv nothing can be built for it, and that is
said. A version that isn't here is named, never skipped in silence.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ((3, 10), (3, 11), (3, 12), (3, 13), (3, 14))
# pyenv, uv, what manylinux images have, what systems have.
PLACES = ("{pyenv}/versions/*/bin/python{v}", "{uv}/*/bin/python{v}", "/opt/python/*/bin/python{v}",
          "/opt/*/bin/python{v}", "/usr/local/bin/python{v}", "/usr/bin/python{v}")
ASK = """
import importlib.util, json, os, sys, sysconfig
include = sysconfig.get_path("include")
missing = [] if os.path.exists(include + "/Python.h") else ["its headers (python3-dev)"]
missing += [] if all(map(importlib.util.find_spec, ("venv", "ensurepip"))) else ["venv (python3-venv)"]
path = getattr(sys, "_base_executable", sys.executable)  # not a shim, nor one of an environment
print(json.dumps({"path": path, "release": sys.version_info[:3], "include": include, "missing": missing, "fit":
    sys.implementation.name == "cpython" and sys.version_info.releaselevel == "final"
    and not sysconfig.get_config_var("Py_GIL_DISABLED")}))
"""


@dataclass(frozen=True)
class Python:
    path: str
    release: tuple[int, ...]
    include: Path
    missing: tuple[str, ...]  # what a build needs and it hasn't

    @property
    def version(self) -> str:
        return "{}.{}".format(*self.release)


def ask(path: str) -> Python | None:
    """None: not a CPython with a GIL and a final release, or none that starts."""
    try:
        done = subprocess.run([path, "-I", "-c", ASK], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    answer = json.loads(done.stdout)
    if not answer["fit"]:
        return None
    return Python(answer["path"] or path, tuple(answer["release"]), Path(answer["include"]), tuple(answer["missing"]))


def places(version: str) -> list[str]:
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    uv = os.environ.get("UV_PYTHON_INSTALL_DIR") or f"{data}/uv/python"
    patterns = [f"{directory}/python{version}" for directory in os.environ.get("PATH", "").split(":") if directory]
    patterns += [place.format(pyenv=pyenv, uv=uv, v=version) for place in PLACES]
    found = [path for pattern in patterns for path in sorted(glob.glob(pattern)) if os.access(path, os.X_OK)]
    return list({os.path.realpath(path): path for path in found}.values())


def find() -> dict[tuple[int, int], Python]:
    """The best of each version: one that can build before one that can't, the latest release of those."""
    found = {}
    for version in VERSIONS:
        here = [python for path in places("{}.{}".format(*version)) if (python := ask(path)) is not None]
        here = [python for python in here if python.release[:2] == version]
        if here:
            found[version] = max(here, key=lambda python: (not python.missing, python.release))
    return found


def unfit(found: dict[tuple[int, int], Python], wanted: Sequence[tuple[int, int]] = VERSIONS) -> list[str]:
    """A line for each version that can't be used."""
    lines = []
    for version in wanted:
        name = "CPython {}.{}".format(*version)
        if version not in found:
            lines.append(f"{name}: not found")
        elif found[version].missing:
            lines.append(f"{name}: {found[version].path} lacks {' and '.join(found[version].missing)}")
    return lines


def chosen(arguments: list[str]) -> tuple[list[tuple[int, int]], list[str]]:
    """The versions that --python names, all if there is none; and the other arguments."""
    names = {"{}.{}".format(*version): version for version in VERSIONS}
    parser = argparse.ArgumentParser(prog="pythons.py --test", add_help=False, allow_abbrev=False)
    parser.add_argument("--python", action="append", choices=list(names))
    options, rest = parser.parse_known_args(arguments)
    return [names[name] for name in options.python or names], rest


def copy_tree(to: Path) -> None:
    """A clone with what is changed here; what git doesn't know of, an earlier environment and build, stays there."""
    def git(*arguments: str, cwd: Path = to, **options: object) -> bytes:
        return subprocess.run(["git", *arguments], cwd=cwd, stdout=subprocess.PIPE, check=True,
                              **options).stdout  # type: ignore[call-overload, no-any-return]

    if not (to / ".git").exists():
        to.mkdir(parents=True, exist_ok=True)
        git("init", "--quiet")
    git("fetch", "--quiet", str(ROOT), "HEAD")
    git("checkout", "--quiet", "--force", "--detach", "FETCH_HEAD")
    git("clean", "--quiet", "--force", "-d")
    changed = git("diff", "--binary", "HEAD", cwd=ROOT)
    if changed:
        git("apply", "--index", "--whitespace=nowarn", input=changed)


def run_tests(arguments: list[str]) -> int:
    """`make test` with a copy of the tree for each, as modules in place and what stamps say are one version's."""
    wanted, arguments = chosen(arguments)
    found = {version: python for version, python in find().items() if version in wanted}
    results = []
    for python in found.values():
        if python.missing:
            continue
        tree = ROOT / "build" / "pythons" / python.version
        copy_tree(tree)
        print(f"== CPython {'.'.join(map(str, python.release))} ({python.path})", flush=True)
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("MAKE") and name not in ("MFLAGS", "VENV", "ARGS", "VIRTUAL_ENV")}
        done = subprocess.run(["make", "test", f"PYTHON={python.path}", f"ARGS={shlex.join(arguments)}"], cwd=tree,
                              env=environment, check=False)
        results.append((python, done.returncode))
    print("== Tests on CPython " + ", ".join("{}.{}".format(*version) for version in wanted))
    for python, status in results:
        print(f"CPython {python.version}: {'passed' if status == 0 else 'FAILED'} ({python.path})")
    for line in unfit(found, wanted):
        print(f"{line}: NOT TESTED")
    return 1 if not results or any(status for _, status in results) else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--test"]:
        sys.exit(run_tests(sys.argv[2:]))
    here = find()
    for one in here.values():
        print(f"CPython {'.'.join(map(str, one.release))}: {one.path}")
    print(*unfit(here), sep="\n")
