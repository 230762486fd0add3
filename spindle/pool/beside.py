"""Memory of another node's process on this host, which is opened without asking that node.

Why: a node that is asked for a descriptor answers from its event loop, and both loops, both pools and the program that
waits are woken one after the other for it, which takes several hundred microseconds; the kernel opens it in ten.

The owner says which of its descriptors it is, and which file that is (layout.h, key_entry). The descriptor may be
another one by the time that it is opened, or the owner lies, of a file with which opening alone does something, or that
lets nobody go on who asks about it; so it is first taken hold of without being opened (O_PATH), and opened when it is
the memory that was meant. A lease on that would keep who opens it waiting (fcntl(2), F_SETLEASE), but for O_NONBLOCK.

Rules: the kernel lets a process of the same user do this, unless it has more rights than that one; else the owner is
asked (neighbours.py).
"""

from __future__ import annotations

import fcntl
import os

from spindle_core.ends import Loose
from spindle_core.memory import Mapping

_F_SEAL_FUTURE_WRITE = 0x10  # linux/fcntl.h


def open_file_of(pid: int, fd: int, inode: int, device: int) -> int:
    """A descriptor of one's own for the memory that process `pid` has as `fd`, which is the file `inode` of `device`.
    Blocks nowhere. ConnectionError where it is another one by now, can't be opened, or the process has gone;
    PermissionError where the kernel doesn't let this process look; other OSErrors where something has run out here."""
    try:
        held = os.open(f"/proc/{pid}/fd/{fd}", os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        raise ConnectionError(f"process {pid} has no descriptor {fd}") from None
    try:
        here = f"/proc/self/fd/{held}"
        if os.readlink(here).startswith("/memfd:"):  # its name, for which no file system is asked
            found = os.fstat(held)
            if (found.st_ino, found.st_dev) == (inode, device):
                return os.open(here, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        raise ConnectionError(f"descriptor {fd} of process {pid} is another file by now")
    except (PermissionError, BlockingIOError) as error:
        raise ConnectionError(f"descriptor {fd} of process {pid} can't be opened: {error}") from error
    finally:
        os.close(held)


def attach_as_sealed(fd: int) -> Mapping:
    """The memory of a descriptor, mapped for writing where its owner lets others write. Takes it over. OSError,
    ValueError."""
    with Loose([fd]) as loose:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)  # an error for what is no memory
        return Mapping.attach(loose.take(), writable=not seals & _F_SEAL_FUTURE_WRITE)
