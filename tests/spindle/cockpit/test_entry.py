"""Goal: who may look, and what he sees, is decided by token, certificate and access rules alone; over the network only
with TLS.

Method: the door alone, with made-up requests; and a real daemon whose cockpit listens on an address of this host that
isn't loopback, with a site's certificates, for a client that shows none, an application's or a node's.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spindle.client import attach
from spindle.cockpit.entry import Entry, tls_context
from spindle.config.settings import AccessRule, NodeConfig
from spindle.errors import AccessDenied, ConfigError
from spindle.group.topics import TopicSpec
from tests.spindle.cockpit.support import page, run, url_of
from tests.spindle.daemons import Daemon
from tests.spindle.site import Site


def entry(config: NodeConfig | None = None, host: str = "127.0.0.1", tls: bool = False) -> Entry:
    return Entry(config or NodeConfig(), (host, 7480), tls)


@pytest.mark.parametrize(("host", "fine"), [
    ("127.0.0.1:7480", True), ("LOCALHOST:7480", True), ("[::1]:7480", True), ("127.0.0.1", False), ("", False),
    ("127.0.0.1:7481", False), ("evil.example:7480", False), ("127.0.0.1.evil.example:7480", False), (":7480", False),
    ("user@127.0.0.1:7480", True), ("127.0.0.1:x", False), ("[::1", False), ("10.0.0.1:7480", False)])
def test_hosts_on_loopback(host: str, fine: bool) -> None:
    if fine:
        entry().check_host(host, "127.0.0.1")
    else:
        with pytest.raises(AccessDenied, match="not called"):
            entry().check_host(host, "127.0.0.1")


def test_hosts_elsewhere() -> None:
    door = entry(NodeConfig(web_hosts=("deck.example",), advertise="alpha:7402", listen="7402"), "0.0.0.0", tls=True)
    for host in ("10.0.0.1:7480", "deck.example:7480", "alpha:7480", f"{os.uname().nodename}:7480"):
        door.check_host(host, "10.0.0.1")
    for host in ("10.0.0.2:7480", "localhost:7480", "evil.example:7480"):
        with pytest.raises(AccessDenied):
            door.check_host(host, "10.0.0.1")


@pytest.mark.parametrize(("origin", "fine"), [
    (None, True), ("http://127.0.0.1:7480", True), ("https://127.0.0.1:7480", False), ("http://127.0.0.1:7481", False),
    ("http://evil.example", False), ("null", False), ("", False), ("http://[", False)])
def test_origins(origin: str | None, fine: bool) -> None:
    if fine:
        entry().check_origin(origin, "127.0.0.1:7480")
    else:
        with pytest.raises(AccessDenied, match="may not talk"):
            entry().check_origin(origin, "127.0.0.1:7480")


def test_the_token_is_kept_over_a_restart_unless_others_could_have_read_it(tmp_path: Path) -> None:
    path = tmp_path / "cockpit-1.url"
    first = entry()
    first.keep(path)
    assert path.read_text() == first.url + "\n" and path.stat().st_mode & 0o777 == 0o600
    again = entry()
    again.keep(path)
    assert again.token == first.token
    path.chmod(0o640)
    other = entry()
    other.keep(path)
    assert other.token != first.token and path.stat().st_mode & 0o777 == 0o600
    path.write_text("http://127.0.0.1/#token=short\n")
    short = entry()
    short.keep(path)
    assert len(short.token) > 30


def test_only_the_token_and_nodes_act() -> None:
    config = NodeConfig(web_actions=True, access_rules=(AccessRule(application="display", subscribe=("seen/*",)),))
    door = entry(config)

    def certificate(uri: str) -> dict[str, object]:
        return {"subject": ((("commonName", "somebody"),),), "subjectAltName": (("URI", uri),)}

    assert door.viewer(door.token, None).acts
    door_only = entry()
    assert not door_only.viewer(door_only.token, None).acts
    assert door.viewer(None, certificate("spindle:node:1")).acts
    display = door.viewer(None, certificate("spindle:application:display"))
    assert not display.acts and not display.sees_all(config)
    assert display.may_read(config, "seen/a") and not display.may_see(config, "hidden")
    other = door.viewer(None, certificate("spindle:application:other"))
    assert not other.may_see(config, "seen/a")
    for token, shown in ((None, None), ("", None), ("x", certificate("spindle:node:1")), (7, None),
                         (None, certificate("https://example"))):
        with pytest.raises(AccessDenied):
            door.viewer(token, shown)


def test_other_hosts_need_certificates(tmp_path: Path) -> None:
    assert tls_context(NodeConfig(), "127.0.0.1") is None
    with pytest.raises(ConfigError, match="takes TLS"):
        tls_context(NodeConfig(), "0.0.0.0")
    broken = tmp_path / "broken.pem"
    broken.write_text("nothing")
    with pytest.raises(ConfigError, match="can't use it"):
        tls_context(NodeConfig(certificate=broken, certificate_key=broken, authority=broken), "10.0.0.1")


def own_address() -> str:
    """One of this host's addresses that isn't loopback; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this host has no address but loopback")
        return str(sock.getsockname()[0])


@contextmanager
def behind_tls(runtime_dir: Path, site: Site) -> Iterator[str]:
    """A daemon whose cockpit is met at another address than loopback."""
    files = site.settings(1)
    rules = "[{ application = 'display', publish = [], subscribe = ['seen/*'] }]"
    daemon = Daemon(1, "--set", f"web.listen={own_address()}:0", "--set", "web.actions=true", "--set",
                    f"access.rules={rules}", "--set", f"network.certificate={files['certificate']}", "--set",
                    f"network.key={files['certificate_key']}", "--set", f"network.authority={files['authority']}",
                    runtime_dir=runtime_dir)
    try:
        daemon.wait_ready()
        yield url_of(runtime_dir)
    finally:
        daemon.stop()


@pytest.mark.slow
def test_over_tls_everybody_sees_what_rules_allow(runtime_dir: Path, tmp_path: Path) -> None:
    site = Site(tmp_path / "site")

    def client(name: str = "") -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(site.authority_file))
        context.check_hostname = False  # a certificate is for a node, wherever that runs
        if name:
            pair = site.node(2) if name == "node" else site.application(name)
            context.load_cert_chain(*site.files(f"client-{name}", pair))
        return context

    async def look(url: str) -> None:
        assert url.startswith("https://")
        async with page(url, ssl=client()) as seen:  # with the token
            await seen.until(lambda: seen.topic("seen/a") and seen.topic("hidden"), "all topics")
        async with page(url, "", ssl=client()) as seen:
            assert (await seen.hear())["type"] == "refused"
        async with page(url, "", ssl=client("node")) as seen:
            await seen.until(lambda: seen.topic("seen/a") and seen.topic("hidden"), "all topics")
            assert seen.told["welcome"]["acts"]
        async with page(url, "", ssl=client("display")) as seen:
            await seen.until(lambda: seen.topic("seen/a"), "its topic")
            for name in ("hidden/later", "seen/later"):
                await asyncio.to_thread(session.declare_topic, TopicSpec(name))
            await seen.until(lambda: "seen/later" in str(seen.happened), "what happened to it")
            assert not seen.topic("hidden") and "hidden" not in str(seen.told) + str(seen.happened)
            await seen.say(ask="page", section="topic", topic="hidden")
            await seen.say(ask="watch", key="a", topic="hidden")
            refused = await seen.until(lambda: seen.told.get("samples"), "an answer")
            assert "no access rule" in refused["state"] and not refused["rows"]
            answer = await seen.act("delete_topic", topic="seen/a")
            assert not answer["ok"] and "detail" not in seen.told

    with behind_tls(runtime_dir, site) as url, attach(runtime_dir=runtime_dir, node_id=1) as session:
        session.declare_topic(TopicSpec("hidden"))
        session.declare_topic(TopicSpec("seen/a"))
        run(look(url))
