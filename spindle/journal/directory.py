"""The directory of the journals: whether one can be kept there, and what to do about it if not."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

from spindle.errors import JournalError
from spindle.journal.files import Files, OsFiles
from spindle.journal.retention import lack

CONFIGURED = "The directory is `dir` under [journal] in the configuration"


def check_directory(directory: Path, files: Files | None = None, free_min: int = 0) -> None:
    """Make the journal directory if it is missing and try to write in it; `free_min` bytes must be free. Raises
    JournalError that says what to do."""
    files = files or OsFiles()
    probe = directory / f".spindle-probe-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        files.make_directory(directory)
        handle = files.create(probe)
        try:
            files.write(handle, [b"probe"], 0)
        finally:
            files.close(handle)
            files.remove(probe)
        if free_min and (free := files.free_bytes(directory)) < free_min:
            raise JournalError(f"cannot keep a journal in {directory}: {lack(directory, free, free_min)}")
    except JournalError:
        raise
    except OSError as error:
        raise directory_error(directory, error, files) from error


def reason_of(error: OSError, path: Path, files: Files) -> str:
    """What the system said, and for a full disk how full."""
    text = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        try:
            text += f" ({files.free_bytes(path.parent):,} bytes free on the file system of {path.parent})"
        except OSError:
            pass  # the figure is a courtesy; the reason stands without it
    return text


def way_out(error: OSError) -> str:
    """What people can do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Make room, or move the journal directory (`dir` under [journal] in the configuration),"
    if error.errno == errno.EFBIG:
        return "Raise the file size limit (`ulimit -f`), or lower `max_file_size` under [journal],"
    return "Check the disk"


def directory_error(directory: Path, error: OSError, files: Files, keep: str = "keep a journal",
                    rest: str = CONFIGURED) -> JournalError:
    """The error for a directory in which no journal can be made, or nothing else (`keep`); `rest`: who named it, or
    what to do."""
    reason = reason_of(error, directory / "x", files)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        user = "the user of the node" if rest == CONFIGURED else "your user"
        reason += f"; give {user} (uid {os.geteuid()}) the right to write there"
    elif error.errno in (errno.ENOTDIR, errno.EEXIST):
        reason += "; something that is no directory is in the way"
    return JournalError(f"cannot {keep} in {directory}: {reason}. {rest}")
