"""Files that guests get with their initial file system, so that they don't ask for them one by one.

Why: an emulated processor takes about a millisecond for each question about a file of this machine; an import has ten
of them, a program a thousand imports. So this machine imports what the steps will, compiled, and what was read for it
goes into an archive that a guest's kernel unpacks. Nothing depends on it: other files come as before.

Rules: the archive is of this moment, made anew for each run. Paths are real ones, without symbolic links in them.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

PROGRAMS = ("/bin/bash", "/bin/ip", "/bin/rdma", "/sbin/ip", "/sbin/rdma", "/usr/bin/env")
# What the guests' programs import; the tests are collected first, so that they are compiled with their assertions.
READ = """
import glob, importlib, os, sys
if sys.argv[2:]:
    import pytest
    pytest.main(["--collect-only", "-qq", "--noconftest", "-p", "no:cacheprovider", *sys.argv[2:]])
for name in sys.argv[1].split(","):
    importlib.import_module(name)
found = set()
for module in list(sys.modules.values()):
    for name in (getattr(module, "__file__", None), getattr(module, "__cached__", None)):
        if name:
            found.add(name)
            found.update(glob.glob(os.path.join(os.path.dirname(name), "__pycache__", "*-pytest-*.pyc")))
with open("/proc/self/maps") as maps:
    found.update(line.split()[-1] for line in maps if "/" in line)
print("\\0".join(["", *found]))
"""


def read_for(directory: Path, modules: Iterable[str], tests: Iterable[str] = (),
             interpreter: str = sys.executable) -> set[Path]:
    """Real paths of what that interpreter reads for these modules and tests of the tree in `directory`; compiled files
    are left beside them, as usual."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": str(directory)}
    ran = subprocess.run([interpreter, "-c", READ, ",".join(modules), *tests], cwd=directory, env=environment,
                         stdout=subprocess.PIPE, text=True, check=True)
    paths = {Path(os.path.realpath(name)) for name in (*ran.stdout.split("\0")[1:], *PROGRAMS, interpreter)}
    return {path for path in paths if path.is_file() and path.parts[1] not in ("dev", "proc", "sys", "run", "tmp")}


def write_entry(archive: BinaryIO, name: str, mode: int, mtime: int, data: bytes) -> None:
    """One file or directory of a cpio archive (the "newc" format, as the kernel reads it)."""
    raw = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, mtime, len(data), 0, 0, 0, 0, len(raw), 0)
    archive.write(b"070701" + b"".join(b"%08X" % field for field in fields) + raw)
    archive.write(bytes(-(110 + len(raw)) % 4) + data + bytes(-len(data) % 4))


def write_archive(target: Path, paths: Iterable[Path], below: str = "carried") -> None:
    """These files with the directories above them, below a directory of that name. They belong to root."""
    wanted = sorted({*paths, *(parent for path in paths for parent in path.parents)})
    with target.open("wb") as archive:
        for path in wanted:
            found = path.stat()
            data = path.read_bytes() if stat.S_ISREG(found.st_mode) else b""
            write_entry(archive, f"{below}{path}".rstrip("/"), found.st_mode, int(found.st_mtime), data)
        write_entry(archive, "TRAILER!!!", 0, 0, b"")
