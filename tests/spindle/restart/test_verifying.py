"""Goal: `spindle journal verify` calls no journal whole that its node refuses, says what to do, and that helps.
Method: real daemons on one journal directory, whose standings are damaged or removed between their lives."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from spindle.errors import GroupSilent
from spindle.journal.tools import Report
from spindle.restart.repairing import repair_journals
from spindle.restart.verifying import verify_journals
from tests.spindle.cli.support import Cli
from tests.spindle.journal.test_node import TOPIC as ORDERS
from tests.spindle.journal.test_node import start
from tests.spindle.restart.test_daemons import TOPIC, Site, numbered, take, write


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    try:
        yield site
    finally:
        site.close()


def standing_of(site: Site, node_id: int) -> Path:
    return site.journal / f"{TOPIC}-{node_id}.standing"


def found(site: Site) -> Report:
    return verify_journals(site.journal)


@pytest.mark.slow
def test_alone_a_node_goes_on_with_its_messages(site: Site) -> None:
    site.start(1)
    write(site, 1, numbered(0, 20))
    site.kill(1)
    assert found(site).ok
    path = standing_of(site, 1)
    path.write_bytes(path.read_bytes()[:20])
    report = found(site)
    assert not report.ok and f"`spindle journal repair --topic TOPIC {site.journal}`" in report.problems[0]
    repair_journals(site.journal, TOPIC)
    assert found(site).ok
    site.start(1, limits__open_timeout_s="1.0")
    with pytest.raises(GroupSilent, match='restart = "any" to go on with what is here'):
        site.open(1).open_reader(TOPIC, keep_all=True, from_history=True)
    site.kill(1)
    site.start(1, journal__restart='"any"')
    assert take(site.open(1).open_reader(TOPIC, keep_all=True, from_history=True), 20) == numbered(0, 20)
    assert not list(site.journal.glob("*.forked"))


@pytest.mark.slow
def test_others_give_it_all(site: Site) -> None:
    site.start(1, 2)
    for node_id in (1, 2):
        site.open(node_id).open_reader(TOPIC, keep_all=True, from_history=True)
    write(site, 1, numbered(0, 20))
    site.kill(1, 2)
    standing_of(site, 1).write_bytes(b"")
    repair_journals(site.journal, TOPIC)
    site.start(1, 2)
    for node_id in (1, 2):
        assert take(site.open(node_id).open_reader(TOPIC, keep_all=True, from_history=True), 20) == numbered(0, 20)
    assert found(site).ok and site.disk(1) == site.disk(2)


@pytest.mark.slow
def test_one_that_is_missing(site: Site) -> None:
    site.start(1)
    write(site, 1, numbered(0, 20))
    site.kill(1)
    standing_of(site, 1).unlink()
    (problem,) = found(site).problems
    assert problem.startswith(f"{standing_of(site, 1)} is missing") and "Put back a copy" in problem
    site.start(1)
    assert take(site.open(1).open_reader(TOPIC, keep_all=True, from_history=True), 20) == numbered(0, 20)


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Copies of files alone have no standing, and need none."""
    cli, directory = Cli(capfd), tmp_path / "journal"
    session = start(tmp_path, 1)
    with session.open_writer(ORDERS) as writer:
        writer.inbox.write(b"a")
        assert writer.inbox.wait_acknowledged(20, persisted=True)
    assert cli("journal", "verify", directory).code == 0  # a node has it
    session.close()
    (journal,) = directory.glob("*.mcap")
    (standing,) = directory.glob("*.standing")
    assert cli("journal", "verify", directory).code == 0
    standing.write_bytes(standing.read_bytes()[:20])
    for path in (directory, journal):
        result = cli("journal", "verify", path)
        assert result.code == 1 and f"{standing} is damaged: the checksum does not match" in result.out
    standing.unlink()
    assert "is missing" in cli("journal", "verify", directory, "--json").out
    copies = tmp_path / "copies"
    copies.mkdir()
    shutil.copy(journal, copies)
    assert cli("journal", "verify", copies).code == 0
