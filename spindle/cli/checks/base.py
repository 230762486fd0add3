"""What a check is, and where it looks."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from spindle.config.settings import NodeConfig

OK = "ok"
WARN = "warn"
FAIL = "fail"


@dataclasses.dataclass(frozen=True)
class Check:
    """One result. `advice` is empty where the verdict is ok; `section` is set by run_checks()."""

    name: str
    verdict: str
    detail: str
    advice: str = ""
    section: str = ""


@dataclasses.dataclass(frozen=True)
class Machine:
    """Where the checks look: `root` stands in front of /proc, /sys and /dev; `config` is that of the node to come."""

    domain_dir: Path
    root: Path = Path("/")
    config: NodeConfig = dataclasses.field(default_factory=NodeConfig)

    def path(self, path: str) -> Path:
        """A path below root."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str | None:
        """Stripped text of a file below root; None if it can't be read."""
        try:
            return self.path(path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def names(self, path: str) -> list[str]:
        """Sorted names in a directory below root; none if it can't be read."""
        try:
            return sorted(os.listdir(self.path(path)))
        except OSError:
            return []


def free_bytes(path: Path) -> int:
    """Room for an ordinary user on the file system of `path`."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
