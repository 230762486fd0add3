"""Goal: whoever may write to the topics of a service can neither answer for a server, nor ask in the name of another
client, nor stop anybody, nor have code run.

Method: a program that writes whatever it likes to both topics, while a client and a server work.
"""

from __future__ import annotations

import random
import time

import pytest

from dds import DataReader, DataWriter, Policy, Qos, Topic
from dds.idl.codec import codec_of
from dds.messages import packets
from dds.messages.operations import PACKET
from dds.rpc import Client, Server
from dds.rpc.messages import NOBODY, Announcement, Code, Reply, Request
from tests.dds.rpc.services import Pumps
from tests.support import wait_until


@pytest.fixture
def scene(participant):
    """A server, a client, and what a stranger needs to write to their topics."""
    pumps = Pumps()
    with Server(participant, pumps, workers=2) as server, Client(participant, Pumps) as client:
        assert client.wait_for_servers()
        yield participant, pumps, server, client
        pumps.gate.set()


def writer(participant, name, data_type, qos=None):
    return DataWriter(participant, Topic(participant, name, data_type), qos)


def call_under_way(pumps, client):
    """The future of a call that the server carries out, and what the client knows of it."""
    waiting = client.wait.future()
    wait_until(lambda: pumps.carried_out == 1)
    (call,) = client._core._calls._calls.values()
    return waiting, call


def test_nobody_answers_for_a_server(scene) -> None:
    participant, pumps, _, client = scene
    waiting, call = call_under_way(pumps, client)
    forged = Reply(client._core.id, call.number, Code.OK, "", b"\0\7\0\0\5\0\0\0mine\0")
    plain = writer(participant, "Pumps_Reply", Reply)
    # ... nor one that says that it is a server, even the same one: that one is not where the call was sent.
    claims = writer(participant, "Pumps_Reply", Reply, Qos(Policy.Userdata(Announcement("server", b"m" * 16).encode())))
    for one in (plain, claims):
        one.write(forged)
        one.write(Reply(NOBODY, 0, Code.OVERTAKEN, "", b""))
    assert client.add(1) == 2 and not waiting.done()
    pumps.gate.set()
    assert waiting.result(20) == "open"


def test_nobody_asks_in_the_name_of_another_client(scene) -> None:
    """Else the victim might take the answer to a question that it has not asked."""
    participant, pumps, server, client = scene
    waiting, call = call_under_way(pumps, client)
    add = client._interface.operations["add"]
    request = Request(client._core.id, call.number, server.id, 1 << 40, add.signature, "add",
                      add.arguments.encode((20, 22)))
    writer(participant, "Pumps_Request", Request).write(request)
    stranger = Announcement("client", b"s" * 16)
    strange = writer(participant, "Pumps_Request", Request, Qos(Policy.Userdata(stranger.encode())))
    strange.write(request)
    note = client._interface.operations["note"]  # behind it, in the stranger's own name
    strange.write(Request(stranger.id, 1, server.id, 1 << 40, note.signature, "note", note.arguments.encode(("end",))))
    wait_until(lambda: pumps.noted == ["end"])
    assert client.divide(1.0, 1.0) == 1.0 and pumps.carried_out == 1 and not waiting.done()


def test_nobody_passes_for_another_writer(scene) -> None:
    """Method: packets (`dds.messages.packets`) that name the server's own writer, and the client's."""
    participant, pumps, server, client = scene
    waiting, call = call_under_way(pumps, client)
    note = client._interface.operations["note"]
    for topic, handle, message in (
            ("Pumps_Reply", server._writer._instance_handle(),
             Reply(client._core.id, call.number, Code.OK, "", b"\0\7\0\0\5\0\0\0mine\0")),
            ("Pumps_Request", client._core._writer._instance_handle(),
             Request(client._core.id, 1000, server.id, 1 << 40, note.signature, "note",
                     note.arguments.encode(("forged",))))):
        forged = packets.member(codec_of(type(message)).encode(message), 0, 0, 0, time.time_ns(), 0, handle)
        inbox = participant.session.open_writer(topic).inbox
        inbox.write(packets.cut(1, [forged], 2000)[0], 0, 5.0, PACKET)
        assert inbox.wait_acknowledged(5.0)
    assert client.add(1) == 2 and not waiting.done() and not pumps.noted
    pumps.gate.set()
    assert waiting.result(20) == "open"


def test_any_bytes_harm_nobody(scene) -> None:
    """Method: random changes of real messages and plain noise, by a writer that the peers take for one of theirs."""
    participant, _, server, client = scene
    chance = random.Random(7)
    me = Announcement("client", b"c" * 16)
    qos = Qos(Policy.Userdata(me.encode()))
    requests = writer(participant, "Pumps_Request", Request, qos)
    # A reader, so that the server sees a client, and a writer of replies that says it is a server.
    reader = DataReader(participant, Topic(participant, "Pumps_Reply", Reply), qos)
    server_qos = Qos(Policy.Userdata(Announcement("server", b"e" * 16).encode()))
    replies = writer(participant, "Pumps_Reply", Reply, server_qos)
    add = client._interface.operations["add"]
    for codec, one, message in (
            (codec_of(Request), requests,
             Request(me.id, 1, server.id, 5, add.signature, "add", b"\0\1\0\0" + b"\1" * 16)),
            (codec_of(Reply), replies, Reply(client._core.id, 1, 0, "x", b"y" * 30))):
        real = codec.encode(message)
        for k in range(600):
            data = bytearray(real if k % 3 else chance.randbytes(chance.randrange(120)))
            for _ in range(chance.randrange(4)):
                if data:
                    data[chance.randrange(len(data))] = chance.randrange(256)
            one._inbox.write(bytes(data), 0, 5.0)
    for k in range(50):
        assert client.add(k) == k + 1
    reader.close()


@pytest.mark.parametrize("said", [
    b"", b"{", b"[]", b'{"rpc": 1, "id": "00", "instance": ""}', b'{"rpc": "server", "id": "zz", "instance": ""}',
    b'{"rpc": "server", "id": "' + b"00" * 16 + b'", "instance": 7}', b"[" * 100_000])
def test_announcements_of_others(said: bytes) -> None:
    assert Announcement.decode(said) is None


def test_announcements_come_back() -> None:
    one = Announcement("server", bytes(range(16)), "left")
    assert Announcement.decode(one.encode()) == one
