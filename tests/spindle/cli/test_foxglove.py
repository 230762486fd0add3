"""Goal: topics are seen live by whoever speaks Foxglove's protocol: their types, their samples, and how they come and
go; and nobody who looks on can hurt the group.

Method: real daemons, programs of the DDS API, and `spindle foxglove` as a process of its own. The client is a plain
WebSocket client (package `websockets`) that knows of Foxglove what its protocol says; payloads are decoded by rosbags,
mcap-ros1-support and protobuf, from the schemas that the server sends alone.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import os
import pwd
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("foxglove", reason="needs foxglove-sdk")
pytest.importorskip("websockets", reason="needs websockets")

import dds
from dds import Policy, Qos, duration
from dds.idl import IdlStruct
from spindle.cli.foxglove import is_loopback, place
from spindle.cli.recordings.bridge import BYTES_SHOWN_MAX, as_json
from tests.spindle.cli.foxglove_client import PROTOCOL, WAIT_S, Fix, participant, read, served
from tests.spindle.cli.support import Cli
from tests.spindle.daemons import Daemon, daemons
from tests.support import wait_until


@pytest.fixture
def node(runtime_dir: Path, tmp_path: Path) -> Iterator[Daemon]:
    with daemons(runtime_dir, 1, ["--journal-dir", str(tmp_path / "journal")]) as (one,):
        yield one


# --- types

@pytest.mark.slow
def test_every_kind_of_type_is_decoded_by_others(node: Daemon, runtime_dir: Path) -> None:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2
    from mcap.records import Schema
    from mcap_ros1.decoder import DecoderFactory
    from rosbags.typesys import Stores, get_types_from_idl, get_typestore

    record = np.dtype([("time", "f8"), ("feet", "f4"), ("wind", "f4", (3,))])
    with participant(runtime_dir) as within, served(runtime_dir) as serving:
        fixes = dds.DataWriter(within, dds.Topic(within, "fixes", Fix))
        track = dds.DataWriter(within, dds.Topic(within, "track", record))
        plans = dds.DataWriter(within, dds.Topic(within, "plans", struct_pb2.Value))
        words = dds.DataWriter(within, dds.Topic(within, "words", bytes))
        client = serving.client()
        said = {topic: client.subscribe(topic) for topic in ("fixes", "track", "plans", "words")}
        for topic in said:
            read(within, topic, 1)
        fixes.write(Fix("F-GKXY", 9750.0, ["A", "B"]))
        track.write(np.array([(1.5, 1200.0, (1, 2, 3))], record)[0])
        plans.write(struct_pb2.Value(string_value="direct"))
        words.write("grüezi".encode())
        words.write(b"\xff\x00")

        store = get_typestore(Stores.EMPTY)
        store.register(get_types_from_idl(said["fixes"]["schema"]))
        assert (said["fixes"]["encoding"], said["fixes"]["schemaEncoding"]) == ("cdr", "omgidl")
        name = next(one for one in store.types if one.endswith("Fix"))
        fix = store.deserialize_cdr(client.until("fixes", 1)[0], name)
        assert (fix.aircraft, fix.feet, list(fix.legs)) == ("F-GKXY", 9750.0, ["A", "B"])

        one = said["track"]
        assert (one["encoding"], one["schemaEncoding"]) == ("ros1", "ros1msg")
        decode = DecoderFactory().decoder_for("ros1", Schema(1, one["schema"].encode(), one["schemaEncoding"],
                                                            one["schemaName"]))
        assert decode is not None
        point = decode(client.until("track", 1)[0])
        assert (point.time, point.feet, list(point.wind)) == (1.5, 1200.0, [1, 2, 3])

        one = said["plans"]
        assert (one["encoding"], one["schemaEncoding"]) == ("protobuf", "protobuf")
        pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(one["schema"])).file:
            pool.Add(file)
        message = message_factory.GetMessageClass(pool.FindMessageTypeByName(one["schemaName"]))
        assert message.FromString(client.until("plans", 1)[0]).string_value == "direct"

        assert (said["words"]["encoding"], said["words"]["schemaName"]) == ("json", "spindle.Bytes")
        assert json.loads(said["words"]["schema"])["properties"].keys() >= {"size", "text", "base64"}
        assert [json.loads(one) for one in client.until("words", 2)] == [
            {"size": 7, "text": "grüezi"}, {"size": 2, "base64": "/wA="}]


def test_bytes_as_json_are_bounded() -> None:
    large = json.loads(as_json(b"x" * (BYTES_SHOWN_MAX + 1)))
    assert (large["size"], large["cut"], len(large["text"])) == (BYTES_SHOWN_MAX + 1, True, BYTES_SHOWN_MAX)
    assert json.loads(as_json(b"")) == {"size": 0, "text": ""}


@pytest.mark.slow
def test_topics_of_an_order_group_are_shown_by_their_own_names(node: Daemon, runtime_dir: Path) -> None:
    with participant(runtime_dir) as within, served(runtime_dir, "speed*") as serving:
        speeds = dds.DataWriter(within, dds.Topic(within, "speeds", Fix, order="flight"))
        gears = dds.DataWriter(within, dds.Topic(within, "gears", Fix, order="flight"))
        client = serving.client()
        assert client.subscribe("speeds")["metadata"]["order"] == "flight"
        read(within, "flight", 1)
        gears.write(Fix("F-GKXY", 1.0))
        speeds.write(Fix("F-GKXY", 2.0))
        assert len(client.until("speeds", 1)) == 1
        assert set(client.channels) == {"speeds"}, "the other topic of the group wasn't asked for"


# --- what comes and goes

@pytest.mark.slow
def test_topics_come_and_go(node: Daemon, runtime_dir: Path) -> None:
    with participant(runtime_dir) as within, served(runtime_dir, "flight/*", "lone") as serving:
        client = serving.client()
        wait_until(lambda: client.info, WAIT_S, "the server's first words")
        assert client.info["name"] == "Spindle, domain 0" and not client.info["capabilities"]
        topic = dds.Topic(within, "flight/fixes", Fix)
        writer = dds.DataWriter(within, topic)
        other = dds.DataWriter(within, dds.Topic(within, "elsewhere", Fix))
        client.subscribe("flight/fixes")
        read(within, "flight/fixes", 1)
        writer.write(Fix("a", 1.0))
        client.until("flight/fixes", 1)
        assert "elsewhere" not in client.channels
        client.unsubscribe("flight/fixes")
        read(within, "flight/fixes", 0)
        writer.close()
        other.close()
        topic.close()
        within.session.delete_topic("flight/fixes")
        wait_until(lambda: not client.channels, WAIT_S, "the channel's end")
        again = dds.DataWriter(within, dds.Topic(within, "flight/fixes", bytes))
        assert client.subscribe("flight/fixes")["schemaName"] == "spindle.Bytes"
        read(within, "flight/fixes", 1)
        again.write(b"anew")
        assert json.loads(client.until("flight/fixes", 2)[1])["text"] == "anew"


@pytest.mark.slow
def test_nothing_is_read_while_nobody_looks(node: Daemon, runtime_dir: Path) -> None:
    """Also not when the client that looked has vanished without a word."""
    with participant(runtime_dir) as within, served(runtime_dir) as serving:
        writer = dds.DataWriter(within, dds.Topic(within, "fixes", Fix))
        first, second = serving.client(), serving.client()
        first.channel("fixes")
        second.channel("fixes")
        read(within, "fixes", 0)
        first.subscribe("fixes")
        read(within, "fixes", 1)
        second.subscribe("fixes")
        writer.write(Fix("a", 1.0))
        first.until("fixes", 1)
        first.socket.socket.close()
        writer.write(Fix("b", 2.0))
        second.until("fixes", 1)
        read(within, "fixes", 1)
        second.close()
        read(within, "fixes", 0)


@pytest.mark.slow
def test_who_looks_first_gets_what_a_topic_keeps(node: Daemon, runtime_dir: Path) -> None:
    keeps = Qos(Policy.Durability.TransientLocal, Policy.History.KeepLast(2))
    with participant(runtime_dir) as within, served(runtime_dir) as serving:
        writer = dds.DataWriter(within, dds.Topic(within, "settings", bytes, qos=keeps))
        for number in range(5):
            writer.write(b"%d" % number)
        writer.wait_for_acks(duration(seconds=10))
        client = serving.client()
        client.subscribe("settings")
        assert [json.loads(one)["text"] for one in client.until("settings", 2)] == ["3", "4"]


@pytest.mark.slow
def test_a_logged_topic_whose_writers_have_gone_has_its_type(node: Daemon, runtime_dir: Path) -> None:
    logged = Qos(Policy.Durability.Persistent, Policy.WriterDataLifecycle(autodispose=False))
    with participant(runtime_dir) as within:
        writer = dds.DataWriter(within, dds.Topic(within, "alerts", Fix, qos=logged), qos=logged)
        writer.write(Fix("overspeed", 1.0))
        writer.wait_for_acks(duration(seconds=10))
        writer.close()
    with served(runtime_dir) as serving:
        client = serving.client()
        assert client.subscribe("alerts")["schemaName"].endswith("Fix")
        assert b"overspeed" in client.until("alerts", 1)[0]


@pytest.mark.slow
def test_another_version_of_a_type_has_a_channel_of_its_own(node: Daemon, runtime_dir: Path) -> None:
    from dds.idl import annotations

    @annotations.appendable
    @dataclass
    class Old(IdlStruct, typename="Grows"):
        number: int

    @annotations.appendable
    @dataclass
    class New(IdlStruct, typename="Grows"):
        number: int
        text: str = ""

    with participant(runtime_dir) as within, participant(runtime_dir) as beside, served(runtime_dir) as serving:
        old = dds.DataWriter(within, dds.Topic(within, "grows", Old))
        client = serving.client()
        first = client.subscribe("grows")
        read(within, "grows", 1)
        new = dds.DataWriter(beside, dds.Topic(beside, "grows", New))
        wait_until(lambda: client.channels["grows"] is not first, WAIT_S, "a channel of the new version")
        assert "text" in client.channels["grows"]["schema"] and "text" not in first["schema"]
        client.subscribe("grows")
        old.write(Old(1))
        client.until("grows", 1)
        new.write(New(2, "two"))
        assert b"two" in client.until("grows", 2)[1]
        old.close()
        wait_until(lambda: first["id"] not in client.by_id, WAIT_S, "the end of the old version's channel")
        assert "unique" not in serving.close()[1]  # the SDK warns of a second channel of a topic, as if it were wrong


# --- clients that are a burden

@pytest.mark.slow
def test_a_client_that_does_not_read_holds_nobody_up(node: Daemon, runtime_dir: Path) -> None:
    """Method: one client stops reading its socket; more is written than its buffers and its backlog have. The writer
    never waits, and another client sees the last sample."""
    from websockets.sync.client import connect

    with participant(runtime_dir) as within, served(runtime_dir) as serving:
        topic = dds.Topic(within, "large", bytes, size_max=16384)
        writer = dds.DataWriter(within, topic, Qos(Policy.Reliability.Reliable(duration(seconds=5))))
        good = serving.client()
        good.subscribe("large")
        with connect(serving.url, subprotocols=[PROTOCOL], max_size=None, max_queue=1) as bad:  # type: ignore[list-item]
            bad.send(json.dumps({"op": "subscribe", "subscriptions": [
                {"id": 1, "channelId": good.channel("large")["id"]}]}))
            read(within, "large", 1)
            for number in range(4000):
                writer.write(b"%d " % number + b"x" * 15000)
            writer.wait_for_acks(duration(seconds=10))
            last = b"the last "

            def seen() -> bool:
                writer.write(last)
                return any(b"the last" in one for one in good.of("large"))

            wait_until(seen, WAIT_S, "the last sample at the client that reads")


@pytest.mark.slow
@pytest.mark.parametrize("nonsense", [
    "no JSON", "{}", '{"op": "subscribe"}', '{"op": "subscribe", "subscriptions": [{"id": 1, "channelId": 4711}]}',
    '{"op": "unsubscribe", "subscriptionIds": [7]}', '{"op": "advertise", "channels": [{"id": 1, "topic": "fixes", '
    '"encoding": "json", "schemaName": ""}]}', b"", b"\x01", b"\x01\x01\x00\x00\x00{}", b"\xff" * 1000])
def test_what_a_client_says_changes_nothing(node: Daemon, runtime_dir: Path, nonsense: str | bytes) -> None:
    from websockets.exceptions import ConnectionClosed

    with participant(runtime_dir) as within, served(runtime_dir) as serving:
        writer = dds.DataWriter(within, dds.Topic(within, "fixes", Fix))
        bad = serving.client()
        bad.channel("fixes")
        with contextlib.suppress(ConnectionClosed):
            bad.socket.send(nonsense)
        good = serving.client()
        good.subscribe("fixes")
        read(within, "fixes", 1)
        writer.write(Fix("a", 1.0))
        good.until("fixes", 1)
        assert sum(one.is_writer for one in within.session.endpoints("fixes")) == 1
        code, err = serving.close()
        assert (code, "Traceback" in err) == (0, False)


@pytest.mark.slow
def test_another_protocol_is_refused(node: Daemon, runtime_dir: Path) -> None:
    from websockets.exceptions import InvalidHandshake
    from websockets.sync.client import connect

    with served(runtime_dir) as serving, pytest.raises(InvalidHandshake), \
            connect(serving.url, subprotocols=["chat"]):  # type: ignore[list-item]
        pass


# --- rights and addresses

@pytest.mark.slow
def test_what_the_rules_hide_is_not_shown(runtime_dir: Path, tmp_path: Path) -> None:
    me = pwd.getpwuid(os.getuid()).pw_name
    config = tmp_path / "spindle.toml"
    config.write_text(f'[access]\nrules = [{{ user = "{me}", publish = ["*"], subscribe = ["open/*"] }}]\n')
    with daemons(runtime_dir, 1, ["--config", str(config)]), participant(runtime_dir) as within, \
            served(runtime_dir) as serving:
        secret = dds.DataWriter(within, dds.Topic(within, "secret", Fix))
        shown = dds.DataWriter(within, dds.Topic(within, "open/fixes", Fix))
        client = serving.client()
        client.subscribe("open/fixes")
        read(within, "open/fixes", 1)
        if "secret" in client.channels:  # it may be published, so it may be known; its samples are refused
            client.subscribe("secret")
            wait_until(lambda: any("secret" in one for one in client.statuses), WAIT_S, "why it isn't shown")
            wait_until(lambda: "secret" not in client.channels, WAIT_S, "the end of its channel")
        secret.write(Fix("hidden", 1.0))
        shown.write(Fix("seen", 2.0))
        client.until("open/fixes", 1)
        assert not client.of("secret")
        assert serving.process.poll() is None


@pytest.mark.slow
def test_a_place_that_is_taken(node: Daemon, runtime_dir: Path, cli: Cli) -> None:
    with served(runtime_dir) as serving:
        port = serving.url.rpartition(":")[2]
        result = cli("foxglove", "--runtime-dir", runtime_dir, "--listen", port)
        assert result.code == 14
        assert f"127.0.0.1:{port}" in result.err and "--listen" in result.err


@pytest.mark.slow
def test_only_loopback_unless_said(node: Daemon, runtime_dir: Path, cli: Cli) -> None:
    result = cli("foxglove", "--runtime-dir", runtime_dir, "--listen", "0.0.0.0:0")
    assert result.code == 2 and "--open" in result.err
    with served(runtime_dir, "--listen", "0.0.0.0:0", "--open") as serving:
        assert serving.url.startswith("ws://0.0.0.0:")


@pytest.mark.slow
def test_over_tls(node: Daemon, runtime_dir: Path, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    context = ssl.create_default_context(cafile=str(certificate))
    with participant(runtime_dir) as within, served(
            runtime_dir, "--certificate", str(certificate), "--key", str(key)) as serving:
        writer = dds.DataWriter(within, dds.Topic(within, "fixes", Fix))
        assert serving.url.startswith("wss://127.0.0.1:")
        client = serving.client(ssl=context)
        client.subscribe("fixes")
        read(within, "fixes", 1)
        writer.write(Fix("a", 1.0))
        client.until("fixes", 1)


def self_signed(folder: Path) -> tuple[Path, Path]:
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
            .serial_number(1).not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), True).sign(key, hashes.SHA256()))
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                           serialization.NoEncryption()))
    return paths


@pytest.mark.parametrize(("arguments", "words"), [
    (["--listen", "elsewhere"], "HOST:PORT"), (["--listen", "70000"], "HOST:PORT"),
    (["--certificate", __file__], "go together"), (["--listen", "192.0.2.1:8765"], "--open")])
def test_wrong_options(cli: Cli, runtime_dir: Path, arguments: list[str], words: str) -> None:
    result = cli("foxglove", "--runtime-dir", runtime_dir, *arguments)
    assert result.code == 2 and words in result.err


@pytest.mark.slow
def test_keys_that_are_none(node: Daemon, runtime_dir: Path, cli: Cli) -> None:
    wrong = ("--certificate", __file__, "--key", __file__)
    result = cli("foxglove", "--runtime-dir", runtime_dir, "--listen", "0", *wrong)
    assert result.code not in (0, 70) and "Traceback" not in result.err


def test_without_a_node(cli: Cli, runtime_dir: Path) -> None:
    assert cli("foxglove", "--runtime-dir", runtime_dir).code == 3


def test_without_the_package_it_says_what_to_do(cli: Cli, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "foxglove" else there(name))
    result = cli("foxglove", "--runtime-dir", runtime_dir)
    assert result.code == 1 and "pip install foxglove-sdk" in result.err


def test_places() -> None:
    assert place("9000") == ("127.0.0.1", 9000) and place("[::1]:9") == ("::1", 9) and place("h:9") == ("h", 9)
    assert is_loopback("127.0.0.2") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("example.org")
