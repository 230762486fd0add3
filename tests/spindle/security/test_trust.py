"""Goal: a node starts only with keys that do, and knows from a certificate who may use it.

Method: the files of a site, each wrong in one way; every refusal names the setting, the file and what to do.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from spindle.config.settings import NodeConfig
from spindle.errors import AccessDenied, ConfigError
from spindle.security import authority
from spindle.security.identity import APPLICATION, CERTIFICATES, PLAIN, SECRET, Identity
from spindle.security.tls import Handshake
from spindle.security.trust import ENDS_SOON_S, Trust, is_loopback
from tests.spindle.site import Site, days_from_now


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


def trust_of(node_id: int = 0, **network: Any) -> Trust:
    return Trust.of(NodeConfig(node_id=node_id, **network))


# --- what does


def test_certificates(site: Site) -> None:
    trust = trust_of(3, **site.settings(3))
    assert trust.mode == CERTIFICATES and trust.identity == Identity("node-3", "node", frozenset({3}))
    assert trust.not_after is not None and 729 < (trust.not_after - time.time()) / 86400 < 731
    assert str(trust.identity) == "certificate 'node-3'"


def test_a_certificate_may_be_for_any_node_or_for_several(site: Site) -> None:
    assert trust_of(9, **site.settings()).identity == Identity("any", "node", None)
    several = trust_of(2, **site.settings(1, 2)).identity
    assert several is not None and several.node_ids == {1, 2}


def test_a_secret_makes_the_same_authority_on_all_nodes_and_it_has_no_end(site: Site) -> None:
    file = site.secret_file()
    with days_from_now(-4000):
        one = trust_of(secret=file)
    with days_from_now(4000):
        other = trust_of(secret=file)
    assert one.mode == SECRET and one.not_after is None and not one.ends_soon()
    client, server = Handshake(one, False, "server"), Handshake(other, True, "client")
    client.feed(b"")
    while client.identity is None or server.identity is None:
        server.feed(client.output())
        client.feed(server.output())
    assert client.identity == server.identity == one.identity == Identity("", "node", None)
    assert str(one.identity) == "shared secret"


def shaken(one: Trust, other: Trust) -> bool:
    client, server = Handshake(one, False, "server"), Handshake(other, True, "client")
    try:
        client.feed(b"")
        while client.identity is None or server.identity is None:
            server.feed(client.output())
            client.feed(server.output())
    except AccessDenied:
        return False
    return True


def test_one_secret_replaces_another_while_nodes_run(site: Site) -> None:
    """Three rounds of restarts: all take the new one, too; all show the new one; all forget the old one."""
    old, new = os.urandom(32).hex(), os.urandom(32).hex()
    rounds = [trust_of(secret=site.write(f"round-{number}", text.encode()))
              for number, text in enumerate([old, f"{old}\n{new}\n", f"{new}\n{old}\n", new])]
    for before, after in itertools.pairwise(rounds):
        assert shaken(before, after) and shaken(after, before) and shaken(after, after)
    assert not shaken(rounds[0], rounds[2]) and not shaken(rounds[3], rounds[0])


def test_the_authority_file_may_hold_several_while_one_replaces_the_other(site: Site, tmp_path: Path) -> None:
    newer = Site(tmp_path / "newer")
    both = site.write("both.crt", site.authority_file.read_bytes() + newer.authority_file.read_bytes())
    for one in (site, newer):
        assert trust_of(**{**one.settings(1), "authority": both}).identity is not None


def test_an_applications_certificate(site: Site) -> None:
    trust = site.trust(site.application("plotter"), "application")
    assert trust.identity == Identity("plotter", "application", frozenset())


def test_root_may_keep_keys_for_the_services_group(site: Site) -> None:
    settings = site.settings(1)
    settings["certificate_key"].chmod(0o640)
    if os.geteuid() == 0:
        assert trust_of(**settings).identity is not None
    else:
        with pytest.raises(ConfigError, match="chmod 600"):
            trust_of(**settings)


# --- what doesn't


def wrong_cases(site: Site) -> dict[str, tuple[dict[str, Any], str]]:
    good = site.settings(1)
    other = Site(site.directory / "other")
    with days_from_now(-900):
        expired = site.files("expired", site.node(1))
    with days_from_now(3):
        early = site.files("early", site.node(1))
    application = site.files("app", site.application())
    server_only = site.files("server", authority._leaf(site.authority, "s", ["spindle:node:1"], 10,
                                                       [authority.ExtendedKeyUsageOID.SERVER_AUTH]))
    nobody = site.files("nobody", authority._leaf(
        site.authority, "web", ["https://example.org"], 10,
        [authority.ExtendedKeyUsageOID.SERVER_AUTH, authority.ExtendedKeyUsageOID.CLIENT_AUTH]))
    locked = site.node(1).key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                            serialization.BestAvailableEncryption(b"password"))
    hexadecimal = os.urandom(16).hex().encode() + b"\n"
    open_key = site.write("open.key", good["certificate_key"].read_bytes(), 0o644)
    return {
        "missing certificate": (good | {"certificate": site.directory / "no.crt"}, "certificate = .*no such file"),
        "missing key": (good | {"certificate_key": site.directory / "no.key"}, "key = .*no such file.*spindle keys"),
        "missing authority": (good | {"authority": site.directory / "no.crt"}, "authority = .*no such file"),
        "directory": (good | {"authority": site.directory}, "authority = .*(is not a file|directory)"),
        "device": (good | {"authority": Path("/dev/zero")}, "authority = .*is not a file"),
        "empty": (good | {"authority": site.write("empty", b"")}, "authority = .*must be PEM"),
        "nonsense": (good | {"certificate": site.write("x", b"hello")}, "certificate = .*must be PEM"),
        "key of another": (good | {"certificate_key": other.settings(1)["certificate_key"]},
                           "key = .*does not belong to the certificate"),
        "key with a password": (good | {"certificate_key": site.write("locked.key", locked)}, "needs a password"),
        "key for all to read": (good | {"certificate_key": open_key}, r"mode 0644\); chmod 600"),
        "expired": (good | {"certificate": expired[0], "certificate_key": expired[1]}, "has expired; make a new one"),
        "early": (good | {"certificate": early[0], "certificate_key": early[1]}, "not valid yet; compare the clocks"),
        "other authority": (good | {"authority": other.authority_file}, "not signed by any authority"),
        "application": (good | {"certificate": application[0], "certificate_key": application[1]},
                        "application's can't be a node's"),
        "half a purpose": (good | {"certificate": server_only[0], "certificate_key": server_only[1]},
                           "for both clientAuth and serverAuth"),
        "nobody": (good | {"certificate": nobody[0], "certificate_key": nobody[1]}, "doesn't say for whom it is"),
        "another node's": (good | {"node_id": 2}, "is for node 1, not for node 2.*spindle keys node --id 2"),
        "many secrets": ({"secret": site.write("many", hexadecimal * 5)}, "has 5 lines, at most 4"),
        "a second line that is short": ({"secret": site.write("two", hexadecimal + b"abcd\n")}, "has 16 bits"),
        "missing secret": ({"secret": site.directory / "no"}, "secret = .*no such file"),
        "short secret": ({"secret": site.secret_file("short", os.urandom(15))}, "has 120 bits, but must have 128"),
        "password": ({"secret": site.write("pw", b"correct horse battery staple, and more\n")}, "hexadecimal digits"),
        "zeros": ({"secret": site.secret_file("zeros", bytes(32))}, "only 1 different bytes.*256 bits"),
        "empty secret": ({"secret": site.write("nothing", b"\n")}, "hexadecimal digits"),
        "secret for all to read": ({"secret": site.write("open", os.urandom(32).hex().encode(), 0o604)}, "chmod 600"),
    }


def test_what_is_wrong_is_told_with_the_setting_the_file_and_what_to_do(site: Site) -> None:
    for name, (settings, words) in wrong_cases(site).items():
        with pytest.raises(ConfigError, match=rf"(?s)\[network\] {words}|\[network\] .*{words}") as caught:
            trust_of(**settings)
        assert '= "' in str(caught.value), name


def test_a_key_of_another_user_is_refused(site: Site) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    settings = site.settings(1)
    os.chown(settings["certificate_key"], 54321, 54321)
    with pytest.raises(ConfigError, match="belongs to user 54321, but must belong to user 0"):
        trust_of(**settings)


# --- who is who


def certificate(*uris: str, name: str = "n") -> dict[str, Any]:
    return {"subject": ((("commonName", name),),), "subjectAltName": tuple(("URI", uri) for uri in uris)}


@pytest.mark.parametrize(("uris", "identity"), [
    (["spindle:node:3"], Identity("n", "node", frozenset({3}))),
    (["https://example.org", "spindle:node:3", "spindle:node:65535"], Identity("n", "node", frozenset({3, 65535}))),
    (["spindle:node:any", "spindle:node:3"], Identity("n", "node", None)),
    (["spindle:application:plot-1"], Identity("plot-1", "application", frozenset())),
])
def test_what_a_certificate_says(uris: list[str], identity: Identity) -> None:
    assert Identity.of(certificate(*uris, name=identity.name)) == identity


@pytest.mark.parametrize("uris", [
    [], ["https://example.org"], ["spindle:node:0"], ["spindle:node:65536"], ["spindle:node:-1"], ["spindle:node:٣"],
    ["spindle:node:3 "], ["spindle:node:3", "spindle:application:x"], ["spindle:node:3", "spindle:other"],
    ["spindle:application:"], ["spindle:application:a/b"], ["SPINDLE:node:3"],
])
def test_nonsense_is_refused(uris: list[str]) -> None:
    with pytest.raises(AccessDenied, match="for whom it is"):
        Identity.of(certificate(*uris))


def test_names_are_harmless_in_a_log() -> None:
    assert Identity.of(certificate("spindle:node:1", name="a\n\x1b[31mb")).name == "a[31mb"
    assert Identity.of({"subjectAltName": (("URI", "spindle:node:1"),)}).name == "without a name"


def test_which_nodes_may_use_a_certificate() -> None:
    Identity("n", "node", frozenset({1, 2})).check_node(2)
    Identity("n", "node", None).check_node(77)
    with pytest.raises(AccessDenied, match=r"certificate 'n' is for node 1, 2, not for node 3"):
        Identity("n", "node", frozenset({1, 2})).check_node(3)
    with pytest.raises(AccessDenied, match="application's, so it can't be node 1"):
        Identity("n", "application", frozenset()).check_node(1)


# --- without keys


@pytest.mark.parametrize(("address", "loopback"), [
    ("127.0.0.1:7402", True), ("127.8.8.8", True), ("localhost:1", True), ("[::1]:7402", True), ("::1", True),
    ("[::ffff:127.0.0.1]:1", True), ("0.0.0.0:7402", False), ("[::]:1", False), ("10.0.0.1:1", False),
    ("localhost.example.org:1", False), ("fe80::1%lo", False), ("", False), (":7402", False),
])
def test_plain_only_where_nobody_else_is(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback
    trust = trust_of()
    assert trust.mode == PLAIN and trust.identity is None and not trust.ends_soon()
    if loopback:
        trust.check_plain(address)
    else:
        with pytest.raises(ConfigError, match="whoever reaches the port could do everything"):
            trust.check_plain(address)
    trust_of(plain=True).check_plain(address)


def test_who_has_keys_talks_to_nobody_without(site: Site) -> None:
    for trust in (trust_of(**site.settings(1)), trust_of(secret=site.secret_file())):
        with pytest.raises(AccessDenied, match=r"127\.0\.0\.1:5 talks without keys"):
            trust.check_plain("127.0.0.1:5")


def test_the_log_hears_of_the_end_thirty_days_before(site: Site) -> None:
    trust = trust_of(**site.settings(1))
    assert trust.not_after is not None and not trust.ends_soon()
    assert not trust.ends_soon(trust.not_after - ENDS_SOON_S - 1)
    assert "in 29 days" in trust.ends_soon(trust.not_after - ENDS_SOON_S + 1)
    assert "has ended on" in trust.ends_soon(trust.not_after + 1)
    assert "`spindle keys node`" in trust.ends_soon(trust.not_after)
    edge = site.trust(site.application(), APPLICATION)
    assert edge.not_after is not None and "`spindle keys application`" in edge.ends_soon(edge.not_after)


def test_plain_mode_and_a_node_without_network_load_no_cryptography() -> None:
    script = ("import spindle.node.node, spindle.security.trust, spindle.transport.wire, sys; "
              "from spindle.config.settings import NodeConfig; spindle.security.trust.Trust.of(NodeConfig()); "
              "print(*set(sys.modules) & {'cryptography', 'spindle.security.contexts', 'spindle.security.tls'})")
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""


def test_certificates_mode_needs_no_cryptography_library(site: Site) -> None:
    """Only what makes keys imports it: it takes a third of a node's start."""
    settings = site.settings(1)
    script = (f"import sys; from pathlib import Path; from spindle.security.trust import Trust; Trust.of_certificates("
              f"Path({str(settings['certificate'])!r}), Path({str(settings['certificate_key'])!r}), "
              f"Path({str(settings['authority'])!r})); print('cryptography' in sys.modules)")
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
