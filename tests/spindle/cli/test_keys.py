"""Goal: `spindle keys` makes what a site needs, so that nodes take it, and harms nothing that is there.

Method: what it prints goes into a configuration, and `Trust.of` judges it.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from spindle.config.loading import parse_config
from spindle.config.settings import NodeConfig
from spindle.errors import AccessDenied, ConfigError
from spindle.security.identity import SECRET, Identity
from spindle.security.trust import Trust
from tests.spindle.cli.support import Cli
from tests.spindle.site import Site, days_from_now


@pytest.fixture
def site(cli: Cli, tmp_path: Path) -> Path:
    assert cli("keys", "authority", tmp_path / "site").code == 0
    return tmp_path / "site"


def configured(printed: str, site: Path) -> NodeConfig:
    """The configuration that was printed, with the files where they are here."""
    return parse_config(printed[printed.index("[network]"):].replace("/etc/spindle", str(site)))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_it_prints_makes_a_node(cli: Cli, site: Path) -> None:
    assert mode(site) == 0o700 and mode(site / "authority.key") == 0o600 and mode(site / "authority.crt") == 0o644
    made = cli("keys", "node", site, "--id", 3)
    assert made.code == 0 and made.err == ""
    assert mode(site / "node-3.key") == 0o600 and mode(site / "node-3.crt") == 0o644
    identity = Trust.of(configured(made.out, site)).identity
    assert identity == Identity("node-3", "node", frozenset({3}))
    assert sorted(path.name for path in site.iterdir()) == [
        "authority.crt", "authority.key", "node-3.crt", "node-3.key"], "something was left behind"


def test_for_several_nodes_or_any_and_by_another_name(cli: Cli, site: Path) -> None:
    made = cli("keys", "node", site, "--id", 1, "--id", 2, "--name", "spare", "--days", 10)
    assert Trust.of(configured(made.out, site)).identity == Identity("spare", "node", frozenset({1, 2}))
    made = cli("keys", "node", site, "--any")
    assert Trust.of(configured(made.out, site)).identity == Identity("node", "node", None)


def test_an_application(cli: Cli, site: Path) -> None:
    made = cli("keys", "application", site, "plotter")
    assert made.code == 0 and "until" in made.out
    files = (site / "application-plotter.crt", site / "application-plotter.key", site / "authority.crt")
    assert Trust.of_certificates(*files, "application").identity == Identity("plotter", "application", frozenset())
    with pytest.raises(ConfigError, match="application's can't be a node's"):
        Trust.of_certificates(*files)
    with pytest.raises(AccessDenied):
        Identity("plotter", "application", frozenset()).check_node(1)


def test_a_secret(cli: Cli, tmp_path: Path) -> None:
    made = cli("keys", "secret", tmp_path / "etc" / "secret")
    assert made.code == 0 and mode(tmp_path / "etc" / "secret") == 0o600
    assert Trust.of(configured(made.out, tmp_path)).mode == SECRET
    assert cli("keys", "show", tmp_path / "etc" / "secret").out.endswith("a secret of 256 bits\n")
    assert cli("keys", "show", "--json", tmp_path / "etc" / "secret").json == {"secrets": [{"bits": 256}]}


def test_nothing_is_overwritten_unless_told(cli: Cli, site: Path) -> None:
    cli("keys", "node", site, "--id", 1)
    cli("keys", "application", site, "plotter")
    cli("keys", "secret", site / "secret")
    before = {path: path.read_bytes() for path in site.iterdir()}
    for command, words in (
        (["authority", site], "is there already"), (["node", site, "--id", 1], "--replace makes a new one"),
        (["application", site, "plotter"], "--replace"), (["secret", site / "secret"], "is there already"),
        (["node", site, "--id", 1, "--name", "authority", "--replace"], "choose another"),
    ):
        result = cli("keys", *command)
        assert result.code == 2 and words in result.err
    assert {path: path.read_bytes() for path in site.iterdir()} == before
    made = cli("keys", "node", site, "--id", 1, "--replace")
    assert made.code == 0 and (site / "node-1.key").read_bytes() != before[site / "node-1.key"]
    assert Trust.of(configured(made.out, site)).identity is not None


@pytest.mark.parametrize(("arguments", "words"), [
    (["node", "{site}"], "say which node"), (["node", "{site}", "--any", "--id", "1"], "say which node"),
    (["node", "{site}", "--id", "0"], "1<=x<=65535"), (["node", "{site}", "--id", "1", "--days", "0"], "1<=x<=36500"),
    (["node", "{site}/none", "--id", "1"], "spindle keys authority {site}/none"),
    (["node", "{site}", "--id", "1", "--name", "../x"], "letters, digits"),
    (["application", "{site}", "a b"], "letters, digits"), (["show", "{site}/none"], "no such file"),
    (["show", "{site}/authority.key"], "is a private key"), (["show", "/bin/sh"], "is neither a certificate nor"),
])
def test_wrong_usage_says_what_is_right(cli: Cli, site: Path, arguments: list[str], words: str) -> None:
    result = cli("keys", *(one.format(site=site) for one in arguments))
    assert result.code == 2 and words.format(site=site) in result.err


def test_an_authority_whose_key_others_may_read_signs_nothing(cli: Cli, site: Path) -> None:
    (site / "authority.key").chmod(0o644)
    result = cli("keys", "node", site, "--id", 1)
    assert result.code == 2 and "chmod 600" in result.err


def test_files_that_are_no_authority(cli: Cli, site: Path, tmp_path: Path) -> None:
    cli("keys", "authority", tmp_path / "other")
    (site / "authority.key").write_bytes((tmp_path / "other" / "authority.key").read_bytes())
    result = cli("keys", "node", site, "--id", 1)
    assert result.code == 2 and "does not belong to the certificate" in result.err
    (site / "authority.key").write_bytes(b"hello")
    assert cli("keys", "node", site, "--id", 1).code == 2


def test_nothing_outlives_its_authority(cli: Cli, tmp_path: Path) -> None:
    cli("keys", "authority", tmp_path, "--days", 5)
    made = cli("keys", "node", tmp_path, "--id", 1)
    assert made.code == 0 and "ends with the authority" in made.err and "(5 days)" in made.out
    with days_from_now(-30):
        assert cli("keys", "authority", tmp_path / "old", "--days", 5).code == 0
    result = cli("keys", "node", tmp_path / "old", "--id", 1)
    assert result.code == 2 and "has ended" in result.err


def shown(cli: Cli, path: Path) -> dict[str, Any]:
    return cli("keys", "show", "--json", path).json["certificates"][0]


def test_show(cli: Cli, site: Path, tmp_path: Path) -> None:
    cli("keys", "node", site, "--id", 4, "--id", 2)
    text = cli("keys", "show", site / "node-4.crt")
    assert text.code == 0
    assert re.search(r"^for: +node 2, 4$", text.out, re.MULTILINE)
    assert re.search(r"^days left: +729$", text.out, re.MULTILINE)
    assert re.search(r"^signed by: +Spindle$", text.out, re.MULTILINE)
    assert "authority" in shown(cli, site / "authority.crt")["for"]
    cli("keys", "application", site, "plotter")
    assert shown(cli, site / "application-plotter.crt")["for"] == "application plotter"
    both = tmp_path / "both.crt"
    both.write_bytes((site / "node-4.crt").read_bytes() + (site / "authority.crt").read_bytes())
    assert len(cli("keys", "show", "--json", both).json["certificates"]) == 2


def test_show_is_a_check(cli: Cli, tmp_path: Path) -> None:
    site = Site(tmp_path / "site")
    for days, state in ((-900, "has ended"), (2, "hasn't begun"), (0, "valid")):
        with days_from_now(days):
            certificate, _ = site.files("node", site.node(1))
        result = cli("keys", "show", "--json", certificate)
        assert result.code == int(state != "valid") and result.json["certificates"][0]["state"] == state


@pytest.mark.parametrize("whole", [0, 1])
def test_a_full_disk_costs_no_key(cli: Cli, site: Path, monkeypatch: pytest.MonkeyPatch, whole: int) -> None:
    """The pair that was to be replaced is there as before; of a new one nothing is, and a second attempt makes it."""
    assert cli("keys", "node", site, "--id", 1).code == 0
    before = {path.name: path.read_bytes() for path in site.iterdir()}

    def no_room(fd: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    other = site.with_name("other")
    for arguments, words in ((("node", site, "--id", 1, "--replace"), "node-1"), (("authority", other), "authority")):
        left = whole
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", no_room)
            made = cli("keys", *arguments)
        assert made.code == 1 and re.search(
            rf"/{words}\.(crt|key): can't be written: No space left on device\n", made.err), made
    assert {path.name: path.read_bytes() for path in site.iterdir()} == before
    assert list(other.iterdir()) == []
    assert cli("keys", "authority", other).code == 0


@pytest.mark.parametrize("lost", ["authority.crt", "authority.key"])
def test_half_an_authority_is_no_reason_for_another_directory(cli: Cli, site: Path, lost: str) -> None:
    (site / lost).unlink()
    made = cli("keys", "authority", site)
    assert made.code == 2 and "is there already, but not what belongs to it; put that beside it" in made.err


def test_who_is_no_authority_signs_nothing(cli: Cli, site: Path) -> None:
    """A node's certificate in its place: nobody would take what it signs."""
    assert cli("keys", "node", site, "--id", 1).code == 0
    for kind in ("crt", "key"):
        (site / f"node-1.{kind}").replace(site / f"authority.{kind}")
    made = cli("keys", "node", site, "--id", 2)
    assert made.code == 2 and "is no authority's certificate" in made.err and "it is for node 1" in made.err


def test_show_and_nodes_refuse_the_same_files(cli: Cli, site: Path) -> None:
    """A second authority that was appended in part, or to a line that had no end."""
    assert cli("keys", "node", site, "--id", 1).code == 0
    whole = (site / "authority.crt").read_text()
    for name, text in (("torn", whole + whole[:300]), ("glued", whole.rstrip() + whole)):
        path = site / f"{name}.crt"
        path.write_text(text)
        shown = cli("keys", "show", path)
        assert shown.code == 2 and "each certificate begin on a line of its own" in shown.err, shown
        with pytest.raises(ConfigError, match="each certificate begin on a line of its own"):
            Trust.of_certificates(site / "node-1.crt", site / "node-1.key", path)
    (site / "both.crt").write_text(whole + whole)
    assert cli("keys", "show", site / "both.crt").code == 0
