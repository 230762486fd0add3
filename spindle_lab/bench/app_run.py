"""Runs a multicast of applications: nodes embedded in them, or a daemon for each, in a directory of its own.

Rules: the sockets are in a temporary directory that goes with the run, so that a benchmark never meets the host's real
nodes; daemons die with the parent like all other processes here; their CPU time counts as their node's.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from spindle_lab.bench.crew import BenchFailed, Crew, play, worker_environment
from spindle_lab.bench.options import PEERS, WRITER, MulticastOptions
from spindle_lab.bench.peer_ports import check_peer, clean_up

DAEMON_READY_TIMEOUT_S = 60.0


class Daemon:
    """One `spindle daemon` process."""

    def __init__(self, node_id: int, runtime_dir: Path, settings: dict[str, str]) -> None:
        from spindle_lab.bench.bare import die_with_parent

        self.node_id = node_id
        self.stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        command = [sys.executable, "-m", "spindle.cli", "daemon", "--node", str(node_id)]
        command += ["--runtime-dir", str(runtime_dir), "--log-level", "warning"]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        self.started_ns = time.monotonic_ns()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            env=worker_environment(),
            preexec_fn=die_with_parent,  # one prctl: nothing in it can meet a lock held at the fork
        )
        self.ready_s = 0.0

    def wait_ready(self) -> None:
        """Until its line on stdout says that applications can attach. Raises BenchFailed."""
        assert self.process.stdout is not None
        watchdog = _KillAfter(self.process, DAEMON_READY_TIMEOUT_S)
        try:
            line = self.process.stdout.readline()
        finally:
            watchdog.cancel()
        self.ready_s = (time.monotonic_ns() - self.started_ns) / 1e9
        if b"ready" not in line:
            self.stderr.seek(0)
            raise BenchFailed(
                f"the daemon of node {self.node_id} did not come up within {DAEMON_READY_TIMEOUT_S:g} s; "
                f"it wrote:\n{self.stderr.read().decode(errors='replace')[-4000:]}"
            )

    def cpu_s(self) -> float:
        """User and system time so far."""
        return process_cpu_s(self.process.pid)

    def resident_bytes(self) -> int:
        """Resident set, shared pages included."""
        return process_resident_bytes(self.process.pid)

    def close(self) -> None:
        """Asks it to leave, then kills it. Idempotent."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(5.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.stderr.close()


class _KillAfter:
    """Ends a process that doesn't speak: closing its stdout is what wakes the reader."""

    def __init__(self, process: subprocess.Popen[bytes], timeout_s: float) -> None:
        import threading

        self.timer = threading.Timer(timeout_s, process.kill)
        self.timer.daemon = True
        self.timer.start()

    def cancel(self) -> None:
        self.timer.cancel()


def process_cpu_s(pid: int) -> float:
    """CPU time of a process so far, all threads, to the nanosecond. Raises OSError if it has gone."""
    # clock_getcpuclockid(3), which Python doesn't have: CPUCLOCK_SCHED of that process.
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e9


def process_resident_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


class Daemons:
    """The daemons of a run, all started at once. To be used as a context manager. `apart`: as on hosts of their own,
    between which it is TCP; each has the directory that directory_of() tells."""

    def __init__(
        self, runtime_dir: Path, nodes: int, settings: dict[str, str] | None = None, *, first_id: int = 1,
        apart: bool = False
    ) -> None:
        self.members: list[Daemon] = []
        addresses = free_addresses(nodes) if apart else [""] * nodes
        try:
            for node_id, address in zip(range(first_id, first_id + nodes), addresses, strict=True):
                network = {"network.listen": address, "network.contacts": json.dumps(addresses)} if apart else {}
                directory = directory_of(runtime_dir, node_id, apart)
                directory.mkdir(exist_ok=True)
                self.members.append(Daemon(node_id, directory, {**(settings or {}), **network}))
            for daemon in self.members:
                daemon.wait_ready()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for daemon in self.members:
            if daemon.process.poll() is None:
                daemon.process.send_signal(signal.SIGTERM)
        for daemon in self.members:
            daemon.close()

    def __enter__(self) -> Daemons:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def directory_of(runtime_dir: Path, node_id: int, apart: bool) -> Path:
    """In which the sockets of a node are."""
    return runtime_dir / str(node_id) if apart else runtime_dir


def free_addresses(count: int) -> list[str]:
    """On loopback, where nobody listens."""
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in socks:
            sock.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{sock.getsockname()[1]}" for sock in socks]


def daemon_settings(options: MulticastOptions) -> dict[str, str]:
    """Keys of the configuration for --set."""
    from spindle_lab.bench.options import SWITCHES, parse_switches

    on = parse_switches(options.switches)
    settings = {f"core.{name}": "true" if name in on else "false" for name in SWITCHES}
    settings["core.skip_idle"] = "true" if options.skip_idle else "false"
    settings["core.busy_poll_us"] = str(options.busy_poll_us)
    settings["network.fabric"] = options.fabric
    settings |= {f"membership.{name}": str(value) for name, value in options.patience.items()}
    return settings


def run_apps(options: MulticastOptions) -> list[dict[str, Any]]:
    """One run; what each application reports, with its daemon's CPU time added."""
    with tempfile.TemporaryDirectory(prefix="spindle-bench-") as directory:
        runtime_dir = Path(directory)
        if options.api in PEERS:
            check_peer(options.api)
            try:
                return run_crew(options, runtime_dir)
            finally:
                clean_up(directory)
        if not options.daemon:
            return run_crew(options, runtime_dir)
        with Daemons(runtime_dir, options.nodes, daemon_settings(options)) as daemons:
            return run_crew(options, runtime_dir, daemons)


def run_crew(options: MulticastOptions, runtime_dir: Path, daemons: Daemons | None = None) -> list[dict[str, Any]]:
    config = {**options.worker_config(), "runtime_dir": str(runtime_dir)}
    configs = [{**config, "rank": rank} for rank in range(options.nodes)]
    names = [f"node {rank}" for rank in range(options.nodes)]
    if options.apart:
        configs += [{**config, "rank": rank, "part": WRITER} for rank in range(options.n_senders)]
        names += [f"publisher of node {rank}" for rank in range(options.n_senders)]
    with Crew("app", configs, names) as crew:
        used = [daemon.cpu_s() for daemon in daemons.members] if daemons else []
        played = play(crew, options.timeout_s)
        done = played[: options.nodes]
        for rank, before_s in enumerate(used):
            assert daemons is not None
            done[rank]["daemon_cpu_s"] = daemons.members[rank].cpu_s() - before_s
    for rank, publisher in enumerate(played[options.nodes :]):
        done[rank]["start_ns"] = min(done[rank]["start_ns"], publisher["start_ns"])
        done[rank]["cpu_s"] += publisher["cpu_s"]
        done[rank]["sent"] = publisher["sent"]
    return done
