"""Sessions with nodes on other hosts: keys, rights, limits, slow applications.

Method: daemons on hosts of their own; sessions in this process, or in one that is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spindle.client import attach
from spindle.client.nodes import nodes_wanted
from spindle.client.remote import attach_remote
from spindle.errors import AccessDenied, ConfigError, NoDaemon, NodeGone, NodeStopped, SpindleError
from tests.spindle.client.remote_site import (
    LONG_S,
    declare,
    keys_of,
    more,
    one_host,
    options,
    with_certificates,
)
from tests.spindle.site import Site
from tests.support import wait_until

# ---- keys and rights


@pytest.mark.slow
def test_certificates_and_rules_about_applications(runtime_dir: Path, tmp_path: Path) -> None:
    """Who shows a certificate of the site is let in, and may do what the rules about its name allow; no other."""
    site, other = Site(tmp_path / "site"), Site(tmp_path / "other", "other")
    rule = 'access.rules=[{application = "plotter", publish = ["out/*"], subscribe = ["in"]}]'
    with one_host(runtime_dir, *with_certificates(site), rule) as host, attach(runtime_dir=host.directory) as local:
        for name in ("out/1", "in", "private"):
            declare(local, name)
        with attach_remote([host.address], **keys_of(site)) as session:
            assert {one.spec.name for one in session.topics()} == {"out/1", "in"}
            writer = session.open_writer("out/1")
            reader = local.open_reader("out/1", keep_all=True, from_history=False)
            writer.inbox.write(b"hello")
            assert reader.log.wait(LONG_S) and reader.log.take(10) == [b"hello"]
            session.open_reader("in", keep_all=True, from_history=False)
            for denied in (lambda: session.open_writer("in"),
                           lambda: session.open_reader("out/1", keep_all=False, from_history=False)):
                with pytest.raises(AccessDenied, match="application 'plotter'"):
                    denied()
        with attach_remote([host.address], **keys_of(site, "stranger")) as session:
            assert session.topics() == []
        with pytest.raises(SpindleError, match="signed"):
            attach_remote([host.address], **keys_of(other))
        with pytest.raises(SpindleError, match="certificate"):
            attach_remote([host.address])
    with pytest.raises(ConfigError, match="it is for a node, and this is an application"):
        found = site.settings()
        attach_remote(["127.0.0.1:1"], certificate=found["certificate"], key=found["certificate_key"],
                      authority=found["authority"])


@pytest.mark.slow
def test_a_secret_will_do(runtime_dir: Path, tmp_path: Path) -> None:
    files = []
    for name in ("ours", "theirs"):
        path = tmp_path / name
        path.write_text(os.urandom(32).hex())
        path.chmod(0o600)
        files.append(path)
    with one_host(runtime_dir, *options(network__secret=str(files[0]))) as host:
        with attach_remote([host.address], secret=files[0]) as session:
            declare(session)
            with session.open_writer("t") as writer:
                writer.inbox.write(b"x")
                assert writer.inbox.wait_acknowledged(LONG_S)
        with pytest.raises(SpindleError, match="secret"):
            attach_remote([host.address], secret=files[1])


def test_where_nodes_are_comes_from_arguments_environment_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                                   ) -> None:
    for name in ("NODES", "CERTIFICATE", "KEY", "AUTHORITY", "SECRET", "PLAIN", "CLIENT_CONFIG"):
        monkeypatch.delenv(f"SPINDLE_{name}", raising=False)
    assert nodes_wanted() is None
    file = tmp_path / "client.toml"
    file.write_text('nodes = ["a", "b:7"]\nsecret = "s"\n')
    monkeypatch.setenv("SPINDLE_CLIENT_CONFIG", str(file))
    found = nodes_wanted()
    assert found is not None and found.addresses == ("a:7402", "b:7") and found.secret == Path("s")
    monkeypatch.setenv("SPINDLE_NODES", "c, [::1], ::2,[::3]:9")
    monkeypatch.setenv("SPINDLE_PLAIN", "1")
    found = nodes_wanted()
    assert found is not None and found.addresses == ("c:7402", "[::1]:7402", "[::2]:7402", "[::3]:9") and found.plain
    found = nodes_wanted(["d:1"], certificate="x", key="y", authority="z")
    assert found is not None and found.addresses == ("d:1",) and found.secret is None
    for wrong in (["host:x"], ["host:70000"]):
        with pytest.raises(ConfigError, match="must be host:port"):
            nodes_wanted(wrong)
    file.write_text('node = "a"\n')
    with pytest.raises(ConfigError, match="unknown: node"):
        nodes_wanted()
    for wrong_line in ("nodes = 5", "nodes = [5]", "secret = 5", 'plain = "yes"'):
        file.write_text(wrong_line)
        with pytest.raises(ConfigError, match=r"client\.toml: .*must be"):
            nodes_wanted(["a"])


@pytest.mark.slow
def test_nobody_there(runtime_dir: Path) -> None:
    with pytest.raises(NoDaemon, match="cannot be reached"):
        attach_remote(["127.0.0.1:1"])
    with one_host(runtime_dir) as host, pytest.raises(SpindleError, match="domain 0"):
        attach_remote([host.address], 5)


# ---- limits


@pytest.mark.slow
def test_a_hundred_clients(runtime_dir: Path) -> None:
    """One message of each reaches each, in one order."""
    with one_host(runtime_dir, *options(limits__max_apps=101)) as host, contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(attach_remote([host.address], name=f"client {k}")) for k in range(100)]
        declare(sessions[0])
        readers = [one.open_reader("t", keep_all=True, from_history=False) for one in sessions]
        for k, session in enumerate(sessions):
            session.open_writer("t").inbox.write(b"%d" % k)
        got: list[list[bytes]] = [[] for _ in readers]

        def all_there() -> bool:
            for samples, reader in zip(got, readers, strict=True):
                samples.extend(reader.log.take(200))
            return all(len(samples) == 100 for samples in got)

        wait_until(all_there, LONG_S)
        assert all(samples == got[0] for samples in got) and sorted(map(int, got[0])) == list(range(100))
        stack.enter_context(attach_remote([host.address]))
        with pytest.raises(SpindleError, match="max_apps"):
            attach_remote([host.address])


@pytest.mark.slow
def test_a_slow_reader_that_keeps_the_newest_loses_and_counts(runtime_dir: Path) -> None:
    """Goal: it costs nobody anything. Method: a reader that doesn't take while much more is written than its log, the
    network and the node's log hold."""
    with (one_host(runtime_dir, *options(topics__log_capacity="256KiB")) as host,
          attach(runtime_dir=host.directory) as local, attach_remote([host.address]) as far):
        declare(local)
        slow = far.open_reader("t", keep_all=False, from_history=False)
        writer = local.open_writer("t")
        total = 20_000
        for n in range(total):
            writer.inbox.write(b"%06d" % n + bytes(900), 0, LONG_S)
        assert writer.inbox.wait_acknowledged(LONG_S)
        got: list[bytes] = []
        wait_until(lambda: more(got, slow) and int(got[-1][:6]) == total - 1, LONG_S)
        assert got == sorted(set(got)) and len(got) + slow.log.lost == total


@pytest.mark.slow
def test_a_reader_that_keeps_all_holds_writers_back_and_gets_all(runtime_dir: Path) -> None:
    with (one_host(runtime_dir, *options(topics__log_capacity="256KiB")) as host,
          attach(runtime_dir=host.directory) as local, attach_remote([host.address]) as far):
        declare(local)
        slow = far.open_reader("t", keep_all=True, from_history=False)
        writer = local.open_writer("t", slots=16)
        total = 0
        with contextlib.suppress(TimeoutError):
            while total < 100_000:
                writer.inbox.write(b"%d" % total + bytes(900), 0, 0.5)
                total += 1
        assert 1000 < total < 10_000  # bounded: its log, and those of the node
        got: list[bytes] = []
        wait_until(lambda: len(more(got, slow, 100)) == total, LONG_S)
        assert [int(one[:-900]) for one in got] == list(range(total)) and slow.log.lost == 0
        writer.inbox.write(b"free", 0, LONG_S)
        assert slow.log.wait(LONG_S) and slow.log.take(1) == [b"free"]


@pytest.mark.slow
def test_large_messages(runtime_dir: Path) -> None:
    with one_host(runtime_dir) as host, attach_remote([host.address]) as far:
        declare(far, size_max=8 << 20)
        reader = far.open_reader("t", keep_all=True, from_history=False)
        writer = far.open_writer("t")
        sent = [bytes([k]) * ((8 << 20) - k) for k in range(5)]
        for one in sent:
            writer.inbox.write(one, 0, LONG_S)
        got: list[bytes] = []
        wait_until(lambda: len(more(got, reader, 1)) == 5, LONG_S)
        assert got == sent


# ---- those who die


CHILD = """
import sys, time
from spindle.client.remote import attach_remote
session = attach_remote([sys.argv[1]])
reader = session.open_reader("t", keep_all=True, from_history=False)
writer = session.open_writer("t")
n = 0
while True:
    writer.inbox.write(b"%d" % n, 0, 60)
    n += 1
    if n == 100:
        print("running", flush=True)
"""


@pytest.mark.slow
def test_a_client_that_dies_costs_nothing(runtime_dir: Path) -> None:
    """What had come is delivered, a prefix of what it wrote; its reader holds nobody back."""
    with one_host(runtime_dir) as host, attach(runtime_dir=host.directory) as local:
        declare(local)
        reader = local.open_reader("t", keep_all=True, from_history=False)
        child = subprocess.Popen([sys.executable, "-c", CHILD, host.address], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline()
        got: list[bytes] = []
        wait_until(lambda: len(more(got, reader)) > 100, LONG_S)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        wait_until(lambda: more(got, reader) and len(local.status()["applications"]) == 1, LONG_S)
        writer = local.open_writer("t")
        for _ in range(20_000):
            writer.inbox.write(b"last", 0, LONG_S)
            if reader.log.pending > 1000:
                more(got, reader)
        wait_until(lambda: more(got, reader)[-1] == b"last", LONG_S)
        numbers = got[: got.index(b"last")]
        assert numbers == [b"%d" % n for n in range(len(numbers))]


@pytest.mark.slow
def test_the_last_node_says_why(runtime_dir: Path) -> None:
    with one_host(runtime_dir) as host:
        session = attach_remote([host.address])
        declare(session)
        reader = session.open_reader("t", keep_all=True, from_history=False)
        writer = session.open_writer("t")
        assert host.running.terminate() == 0
        with pytest.raises(NodeGone):
            reader.log.wait(LONG_S)
        with pytest.raises(NodeGone):
            writer.inbox.write(b"x")
        with pytest.raises(NodeStopped, match="no other node serves"):
            session.view()
        assert session.gone and isinstance(session.end_error, NodeStopped)
        session.close()
