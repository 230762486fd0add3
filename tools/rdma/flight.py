"""The demonstration across hosts: on each guest a daemon, an alert monitor and a verifier; the publishers on two.

Usage: flight.py SECRET FABRIC [encrypted], with NODE and PEERS as guests.py sets them and this tree on PYTHONPATH. The
programs are those of `spindle demo`, unchanged. Hosts tell each other where they are through topics of the group
itself, and print what must be alike: `flight ...` with the count and the order of each topic, and what the alerts were.

With `encrypted` the daemons let the kernel encrypt what they send each other. Then hosts only talk, which is a quarter
of the work, and the kernel is asked how many connections it has under keys, and how much went over them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dds import DataReader, DataWriter, DomainParticipant, Policy, Qos, Topic
from spindle.demo.flight import AIR_DATA, ALERTS, ATTITUDE, PUBLISHER_NODE, TOPICS
from spindle.demo.processes import Child

ROOT = Path(__file__).resolve().parents[2]
NODE, PEERS = int(os.environ["NODE"]) + 1, os.environ["PEERS"].split(",")
NODES = list(range(1, len(PEERS) + 1))
PORT = 7402
PATIENCE_S = 130.0  # for anything: an emulated processor is slow, and three share two real ones
FLIGHT = ["--json", "--speed", "32", "--start", "3580", "--duration", "96"]
BEGUN = time.monotonic()
WORDS, WORD_BYTES = 500, 200
EXAMPLES = ROOT / "examples"


def say(line: str) -> None:
    print(line, flush=True)


def note_stage(line: str) -> None:
    """With the seconds since the start: what a run that was too slow has got to."""
    say(f"{time.monotonic() - BEGUN:.0f} s: {line}")


async def until(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {PATIENCE_S:g} s")
        await asyncio.sleep(0.1)
    return found


def configuration(directory: Path, secret: str, fabric: str, encrypted: bool) -> Path:
    key, path = directory / "secret", directory / "spindle.toml"
    key.write_text(secret + "\n")
    key.chmod(0o600)
    contacts = ", ".join(f'"{peer}:{PORT}"' for peer in PEERS)
    path.write_text(f"""\
[node]
id = {NODE}
runtime_dir = "{directory}/run"
[membership]
join_timeout_s = {PATIENCE_S}
suspect_timeout_s = 30.0
[network]
listen = "{PEERS[NODE - 1]}:{PORT}"
contacts = [{contacts}]
secret = "{key}"
fabric = "{fabric}"
encrypt = {str(encrypted).lower()}
[limits]
handshake_timeout_s = 60.0
open_timeout_s = 100.0
[journal]
dir = "{directory}/journal"
""")
    return path


def encrypted_by_kernel() -> tuple[int, int, int]:
    """Connections that the kernel encrypts now, records that it could not decrypt, and bytes that the other ends have
    acknowledged on such connections."""
    counts = dict(line.split() for line in Path("/proc/net/tls_stat").read_text().splitlines())
    shown = subprocess.run(["ss", "-tiHO"], capture_output=True, text=True, check=True).stdout
    carried = [int(found[1]) for line in shown.splitlines()
               if "tcp-ulp-tls" in line and (found := re.search(r"bytes_acked:(\d+)", line))]
    return min(int(counts["TlsCurrTxSw"]), int(counts["TlsCurrRxSw"])), int(counts["TlsDecryptError"]), sum(carried)


class Host:
    """This host's part. `close()` ends every process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {"SPINDLE_RUNTIME_DIR": f"{directory}/run", "SPINDLE_NODE_ID": str(NODE),
                            "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
        os.environ.update(self.environment)
        self.children: list[Child] = []
        self.kept: list[Any] = []  # nothing is closed, and so makes a view, before the end
        self.daemon: Child
        self.participant: DomainParticipant

    async def child(self, name: str, *arguments: str, on_line: Callable[[str], None] | None = None) -> Child:
        child = await Child.start(name, arguments, self.directory, environment=self.environment, on_line=on_line)
        self.children.append(child)
        return child

    async def start(self, config: Path, fabric: str) -> None:
        ready = asyncio.Event()
        self.daemon = await self.child("daemon", "-m", "spindle.cli", "daemon", "--config", str(config),
                                       on_line=lambda line: ready.set() if " ready" in line else None)
        await self.daemon.until(ready.is_set, PATIENCE_S, "its readiness")
        self.participant = DomainParticipant(node_id=NODE)
        await until(lambda: sorted(self.members()) == NODES, "all hosts in one view")
        others = [one for one in self.participant.session.status()["members"] if one["node_id"] != NODE]
        assert {one["fabric"] for one in others} == {fabric}, others
        say(f"fabric {fabric} to {len(others)} others")

    def members(self) -> tuple[int, ...]:
        return self.participant.session.view().node_ids

    def note(self, name: str) -> tuple[DataWriter[Any], DataReader[Any]]:
        """Both ends of a topic on which hosts tell each other where they are; late ones hear it, too."""
        topic = Topic(self.participant, f"hosts/{name}", bytes, qos=Qos(Policy.Durability.TransientLocal))
        ends = (DataWriter(self.participant, topic),
                DataReader(self.participant, topic, Qos(Policy.History.KeepAll, Policy.Durability.TransientLocal)))
        self.kept.append(ends)
        return ends

    async def tell_and_hear(self, name: str, word: dict[str, Any],
                            ends: tuple[DataWriter[Any], DataReader[Any]] | None = None) -> list[dict[str, Any]]:
        """Says a word to all hosts, and returns those of all, in agreed order. `ends`: of that topic, if it is open."""
        writer, reader = ends or self.note(name)
        writer.write(json.dumps({**word, "node": NODE}).encode())
        heard: list[dict[str, Any]] = []
        await until(lambda: heard.extend(json.loads(one) for one in reader.take(100)) or len(heard) >= len(NODES),
                    f"a word of all hosts on {name}")
        return heard

    async def talk(self) -> None:
        """All write, and read what all have written. Everything is opened before and closed after it, since that makes
        a view, and a view has connections of its own."""
        (writer, reader), asked = self.note("talk"), self.note("asked")
        await self.tell_and_hear("ready", {})
        heard: list[bytes] = []
        for k in range(WORDS):
            writer.write(b"%d %d " % (NODE, k) + os.urandom(WORD_BYTES))
            heard += reader.take(1000)
        await until(lambda: heard.extend(reader.take(1000)) or len(heard) >= WORDS * len(NODES), "what all said")
        say(f"flight talk={len(heard)}:{hashlib.sha256(b''.join(heard)).hexdigest()[:16]}")
        connections, errors, carried = encrypted_by_kernel()
        say(f"kernel encrypts {connections} connections, {errors} errors, {carried} bytes carried")
        assert connections == len(PEERS) - 1 and not errors and carried > WORDS * WORD_BYTES
        await self.tell_and_hear("asked", {}, asked)

    async def fly(self) -> None:
        monitor = await self.child("monitor", str(EXAMPLES / "alert_monitor.py"), "--json")
        await monitor.until_report("ready", PATIENCE_S)
        note_stage("the monitor is ready")
        await until(lambda: set(TOPICS) <= {one.spec.name for one in self.participant.session.topics()}, "the topics")
        verifier = await self.child("verifier", "-m", "spindle.demo.verifier", *TOPICS)
        await verifier.until_report("ready", PATIENCE_S)
        note_stage("the verifier is ready")
        await self.tell_and_hear("ready", {})
        note_stage("all hosts are ready")
        published: dict[str, int] = {}
        scripts = {AIR_DATA: "air_data_publisher.py", ATTITUDE: "attitude_publisher.py"}
        mine = [topic for topic in scripts if PUBLISHER_NODE[topic] == NODE]
        start = repr(time.time() + 20)  # when the slowest interpreter is up; a late one only hurries
        publishers = {topic: await self.child(topic, str(EXAMPLES / scripts[topic]), *FLIGHT, "--at", start)
                      for topic in mine}
        for topic, publisher in publishers.items():
            published[topic] = (await publisher.until_report("published", PATIENCE_S))["count"]
        said = await self.tell_and_hear("published", {"published": published})
        published = {topic: count for one in said for topic, count in one["published"].items()}
        inputs = sum(published.values())
        note_stage(f"{inputs} messages are published")
        await monitor.until(lambda: monitor.report.get("status", {}).get("heard", 0) >= inputs
                            and monitor.report["status"].get("held") == 0, PATIENCE_S, "all that was published")
        note_stage("the monitor has heard them")
        await self.tell_and_hear("heard", {})
        await monitor.end(PATIENCE_S)
        note_stage("the monitor has ended")
        final = monitor.report["final"]
        said = await self.tell_and_hear("alerts", {"wrote": final["wrote"], "digest": final["digest"]})
        # Beside alerts, empty samples to an input that has fallen silent, as one does on a busy machine.
        for wrote in (one["wrote"] for one in said):
            for topic, count in wrote.items():
                published[topic] = published.get(topic, 0) + count
        published.setdefault(ALERTS, 0)
        assert len({one["digest"] for one in said}) == 1, said
        note_stage(f"{published[ALERTS]} alerts are published")
        end = time.monotonic() + PATIENCE_S
        while True:
            report = await verifier.ask("report", "report", PATIENCE_S)
            delivered = {topic: one["count"] for topic, one in report["topics"].items()}
            if delivered == published:
                break
            if time.monotonic() > end:
                raise TimeoutError(f"not delivered within {PATIENCE_S:g} s: {delivered}, published: {published}")
            await asyncio.sleep(0.5)
        hashes = " ".join(f"{topic}={one['count']}:{one['hash'][:16]}" for topic, one in report["topics"].items())
        say(f"flight {hashes} alerts={final['digest']}")
        assert verifier.process.stdin is not None
        verifier.process.stdin.close()
        await verifier.wait(PATIENCE_S)

    async def close(self) -> None:
        for child in reversed(self.children):
            if child.process.returncode is None:
                await child.end(20.0)


async def main() -> int:
    secret, fabric, encrypted = sys.argv[1], sys.argv[2], sys.argv[3:] == ["encrypted"]
    with tempfile.TemporaryDirectory(prefix="host-") as made:
        host = Host(Path(made))
        try:
            await host.start(configuration(Path(made), secret, fabric, encrypted), fabric)
            await (host.talk() if encrypted else host.fly())
            host.participant.close()
            await host.daemon.end(60.0, signal.SIGTERM)
        except BaseException:
            say(f"the daemon's log{host.daemon.tail() if hasattr(host, 'daemon') else ' is not there'}")
            raise
        finally:
            await host.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
