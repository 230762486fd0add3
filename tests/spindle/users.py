"""Programs of other users of this host, for tests of who may do what. They need root."""

from __future__ import annotations

import os
import sys
import textwrap

import pytest

STRANGER_UID = 54321  # nobody's, on any host that these tests run on
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def run_as(uid: int, program: str, *arguments: str, imports: str = "") -> list[str]:
    """The command that runs `program` as another user, in the group of the same number and no other. What it imports
    besides fcntl, os, socket, sys and time stands in `imports`: that is done before, while the files can be read."""
    become = (f"import fcntl, os, socket, sys, time\nos.setgroups([])\nos.setresgid({uid}, {uid}, {uid})\n"
              f"os.setresuid({uid}, {uid}, {uid})\n")
    return [sys.executable, "-c", textwrap.dedent(imports) + "\n" + become + textwrap.dedent(program), *arguments]
