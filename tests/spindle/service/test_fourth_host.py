"""Goal: who follows "A further host" in docs/operations.md to the letter has a group of four, also after all have lost
power; who can't be reached is named.

Method: the files of packaging/examples/3-hosts and the file that the text shows, with ports of loopback in place of the
hosts' addresses, and directories of the test in place of the system's; keys by `spindle keys`; real daemons, which are
killed all together at the end.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spindle.client import attach
from tests.spindle.daemons import Daemon
from tests.support import free_ports, wait_until

ROOT = Path(__file__).resolve().parents[3]
NAMES = ("alpha", "bravo", "charlie", "delta")


def spindle(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "spindle.cli", *map(str, words)], cwd=ROOT, capture_output=True,
                          text=True, timeout=60, check=False)


class Site:
    """Hosts of one machine: each has a directory for what the system's directories are to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(4)]
        self.daemons: dict[int, Daemon] = {}
        for words in (("authority", "site"), *(("node", "site", "--id", number) for number in (1, 2, 3))):
            self.keys(*words)

    def keys(self, *words: object) -> None:
        named = [self.directory / "site" if one == "site" else one for one in words]
        found = spindle("keys", *named)
        assert found.returncode == 0, found.stderr

    def file(self, number: int) -> Path:
        return self.directory / f"{NAMES[number - 1]}.toml"

    def configure(self, number: int, text: str) -> None:
        """The file of a host, as it is shown."""
        text = text.replace('"0.0.0.0:7402"', f'"{self.addresses[number - 1]}"')
        text = text.replace("127.0.0.1:9464", "127.0.0.1:0")
        for name, address in zip(NAMES, self.addresses, strict=True):
            text = text.replace(f"{name}.example:7402", address)
        text = text.replace("/etc/spindle/", f"{self.directory}/site/")
        text = text.replace("/var/lib/spindle", f"{self.directory}/journal-{number}")
        self.file(number).write_text(text)

    def begin(self, number: int) -> Daemon:
        """A daemon with the file, on a host of its own."""
        directory = self.directory / f"run-{number}"
        directory.mkdir(exist_ok=True)
        self.daemons[number] = Daemon(0, "--config", str(self.file(number)), runtime_dir=directory)
        return self.daemons[number]

    def status(self, number: int) -> dict[str, Any]:
        with attach(runtime_dir=self.directory / f"run-{number}") as session:
            return session.status()

    def whole(self, numbers: tuple[int, ...]) -> bool:
        """All are in one view of these, with the contacts that the text gives the fourth."""
        found = [self.status(number) for number in numbers]
        return len({one["view_id"] for one in found}) == 1 and all(
            sorted(member["node_id"] for member in one["members"]) == list(numbers)
            and one["settings"]["contacts"] == sorted(self.addresses[:len(numbers)]) for one in found)


def fourth_file() -> str:
    """What the text shows for the fourth host."""
    text = (ROOT / "docs/operations.md").read_text()
    found = re.search(r"<!-- fourth host -->\n\s*```toml\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return re.sub(r"^   ", "", found[1], flags=re.MULTILINE)


@contextlib.contextmanager
def three(directory: Path) -> Iterator[Site]:
    site = Site(directory)
    for number in (1, 2, 3):
        site.configure(number, (ROOT / f"packaging/examples/3-hosts/{NAMES[number - 1]}.toml").read_text())
    try:
        for daemon in [site.begin(number) for number in (1, 2, 3)]:
            daemon.wait_ready()
        wait_until(lambda: site.whole((1, 2, 3)))
        yield site
    finally:
        for daemon in site.daemons.values():
            daemon.stop()


@pytest.mark.slow
def test_a_fourth_host(runtime_dir: Path) -> None:
    with three(runtime_dir) as site:
        site.keys("node", "site", "--id", 4)
        site.configure(4, fourth_file())
        # It is charlie's, but for what the text names.
        third = (ROOT / "packaging/examples/3-hosts/charlie.toml").read_text()
        assert set(re.findall(r"^(\w+) = ", fourth_file(), re.MULTILINE)) - {"settings_version"} < set(
            re.findall(r"^(\w+) = ", third, re.MULTILINE))

        site.begin(4).wait_ready()
        wait_until(lambda: site.whole((1, 2, 3, 4)))
        found = spindle("status", "--group", "--runtime-dir", site.directory / "run-2")
        assert found.returncode == 0 and "all members answer, in one view" in found.stdout, found

        for number in (1, 2):  # the third is forgotten: it learns
            old = site.file(number).read_text()
            lists = re.search(r"^contacts = .*$", site.file(4).read_text(), re.MULTILINE)
            assert lists is not None
            site.file(number).write_text(re.sub(r"^contacts = .*$", lists[0], old, flags=re.MULTILINE).replace(
                "[membership]\n", "[membership]\nsettings_version = 2\n"))
        for daemon in site.daemons.values():
            daemon.process.kill()
        for daemon in site.daemons.values():
            daemon.wait()
        for daemon in [site.begin(number) for number in (3, 1, 4, 2)]:
            daemon.wait_ready()
        wait_until(lambda: site.whole((1, 2, 3, 4)))


@pytest.mark.slow
def test_who_cannot_be_reached_is_named(runtime_dir: Path) -> None:
    """The new host's firewall lets nobody in: the group says so, the newcomer too, and systemd tries again. The three
    go on as if nothing had been."""
    with three(runtime_dir) as site:
        site.keys("node", "site", "--id", 4)
        [nobody] = free_ports(1)
        site.configure(4, fourth_file().replace(
            'listen = "0.0.0.0:7402"', f'listen = "0.0.0.0:7402"\nadvertise = "127.0.0.1:{nobody}"'))
        before = site.status(1)["view_id"]
        newcomer = site.begin(4)
        assert newcomer.wait(60) not in (0, 2, 4), "systemd starts it again"
        wrong = f"at 127.0.0.1:{nobody}, where it says that others reach it"
        assert wrong in newcomer.log and "[network] listen and advertise" in newcomer.log
        assert any(wrong in site.daemons[number].log for number in (1, 2, 3))
        assert site.status(1)["view_id"] == before and site.whole((1, 2, 3))
