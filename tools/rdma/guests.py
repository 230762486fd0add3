"""Small virtual machines with an RDMA device each, on which a command runs.

Each guest sees this machine's files, read-only with a layer on top that is thrown away, so the tree with its built
modules and the environment are there. Guest k has the address 10.77.0.(k+1) on eth0, RoCE v2 through the device rxe0 on
top of it, and NODE=k, NODES, PEERS (addresses of all) in its environment; all guests are on one Ethernet segment.
/exchange is a directory of this machine that a guest can write into.

Processors are emulated: KVM is used only where SPINDLE_RDMA_KVM=1 says so, since where guests run in guests it may
hang. So nothing here says how fast anything is.

Rules: a guest is ended by its process; whatever ends this program ends its guests.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CONTROL = re.compile(r"\x1b(?:\[[0-9;?]*[a-zA-Z]|c)")
NOISE = re.compile(r"^(?:SeaBIOS.*|Booting from ROM\.*|\[ *[\d.]+\] reboot: Power down)")


def address(node: int) -> str:
    return f"10.77.0.{node + 1}"


@dataclass(frozen=True)
class Task:
    """A command that a guest runs, one after the other; one that isn't over in time is ended."""

    name: str
    command: str
    timeout_s: float


def job(node: int, nodes: int, directory: Path, tasks: Sequence[Task]) -> str:
    """What a guest's shell does."""
    interface = "true" if nodes > 1 else "ip link add eth0 type dummy"
    return f"""\
export PATH={shlex.quote(os.environ['PATH'])} HOME={shlex.quote(str(Path.home()))} LANG=C.UTF-8
export NODE={node} NODES={nodes} PEERS={','.join(address(k) for k in range(nodes))} PYTHONDONTWRITEBYTECODE=1
ulimit -l unlimited
hostname guest{node}
ip link set lo up
{interface}
ip addr add {address(node)}/24 dev eth0
ip link set eth0 up
rdma link add rxe0 type rxe netdev eth0 || echo "guest: no rxe0"
for attempt in 1 2 3 4 5 6 7 8 9 10; do
  grep -qs ffff: /sys/class/infiniband/rxe0/ports/1/gids/* && break
  sleep 0.2
done
cd {shlex.quote(str(directory))}
for task in {' '.join(task.name for task in tasks)}; do
  begun=$SECONDS
  bash /exchange/$task.sh
  echo $? $((SECONDS - begun)) >/exchange/$task.status
done
sync
"""


class Guest:
    """One running guest. `lines` is what it has printed so far, shown with `label` in front."""

    def __init__(self, image: tuple[Path, Path], node: int, nodes: int, port: int, exchange: Path, directory: Path,
                 tasks: Sequence[Task], memory_mib: int, label: str) -> None:
        self.node, self.nodes, self.exchange, self.label = node, nodes, exchange, label
        self.lines: list[str] = []
        self.killed = False
        exchange.mkdir(parents=True, exist_ok=True)
        for task in tasks:
            (exchange / f"{task.name}.status").unlink(missing_ok=True)
            (exchange / f"{task.name}.sh").write_text(
                f"exec timeout -k 5 {task.timeout_s:g} bash -c {shlex.quote(task.command)}\n")
        (exchange / "project").write_text(str(directory))
        (exchange / "job.sh").write_text(job(node, nodes, directory, tasks))
        network = ["-nic", "none"]
        if nodes > 1:
            network = ["-netdev", f"socket,id=segment,mcast=230.77.0.1:{port},localaddr=127.0.0.1",
                       "-device", f"virtio-net-pci,netdev=segment,romfile=,mac=52:54:00:77:00:{node:02x}"]
        emulation = ["-accel", "kvm"] if os.environ.get("SPINDLE_RDMA_KVM") == "1" else ["-accel", "tcg,thread=multi"]
        self.process = subprocess.Popen(
            ["qemu-system-x86_64", *emulation, "-cpu", "max", "-smp", "2", "-m", str(memory_mib), "-nographic",
             "-no-reboot", *network, "-kernel", str(image[0]), "-initrd", str(image[1]),
             "-append", "console=ttyS0 quiet loglevel=3 panic=1 mitigations=off tsc=nowatchdog",
             "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
             "-virtfs", f"local,path={exchange},mount_tag=exchange,security_model=none"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            # The firmware ends its last line with nothing, so the first one of a command stands behind it.
            line = NOISE.sub("", CONTROL.sub("", raw.decode(errors="replace"))).rstrip()
            if line:
                self.lines.append(line)
                print(f"  [{self.label}] {line}", flush=True)

    def ended(self, task: str) -> tuple[int, int] | None:
        """Exit status of a task (124: it was not over in time) and seconds that it took; None if it has not ended."""
        try:
            status, seconds = (self.exchange / f"{task}.status").read_text().split()
            return int(status), int(seconds)
        except (OSError, ValueError):
            return None

    def status(self, task: str) -> int | None:
        ended = self.ended(task)
        return ended[0] if ended is not None else None

    def says(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    def kill(self) -> None:
        """As if its power was cut."""
        self.killed = True
        self.process.kill()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join(5)


def run_guests(image: tuple[Path, Path], exchange: Path, directory: Path, tasks: Sequence[Sequence[Task]],
               timeout_s: float, *, memory_mib: int = 1024, label: str = "",
               kill: tuple[int, str] | None = None) -> list[Guest]:
    """Runs tasks on as many guests as there are lists of them; returns them when all have ended, or time is up.

    `kill`: (node, text): the guest whose power is cut as soon as it has printed this.
    """
    port = random.randrange(20000, 60000)
    guests: list[Guest] = []
    try:
        for node, own in enumerate(tasks):
            name = f"{label}{node}" if len(tasks) > 1 else label or "0"
            guests.append(Guest(image, node, len(tasks), port, exchange / str(node), directory, own, memory_mib, name))
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and any(guest.process.poll() is None for guest in guests):
            if kill is not None and not guests[kill[0]].killed and guests[kill[0]].says(kill[1]):
                guests[kill[0]].kill()
            time.sleep(0.05)
    finally:
        for guest in guests:
            guest.end()
    return guests
