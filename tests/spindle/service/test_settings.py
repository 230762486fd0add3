"""Goal: a host is added to a running group, and taken from it, as docs/operations.md says; nobody is refused for having
an older or a newer configuration while files are changed one after the other (S47), and all go by one version.

Method: real daemons, each on a host of its own, started with the files that they would have at that point.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from spindle.client.attaching import attach
from tests.spindle.daemons import Daemon
from tests.spindle.hosts import Host, hosts
from tests.support import wait_until


def status(host: Host) -> dict[str, Any]:
    with attach(runtime_dir=host.directory, node_id=host.number) as session:
        return session.status()


def version(host: Host) -> int:
    return int(status(host)["settings"]["version"])


def members(host: Host) -> list[int]:
    return sorted(one["node_id"] for one in status(host)["members"])


def agree(group: Sequence[Host], number: int, contacts: Sequence[str]) -> None:
    """All are in one view with exactly these settings."""
    for host in group:
        wait_until(lambda one=host: members(one) == sorted(one.number for one in group), what="all in one view")
        found = status(host)["settings"]
        assert (found["version"], found["contacts"]) == (number, sorted(contacts))


def start(*some: Host) -> None:
    daemons = [host.start() for host in some]
    for daemon in daemons:
        daemon.wait_ready()


def configure(host: Host, contacts: Sequence[str], number: int, **more: str) -> None:
    """Its file from now on."""
    host.contacts = list(contacts)
    host.settings = [f"membership.settings_version={number}", *(f"{key}={value}" for key, value in more.items())]


@contextlib.contextmanager
def four(directory: Path) -> Iterator[list[Host]]:
    """Three that run, with each other as contacts and version 1, and one to come."""
    with hosts(directory, 4, run=3) as made:
        yield made


@pytest.mark.slow
def test_a_host_is_added_as_the_manual_says(runtime_dir: Path) -> None:
    with four(runtime_dir) as group:
        alpha, bravo, charlie, delta = group
        before, after = [one.address for one in group[:3]], [one.address for one in group]
        agree(group[:3], 1, before)
        configure(delta, after, 2)
        start(delta)
        agree(group, 2, after)
        assert "the group's settings are version 2" in alpha.running.log
        bravo.running.terminate()  # its file is not changed yet
        start(bravo)
        agree(group, 2, after)
        assert re.search(r"other settings than this node's configuration \(version 1\).*contacts", bravo.running.log)
        for host in (alpha, bravo, charlie):
            host.running.terminate()
            configure(host, after, 2)
            start(host)
            agree(group, 2, after)
            assert "other settings" not in host.running.log
        for host in group:
            host.running.terminate()
        start(*group)
        agree(group, 2, after)


@pytest.mark.slow
def test_hosts_that_start_in_the_middle_of_a_change_of_files_form_one_group(runtime_dir: Path) -> None:
    """S47: after a power failure two hosts have the old contacts and two the new ones."""
    with four(runtime_dir) as group:
        before, after = [one.address for one in group[:3]], [one.address for one in group]
        for host in group[:3]:
            host.running.terminate()
        for host in group[1:]:
            configure(host, after, 2)
        start(*group)
        agree(group, 2, after)
        assert len({status(host)["group_id"] for host in group}) == 1
        assert before != after


@pytest.mark.slow
def test_another_timeout_counts_for_all_once_one_node_brings_it(runtime_dir: Path) -> None:
    """Its version is newer; with the same version the group's stays, and the newcomer is told."""
    with four(runtime_dir) as group:
        alpha, _, charlie = group[:3]
        contacts = [one.address for one in group[:3]]
        for number, timeout, then in ((1, 5, 2.0), (2, 0.5, 0.5)):
            charlie.running.terminate()
            configure(charlie, contacts, number, **{"membership.suspect_timeout_s": str(timeout)})
            start(charlie)
            agree(group[:3], number, contacts)
            assert status(alpha)["settings"]["suspect_timeout_s"] == then
        assert "other settings" not in charlie.running.log
        charlie.running.terminate()  # nobody's file has the new timeout then
        configure(charlie, contacts, 1)
        start(charlie)
        agree(group[:3], 2, contacts)
        stopped: Daemon = group[1].running
        stopped.process.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: "no sign of life for 0.5" in alpha.running.log + charlie.running.log, what="a suspicion")
            wait_until(lambda: members(alpha) == [1, 3], what="they go on")
        finally:
            stopped.process.kill()


@pytest.mark.slow
def test_a_node_that_cannot_read_what_others_send_is_refused(runtime_dir: Path) -> None:
    """Encryption can't be learnt."""
    with four(runtime_dir) as group:
        delta = group[3]
        configure(delta, [one.address for one in group], 2)
        delta.settings.append("network.encrypt=true")
        daemon = delta.start()
        assert daemon.wait() == 2 and "encrypt" in daemon.log
        assert members(group[0]) == [1, 2, 3]
