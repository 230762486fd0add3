"""Goal: hosts that stand in two networks, set up as docs/operations.md says, lose nothing and nobody when one of them
fails, nor when it comes back and the other one fails.

Method: the document's commands and file in two network namespaces, whose networks are bridges in a third one; a program
at each node. Skipped, with the reason, where no namespaces can be had.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import dds
from spindle_lab.chaos.hosts import PREFIX, unavailable
from tests.spindle.daemons import Daemon
from tests.support import wait_until

REASON = unavailable() or ("" if shutil.which("sysctl") else "there is no sysctl (Debian: procps)")
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)

OPERATIONS = (Path(__file__).parents[3] / "docs/operations.md").read_text(encoding="utf-8")
SWITCHES, HOSTS, NETWORKS = 0, (1, 2), (1, 2)
LONG = dds.duration(seconds=60)
QOS = dds.Qos(dds.Policy.Reliability.Reliable(LONG), dds.Policy.History.KeepAll)


def block(name: str) -> str:
    """What stands in the document behind a comment."""
    found = re.search(rf"<!-- {name} -->\n```\w*\n(.*?)```", OPERATIONS, re.DOTALL)
    assert found is not None
    return found[1]


def for_host(number: int, text: str) -> str:
    """The document shows the first of two hosts; the other one has their addresses the other way round."""
    other = {"1": "2", "2": "1"}
    return text if number == 1 else re.sub(r"(10\.\d\.0\.)([12])", lambda found: found[1] + other[found[2]], text)


class Site:
    """Two hosts, each with a card in both networks."""

    def __init__(self) -> None:
        self._name = f"{PREFIX}{os.getpid()}-two"

    def run(self, place: int, command: str) -> None:
        subprocess.run(["ip", "netns", "exec", f"{self._name}{place}", "sh", "-ec", command], check=True)

    @contextmanager
    def made(self) -> Iterator[Site]:
        with ExitStack() as stack:
            for place in (SWITCHES, *HOSTS):
                subprocess.run(["ip", "netns", "add", f"{self._name}{place}"], check=True)
                stack.callback(subprocess.run, ["ip", "netns", "del", f"{self._name}{place}"], check=True)
            for network in NETWORKS:
                self.run(SWITCHES, f"ip link add name switch{network} type bridge; ip link set switch{network} up")
                for host in HOSTS:
                    port = f"port{network}{host}"
                    self.run(SWITCHES, f"ip link add {port} type veth peer name eth{network} netns {self._name}{host}; "
                                       f"ip link set {port} master switch{network} up")
                    self.run(host, f"ip link set lo up; ip address add 10.{network}.0.{host}/24 dev eth{network}; "
                                   f"ip link set eth{network} up")
            for host in HOSTS:
                self.run(host, for_host(host, block("two networks")))
            yield self

    def fails(self, network: int) -> None:
        """All its cards lose their carrier."""
        for host in HOSTS:
            self.run(SWITCHES, f"ip link set port{network}{host} down")

    def is_mended(self, network: int) -> None:
        for host in HOSTS:
            self.run(SWITCHES, f"ip link set port{network}{host} up")

    def daemon(self, host: int, directory: Path) -> Daemon:
        directory.mkdir()
        path = directory / "spindle.toml"
        path.write_text(for_host(host, block("file of a host in two networks")) + "plain = true\n")
        return Daemon(host, "--config", str(path), runtime_dir=directory,
                      within=("ip", "netns", "exec", f"{self._name}{host}"))


def test_one_of_two_networks_may_fail(runtime_dir: Path) -> None:
    with ExitStack() as stack:
        site = stack.enter_context(Site().made())
        directories = [runtime_dir / str(host) for host in HOSTS]
        nodes = [site.daemon(host, directory) for host, directory in zip(HOSTS, directories, strict=True)]
        for node in nodes:
            stack.callback(node.stop)
        for node in nodes:
            node.wait_ready()
        here, there = (stack.enter_context(dds.DomainParticipant(runtime_dir=one)) for one in directories)
        wait_until(lambda: len(here.session.view().node_ids) == len(HOSTS))
        view = here.session.view()
        writer = dds.DataWriter(here, dds.Topic(here, "t", bytes, qos=QOS))
        reader = dds.DataReader(there, dds.Topic(there, "t", bytes, qos=QOS))
        numbers = itertools.count()

        def talk() -> None:
            """Each message is waited for: what was lost on the way would be missed here."""
            for _ in range(100):
                number = b"%d" % next(numbers)
                writer.write(number)
                assert writer.wait_for_acks(LONG) and reader.take_one(timeout=LONG) == number

        began = view.view_id
        talk()
        for network in NETWORKS:
            site.fails(network)
            talk()
            site.is_mended(network)
            talk()
        assert here.session.view().node_ids == view.node_ids and reader.get_sample_lost_status().total_count == 0
        assert began <= here.session.view().view_id <= began + 2, "those of the topic alone"
