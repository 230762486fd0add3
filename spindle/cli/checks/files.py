"""Checks of directories: sockets, what dead nodes left behind, journals."""

from __future__ import annotations

import os
import re
import socket
import stat
from pathlib import Path

from spindle.cli.checks.base import FAIL, OK, WARN, Check, Machine, free_bytes

SOCKET_PATH_BYTES_MAX = 107  # sun_path of unix(7) without the closing 0
JOURNAL_FREE_MIN_BYTES = 64 << 20


def check_runtime_dir(machine: Machine) -> Check:
    """Exists or can be made, belongs to us, and its sockets' paths are short enough."""
    directory = machine.domain_dir.parent
    longest = len(os.fsencode(machine.domain_dir / "node-65535.sock"))
    name = "runtime directory"
    if longest > SOCKET_PATH_BYTES_MAX:
        return Check(
            name,
            FAIL,
            f"{directory}: socket paths of {longest} bytes, limit {SOCKET_PATH_BYTES_MAX}",
            "set runtime_dir or $SPINDLE_RUNTIME_DIR to a shorter path",
        )
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Check(
            name,
            FAIL,
            f"{directory} can't be {'written' if existing == directory else 'made'}",
            f"make {existing} writable for user {os.getuid()}, or set $SPINDLE_RUNTIME_DIR",
        )
    if existing == directory:
        found = directory.stat()
        if found.st_uid not in (os.getuid(), 0):
            return Check(
                name,
                FAIL,
                f"{directory} belongs to user {found.st_uid}",
                "somebody else made it: remove it, or set $SPINDLE_RUNTIME_DIR",
            )
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            return Check(
                name,
                WARN,
                f"{directory} is writable by everybody",
                f"others can remove or replace sockets: `chmod 700 {directory}`",
            )
    free = free_bytes(existing)
    if free < 1 << 20:
        return Check(name, WARN, f"{directory}, {free >> 10} KiB free", "the file system is full: free some space")
    return Check(name, OK, f"{directory}, {'writable' if existing == directory else 'can be made'}")


def check_stale(machine: Machine) -> Check:
    """Sockets of dead nodes of any domain."""
    _, stale, foreign = sockets(machine, all_domains=True)
    if foreign:
        return Check(
            "stale files",
            WARN,
            f"{len(foreign)} left over by another user: {_some(foreign)}",
            "their owner must remove them; nodes of yours never do",
        )
    if stale:
        return Check(
            "stale files",
            WARN,
            f"{len(stale)} left over from dead nodes: {_some(stale)}",
            "the next `spindle daemon` of that domain removes them",
        )
    return Check("stale files", OK, "none")


def check_journal(machine: Machine) -> Check:
    directory = machine.config.journal_dir
    if directory is None:
        return Check("journal", OK, "no directory configured: logged topics are refused on this node")
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Check("journal", FAIL, f"{directory} can't be written", f"make it writable for user {os.getuid()}")
    free = free_bytes(existing)
    kind = _file_system(machine, existing)
    text = f"{directory}, {free / 1e9:.1f} GB free, {kind or 'unknown file system'}"
    if free < machine.config.journal_free_min:
        return Check("journal", FAIL, text, "less than [journal] free_min: logged topics are refused; free some space, "
                     "or let older files go with keep_files, keep_bytes or keep_age_s")
    if free < JOURNAL_FREE_MIN_BYTES:
        return Check("journal", FAIL, text, "a full disk stops the acknowledgements of logged topics: free some space")
    if kind in ("tmpfs", "ramfs"):
        return Check("journal", WARN, text, "this is memory: the journal doesn't survive a restart of the machine")
    if kind in ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"):
        return Check("journal", WARN, text, "fsync over the network is slow and not always honest: use a local disk")
    if free < 2 * machine.config.journal_max_file_size:
        return Check(
            "journal", WARN, text,
            f"less than two files of max_file_size ({machine.config.journal_max_file_size / 1e9:.1f} GB)",
        )  # fmt: skip
    return Check("journal", OK, text)


def check_access(machine: Machine) -> Check | None:
    """[access] names users and groups that there are. A name that nobody has lets nobody in, without a word."""
    config = machine.config
    if not (config.admits_others or config.access_rules):
        return None
    unknown = config.unknown_names()
    if unknown:
        return Check(
            "access",
            WARN,
            f"this host knows no {', no '.join(unknown)}",
            "nobody is meant by that: correct the name, or make the user or group",
        )
    return Check("access", OK, "all users and groups of [access] are known")


def sockets(machine: Machine, all_domains: bool = False) -> tuple[list[Path], list[Path], list[Path]]:
    """The nodes' sockets: (somebody listens, nobody listens, nobody listens and they are another user's)."""
    pattern = "domain-*/node-*.sock" if all_domains else f"{machine.domain_dir.name}/node-*.sock"
    alive: list[Path] = []
    stale: list[Path] = []
    foreign: list[Path] = []
    try:
        found = sorted(machine.domain_dir.parent.glob(pattern))
    except OSError:
        found = []
    for path in found:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(path))
                alive.append(path)
            except ConnectionRefusedError:
                (stale if path.lstat().st_uid == os.getuid() else foreign).append(path)
            except FileNotFoundError:
                pass  # it left between listing and asking
            except OSError:
                alive.append(path)  # not allowed or too busy to take us: there is somebody
    return alive, stale, foreign


def _file_system(machine: Machine, path: Path) -> str:
    """Type of the file system that holds `path`, from the longest mount point above it."""
    best, kind = -1, ""
    here = str(path.resolve())
    for line in (machine.read("/proc/self/mounts") or "").splitlines():
        parts = line.split()
        if len(parts) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), parts[1])
        inside = here == point or here.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, kind = len(point), parts[2]
    return kind


def _some(paths: list[Path]) -> str:
    shown = ", ".join(str(path) for path in paths[:3])
    return shown if len(paths) <= 3 else f"{shown} and {len(paths) - 3} more"
