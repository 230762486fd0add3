"""What goes wrong in a run. Each fault is drawn when its time has come, from what can go wrong then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spindle.group.levels import Level
from spindle_lab.whole.embedding import Embedding
from spindle_lab.whole.programs import Program
from spindle_lab.whole.remotes import OUTSIDE, RemoteProgram
from spindle_lab.whole.shortage import Shortage

if TYPE_CHECKING:
    from spindle_lab.whole.disk import Disk
    from spindle_lab.whole.slots import NodeSlot
    from spindle_lab.whole.system import Process
    from spindle_lab.whole.world import World

MS = 1_000_000


class Faults:
    """The faults of one run; `end()` mends what can be mended."""

    def __init__(self, world: World) -> None:
        self.world, self.system = world, world.system
        self._paused: list[NodeSlot] = []
        self._halted: list[Process] = []

    def happen(self) -> None:
        """One of them."""
        if self.world.finishing:
            return
        rng = self.system.random
        kinds = [self.kill_node, self.kill_node, self.leave, self.pause, self.kill_program, self.new_program,
                 self.run_short, self.run_short]
        if self.world.setup.hosts > 1:
            kinds += [self.cut, self.cut, self.close_to_new]
        if self.world.setup.resets:
            kinds += [self.reset_between] * 6
        if any(spec.level is Level.LOGGED for spec in self.world.all_specs):
            kinds += [self.lose_power, self.lose_power, self.disk_full, self.disk_fails, self.disk_slow]
        if any(isinstance(one, RemoteProgram) for one in self.world.programs):
            kinds += [self.kill_relay] * 4 + [self.reset] * 4 + [self.cut_off, self.cut_off, self.halt_remote]
        if self.world.edge is not None:
            kinds += [self.world.edge.kill] * 2
        if self.world.objects is not None:
            kinds += [self.new_replica] * 4 + [self.kill_donor] * 2 + [self.kill_all_nodes]
        kind = rng.choice(kinds)
        self.world.faults[kind.__name__] = self.world.faults.get(kind.__name__, 0) + 1
        kind()

    def _a_node(self) -> NodeSlot | None:
        running = [slot for slot in self.world.nodes if slot.running]
        return self.system.random.choice(running) if running else None

    def kill_node(self) -> None:
        """kill -9, and perhaps a new life soon."""
        slot = self._a_node()
        if slot is not None:
            self._kill(slot)

    def _kill(self, slot: NodeSlot) -> None:
        assert slot.process is not None
        self.world.faulty = True
        self.world.note(f"kill -9 of {slot.process}")
        self.system.kill(slot.process)
        for program in self.world.programs:
            if program.process is slot.process:
                program.died()
        if self.system.random.random() < 0.5:
            self.system.after(self.system.random.randrange(100 * MS), lambda: self._again(slot))

    def _again(self, slot: NodeSlot) -> None:
        if not slot.running and not self.world.finishing:
            self.world.note(f"node {slot.node_id} starts again")
            slot.start()

    def leave(self) -> None:
        """SIGTERM."""
        slot = self._a_node()
        if slot is not None and slot.serving:
            self.world.faulty = True
            self.world.note(f"{slot.process} is told to leave")
            slot.leave()
            self.system.after(self.system.random.randrange(200 * MS), lambda: self._again(slot))

    def pause(self) -> None:
        """SIGSTOP, for less or for more than the suspicion time."""
        slot = self._a_node()
        if slot is None or slot.process is None or slot.process.stopped:
            return
        self.world.faulty = True
        timeout_ns = int(self.world.setup.suspect_timeout_s * 1e9)
        length_ns = self.system.random.choice((timeout_ns // 10, timeout_ns // 2, 2 * timeout_ns))
        self.world.silent = True
        self.world.note(f"{slot.process} is stopped for {length_ns / MS:g} ms")
        process = slot.process
        process.stopped = True
        self._paused.append(slot)

        def go_on() -> None:
            process.stopped = False

        self.system.after(length_ns, go_on)

    def kill_program(self) -> None:
        """An application dies with whatever it has open."""
        alive = [one for one in self.world.programs if one.process.alive and one.process.result is None]
        if alive:
            one = self.system.random.choice(alive)
            if isinstance(one, Embedding):
                self._kill(one.slot)
                return
            self.world.note(f"kill -9 of {one.process}")
            self.system.kill(one.process)
            one.died()

    def run_short(self) -> None:
        """A node or an application can open no more descriptors, or make no more shared memory, for a while."""
        rng, world = self.system.random, self.world
        among = [slot.process for slot in world.nodes if slot.running]
        among += [one.process for one in world.programs if one.process.alive and one.process.result is None]
        process = rng.choice(among) if among else None
        if process is None or process.short is not None:
            return
        few = rng.choice((0, 1, 2, 5, 15, 40))
        descriptors, mappings = rng.choice(((few, None), (few, None), (None, few)))
        world.note(f"{process} can have {few} more {'mappings' if descriptors is None else 'descriptors'}")
        process.short = Shortage(self.system, descriptors, mappings)
        world.short.add(process)
        if world.setup.hosts > 1:  # a node that fails of it may cost the others their majority
            world.faulty = True
        self.system.after(rng.randrange(100 * MS), lambda: setattr(process, "short", None))

    # --- of programs on a host without a node

    def _a_remote(self) -> RemoteProgram | None:
        found = [one for one in self.world.programs if isinstance(one, RemoteProgram) and one.process.alive
                 and one.process.result is None]
        return self.system.random.choice(found) if found else None

    def kill_relay(self) -> None:
        """kill -9 of the node that such a program is at."""
        one = self._a_remote()
        session = one.session if one is not None else None
        for slot in self.world.nodes:
            if session is not None and slot.node_id == session.node_id and slot.running:
                self._kill(slot)

    def cut_off(self) -> None:
        """The line between the host without a node and one with nodes breaks, in one direction or both."""
        host = self.system.random.choice(self.world.nodes).host
        ways = self.system.random.choice(({(OUTSIDE, host)}, {(host, OUTSIDE)}, {(OUTSIDE, host), (host, OUTSIDE)}))
        self._cut(ways, self.system.random.choice((300, 3000, 12_000)))

    def reset(self) -> None:
        """Somebody on the way ends the connections between two hosts; both live, and may connect anew."""
        host = self.system.random.choice(self.world.nodes).host
        self.world.note(f"{self.world.lines.reset(host, OUTSIDE)} ways between {host} and {OUTSIDE} are reset")

    def halt_remote(self) -> None:
        """SIGSTOP of such a program: its node holds what it doesn't read, and writers wait for it."""
        one = self._a_remote()
        if one is None or one.process.stopped:
            return
        process, length_ns = one.process, self.system.random.choice((50, 1000, 6000)) * MS
        self.world.silent = True
        self.world.note(f"{process} is stopped for {length_ns / MS:g} ms")
        process.stopped = True
        self._halted.append(process)
        self.system.after(length_ns, lambda: setattr(process, "stopped", False))

    def new_program(self) -> None:
        """One more application."""
        rng = self.system.random
        host = rng.choice(self.world.nodes).host
        self.world.programs.append(Program(self.world, len(self.world.programs) + 100, host))

    # --- of a replicated object

    def new_replica(self) -> None:
        """One more replica, which comes late."""
        host = self.system.random.choice(self.world.nodes).host
        self.world.begin_replica(len(self.world.programs) + 100, host)

    def kill_donor(self) -> None:
        """Who gives the next snapshot dies in its middle."""
        assert self.world.objects is not None
        self.world.objects.donor_dies_at = self.system.random.choice((0, 1, 3, 9))

    def kill_all_nodes(self) -> None:
        """kill -9 of all there are: what is on disk is left."""
        for slot in self.world.nodes:
            if slot.running:
                self._kill(slot)

    def _two_hosts(self) -> tuple[str, str]:
        rng, hosts = self.system.random, sorted({slot.host for slot in self.world.nodes})
        one = rng.choice(hosts)
        return one, rng.choice([host for host in hosts if host != one])

    def cut(self) -> None:
        """A line between two hosts breaks, in one direction or both."""
        one, other = self._two_hosts()
        ways = {(one, other)} | ({(other, one)} if self.system.random.random() < 0.7 else set())
        self._cut(ways, 3000)

    def _cut(self, ways: set[tuple[str, str]], most_ms: int) -> None:
        self.world.faulty = True
        self.world.silent = True
        self.world.note(f"the lines {sorted(ways)} are cut")
        self.world.lines.cut |= ways
        self.system.after(self.system.random.randrange(most_ms * MS),
                          lambda: self.world.lines.cut.difference_update(ways))

    def reset_between(self) -> None:
        """Somebody on the way ends connections between two hosts with nodes, one of them or all, in the middle of
        whatever they carry: a member takes the end of a connection to another for final, though both live."""
        one, other = self._two_hosts()
        most = self.system.random.choice((1, 1, 2, None))
        self.world.faulty = True
        self.world.silent = True
        self.world.note(f"{self.world.lines.reset(one, other, most)} ways between {one} and {other} are reset")

    def close_to_new(self) -> None:
        """A firewall that lets old connections live and drops new ones."""
        one, other = self._two_hosts()
        self.world.faulty = True
        self.world.silent = True
        self.world.note(f"new connections from {one} to {other} are dropped")
        ways = {(one, other), (other, one)}
        self.world.lines.closed_to_new |= ways
        self.system.after(self.system.random.randrange(4000 * MS),
                          lambda: self.world.lines.closed_to_new.difference_update(ways))

    def _a_disk(self) -> tuple[str, Disk]:
        host = self.system.random.choice(sorted(self.world.disks))
        return host, self.world.disks[host]

    def lose_power(self) -> None:
        """A machine is without power for a while: its processes, and what its disk had not synced, are gone."""
        host, disk = self._a_disk()
        self.world.faulty = True
        self.world.silent = True
        self.world.note(f"{host} loses its power")
        self.world.lines.lose_power(host)
        for process in self.system.processes:
            if process.host == host:
                self.system.kill(process)
        for program in self.world.programs:
            if program.host == host:
                program.died()
        disk.lose_power()
        self.system.after(self.system.random.randrange(10 * MS, 2000 * MS), lambda: self._power_is_back(host))

    def _power_is_back(self, host: str) -> None:
        self.world.lines.powerless.discard(host)
        for slot in self.world.nodes:
            if slot.host == host and host not in self.world.lines.powerless:
                self._again(slot)

    def disk_full(self) -> None:
        """No room for a while."""
        host, disk = self._a_disk()
        self.world.faulty = self.world.disks_failed = disk.full = True
        self.world.note(f"the disk of {host} is full")
        self.system.after(self.system.random.randrange(100 * MS), lambda: setattr(disk, "full", False))

    def disk_fails(self) -> None:
        """Every write and sync fails for a while."""
        host, disk = self._a_disk()
        self.world.faulty = self.world.disks_failed = disk.failing = True
        self.world.note(f"the disk of {host} fails")
        self.system.after(self.system.random.randrange(30 * MS), lambda: setattr(disk, "failing", False))

    def disk_slow(self) -> None:
        """Syncs take their time."""
        host, disk = self._a_disk()
        self.world.note(f"the disk of {host} is slow")
        disk.sync_ns = (0, 60 * MS)
        self.system.after(self.system.random.randrange(500 * MS), lambda: setattr(disk, "sync_ns", (0, 300_000)))

    def end(self) -> None:
        """No more faults: lines and disks are whole, who was stopped goes on."""
        for process in self.world.short:
            process.short = None
        for disk in self.world.disks.values():
            disk.full = disk.failing = False
            disk.sync_ns = (0, 300_000)
        self.world.lines.powerless.clear()
        self.world.lines.cut.clear()
        self.world.lines.closed_to_new.clear()
        for slot in self._paused:
            if slot.process is not None:
                slot.process.stopped = False
        for process in self._halted:
            process.stopped = False
