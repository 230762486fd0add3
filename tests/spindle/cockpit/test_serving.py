"""Goal: what the page is told is true and comes at once, to those who may look and to nobody else.

Method: real daemons, one of them with a cockpit; a client of the WebSocket, without a browser (test_browser.py has
one). Members are killed, programs write, strangers try.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

import dds
from dds.idl import IdlStruct
from dds.idl.annotations import key
from dds.idl.types import int32
from spindle.client import attach
from spindle.cockpit.serving import BROWSERS_MAX, STRANGERS_MAX
from spindle.errors import CastOut
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from tests.spindle.cockpit.support import command, group, page, run, url_of
from tests.spindle.daemons import Daemon
from tests.support import wait_until

STATIC = Path(__file__).resolve().parents[3] / "spindle" / "cockpit" / "static"


@dataclass
class Engine(IdlStruct):
    position: int32
    key("position")
    mode: str = ""


POINT = np.dtype([("x", "<f8"), ("y", "<i4")])


@contextmanager
def participant(runtime_dir: Path, node_id: int, name: str) -> Iterator[dds.DomainParticipant]:
    with dds.DomainParticipant(
            qos=dds.Qos(dds.Policy.EntityName(name)), node_id=node_id, runtime_dir=runtime_dir) as made:
        yield made


# --- what is shown

@pytest.mark.slow
def test_members_topics_and_who_has_them_open(runtime_dir: Path) -> None:
    async def look(url: str) -> None:
        async with page(url) as seen:
            await seen.until(lambda: seen.topic("hello").get("readers") and seen.topic("hello").get("writers"), "ends")
            assert seen.members == [1, 2]
            assert seen.told["welcome"]["acts"] is False and seen.state["node"]["id"] == 1
            assert [one["name"] for one in seen.topic("hello")["readers"]] == ["display"]
            assert seen.topic("hello")["writers"][0]["node"] == 2
            await seen.until(lambda: seen.title == "whole", "the group is whole")
            assert all(abs(one["since"] - time.time()) < 60 for one in seen.state["members"])
            assert [one["members"] for one in seen.happened if one["kind"] == "view"] == [[1], [1, 2]]

    with group(runtime_dir, 2) as (url, _), participant(runtime_dir, 1, "display") as one, (
            participant(runtime_dir, 2, "source")) as two:
        reader = dds.DataReader(one, dds.Topic(one, "hello", bytes))
        writer = dds.DataWriter(two, dds.Topic(two, "hello", bytes))
        run(look(url))
        del reader, writer


@pytest.mark.slow
def test_a_killed_member_is_shown_within_a_second(runtime_dir: Path) -> None:
    async def look(url: str, nodes: list[Daemon]) -> None:
        async with page(url) as seen:
            await seen.until(lambda: seen.members == [1, 2, 3] and seen.title == "whole", "all members")
            nodes[2].process.send_signal(signal.SIGKILL)
            await seen.until(lambda: seen.members == [1, 2] and seen.title == "not whole", "two are left", 5.0)
            shown_s = seen.told["figures"]["time"]
            lost = await seen.until(lambda: [one for one in seen.happened if one["kind"] == "lost"], "it is told")
            assert lost[0]["nodes"] == [3] and seen.state["missing"][0]["node_id"] == 3
            # when it was known to the node, and when the look was that showed it
            assert shown_s - lost[0]["time"] < 1.0

    with group(runtime_dir, 3) as (url, nodes):
        run(look(url, nodes))
        nodes[2].wait()
        with_again = Daemon(3, runtime_dir=runtime_dir)
        try:
            with_again.wait_ready()

            async def again() -> None:
                async with page(url) as seen:
                    await seen.until(lambda: seen.members == [1, 2, 3] and seen.title == "whole", "whole again")

            run(again())
        finally:
            with_again.stop()


@pytest.mark.slow
def test_a_member_that_hangs_is_shown_as_silent_and_as_lost(runtime_dir: Path) -> None:
    async def look(url: str, daemon: Daemon) -> None:
        async with page(url) as seen:
            await seen.until(lambda: seen.members == [1, 2, 3] and seen.title == "whole", "all members")
            daemon.process.send_signal(signal.SIGSTOP)
            await seen.until(lambda: seen.title == "a member is silent", "it is silent")
            await seen.until(lambda: seen.members == [1, 2], "the others go on")
            await seen.until(lambda: {"silent", "lost", "view"} <= {one["kind"] for one in seen.happened}, "it is told")

    with group(runtime_dir, 3) as (url, nodes):
        try:
            run(look(url, nodes[2]))
        finally:
            nodes[2].process.send_signal(signal.SIGCONT)
        assert nodes[2].wait() == CastOut.exit_code


@pytest.mark.slow
def test_rates_latencies_and_whom_a_topic_waits_for(runtime_dir: Path) -> None:
    async def look(url: str) -> None:
        async with page(url) as seen:
            await seen.say(ask="page", section="topic", topic="load")
            await seen.until(lambda: (seen.figures("load")[1] or 0) > 10, "a rate")
            _, rate, size, _, median, late, at = seen.figures("load")
            assert size == pytest.approx(100 * rate, rel=0.5) and 0 < median <= late < 10
            assert at == 2  # where it is read
            await seen.until(lambda: seen.told.get("detail", {}).get("latencies"), "the histogram")
            held = await seen.until(lambda: [one for one in seen.told["figures"]["held"] if one["readers"]], "it waits")
            assert held[0]["topic"] == "load" and held[0]["node"] == 2
            assert "slow reader" in held[0]["text"]
            assert seen.told["detail"]["stability"]["members"] == [1, 2]

    with group(runtime_dir, 2) as (url, _), attach(runtime_dir=runtime_dir, node_id=1) as source, (
            attach(runtime_dir=runtime_dir, node_id=2, name="slow reader")) as slow:
        source.declare_topic(TopicSpec("load", size_max=1000))
        reader = slow.open_reader("load", keep_all=True, from_history=False, guid=b"slow", endpoint=b"{}")
        writer = source.open_writer("load")
        ended = threading.Event()

        def write() -> None:
            """Some in a second, of which all are read; then so many that the reader, which takes no more, is waited
            for."""
            taken = 0
            while not ended.is_set():
                try:
                    writer.inbox.write(bytes(100), timeout_s=0.05)
                except TimeoutError:
                    continue
                if taken < 500:
                    taken += len(reader.log.take(1000))
                    ended.wait(0.005)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            run(look(url))
        finally:
            ended.set()
            thread.join()
            reader.close()


@pytest.mark.slow
def test_figures_of_a_topic_that_nobody_reads_at_the_node(runtime_dir: Path) -> None:
    async def look(url: str, write: Any) -> None:
        async with page(url) as seen:
            def told() -> bool:
                write()
                return bool(seen.figures("far")[6] == 2 and seen.figures("far")[0])

            await seen.until(told, "node 2 tells of it")

    with group(runtime_dir, 2) as (url, _), attach(runtime_dir=runtime_dir, node_id=2) as session:
        session.declare_topic(TopicSpec("far"))
        with session.open_writer("far") as writer, session.open_reader("far", keep_all=False, from_history=False):
            run(look(url, lambda: writer.inbox.write(b"x")))


@pytest.mark.slow
def test_incompatible_qos_is_shown(runtime_dir: Path) -> None:
    async def look(url: str) -> None:
        async with page(url) as seen:
            apart = await seen.until(lambda: seen.state.get("incompatible"), "the pair")
            assert (apart[0]["topic"], apart[0]["policy"]) == ("cabin", "Reliability")
            assert (apart[0]["writer"]["name"], apart[0]["reader"]["name"]) == ("source", "display")
            assert (apart[0]["offered"], apart[0]["requested"]) == ("BestEffort", "Reliable(max_blocking_time=2 s)")

    with group(runtime_dir, 1) as (url, _), participant(runtime_dir, 1, "source") as one, (
            participant(runtime_dir, 1, "display")) as two:
        writer = dds.DataWriter(one, dds.Topic(one, "cabin", bytes), qos=dds.Qos(dds.Policy.Reliability.BestEffort))
        reader = dds.DataReader(two, dds.Topic(two, "cabin", bytes), qos=dds.Qos(
            dds.Policy.Reliability.Reliable(dds.duration(seconds=2))))
        run(look(url))
        del writer, reader


@pytest.mark.slow
def test_journals_and_disks(runtime_dir: Path, tmp_path: Path) -> None:
    async def look(url: str) -> None:
        async with page(url) as seen:
            await seen.say(ask="page", section="overview")
            await seen.until(lambda: seen.told.get("storage", {}).get("journals"), "the journal")
            found = seen.told["storage"]
            assert found["journals"][0]["topic"] == "kept" and found["disks"][0]["path"] == str(tmp_path / "j")
            assert 0 < found["disks"][0]["free"] <= found["disks"][0]["size"]

    with group(runtime_dir, 1, "--journal-dir", str(tmp_path / "j")) as (url, _), (
            attach(runtime_dir=runtime_dir, node_id=1)) as session:
        session.declare_topic(TopicSpec("kept", level=Level.LOGGED))
        with session.open_writer("kept"):
            run(look(url))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bytes", "idl", "numpy", "owned"])
def test_live_samples(runtime_dir: Path, kind: str) -> None:
    data_type: Any = {"bytes": bytes, "numpy": POINT}.get(kind, Engine)
    sample: Any = {"bytes": b'{"x": 1}', "numpy": np.array((1.5, 2), dtype=POINT)[()]}.get(kind, Engine(1, "climb"))
    wanted = {"bytes": {"x": 1}, "numpy": {"x": 1.5, "y": 2}}.get(kind, {"position": 1, "mode": "climb"})
    owned = [dds.Policy.Ownership.Exclusive] if kind == "owned" else []

    async def look(url: str, writer: Any) -> None:
        async with page(url) as seen:
            await seen.say(ask="watch", key="a", topic="t", rows=5, hz=20)

            def told() -> bool:
                writer.write(sample)
                return bool(seen.samples.get("a"))

            await seen.until(told, "a sample")
            assert seen.samples["a"][0]["value"] == wanted and seen.samples["a"][0]["node"] == 2
            await seen.say(ask="leave", key="a")

    with group(runtime_dir, 2) as (url, _), participant(runtime_dir, 2, "source") as one:
        topic: Any = dds.Topic(one, "t", data_type, qos=dds.Qos(*owned))
        run(look(url, dds.DataWriter(one, topic)))


@pytest.mark.slow
def test_a_node_that_goes_away_is_told_and_another_one_looked_for(runtime_dir: Path) -> None:
    """`spindle cockpit` beside the daemons, which outlives one."""
    async def look(url: str, nodes: list[Daemon]) -> None:
        async with page(url) as seen:
            await seen.until(lambda: seen.members == [1, 2, 3], "all members")
            assert seen.state["node"]["id"] == 1
            nodes[0].process.send_signal(signal.SIGKILL)
            await seen.until(lambda: seen.state["node"]["id"] == 2, "it looks at another node")
            await seen.until(lambda: seen.members == [2, 3], "who go on")
            await seen.until(lambda: {"gone", "attached"} <= {one["kind"] for one in seen.happened}, "it is told")

    with group(runtime_dir, 3) as (_, nodes), command("--runtime-dir", runtime_dir) as url:
        run(look(url, nodes))
        nodes[0].wait()


# --- who may look

@pytest.mark.slow
def test_files_are_for_everybody_and_nothing_is_loaded_from_elsewhere(runtime_dir: Path) -> None:
    async def look(url: str) -> None:
        base = url.partition("#")[0]
        async with aiohttp.ClientSession() as session:
            for name in ("", "app.js", "flight.html", "vendor/uplot/uPlot.esm.js"):
                async with session.get(base + name) as found:
                    assert found.status == 200 and "default-src 'none'" in found.headers["Content-Security-Policy"]
            for name in ("entry.py", "../entry.py", "..%2fentry.py", "%2e%2e/entry.py", "vendor"):
                async with session.get(base + name) as found:
                    assert found.status == 404

    with group(runtime_dir, 1) as (url, _):
        run(look(url))
    for path in STATIC.rglob("*"):
        if path.is_file() and "vendor" not in path.parts:
            assert set(re.findall(r"https?://[\w./]*", path.read_text())) <= {"http://www.w3.org/2000/svg"}, path


@pytest.mark.slow
@pytest.mark.parametrize("token", ["", "wrong", "ünicode"])
def test_who_has_no_token_is_told_nothing(runtime_dir: Path, token: str) -> None:
    async def look(url: str) -> None:
        async with page(url, token) as seen:
            told = await seen.hear()
            assert told["type"] == "refused" and "token" in told["text"]
            received = await seen.socket.receive(timeout=10)
            assert received.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)

    with group(runtime_dir, 1) as (url, _):
        run(look(url))


@pytest.mark.slow
def test_other_hosts_and_origins_are_refused(runtime_dir: Path) -> None:
    async def look(url: str) -> None:
        base = url.partition("/#")[0]
        port = base.rpartition(":")[2]
        async with aiohttp.ClientSession() as session:
            for host, status in ((f"127.0.0.1:{port}", 200), (f"localhost:{port}", 200), (f"evil.example:{port}", 403),
                                 ("127.0.0.1:1", 403), ("", 403), (f"[::1]:{port}", 200), ("[", 403)):
                async with session.get(base, headers={"Host": host}) as found:
                    assert found.status == status, host
            for origin, status in ((base, 101), (f"http://evil.example:{port}", 403), ("null", 403),
                                   (f"https://127.0.0.1:{port}", 403), ("http://127.0.0.1:1", 403)):
                try:
                    async with session.ws_connect(f"{base}/live", headers={"Origin": origin}):
                        got = 101
                except aiohttp.WSServerHandshakeError as error:
                    got = error.status
                assert got == status, origin

    with group(runtime_dir, 1) as (url, _):
        run(look(url))


@pytest.mark.slow
def test_a_name_in_hosts_is_allowed(runtime_dir: Path) -> None:
    async def look(url: str) -> None:
        base = url.partition("/#")[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(base, headers={"Host": f"Deck.example:{base.rpartition(':')[2]}"}) as found:
                assert found.status == 200

    with group(runtime_dir, 1, "--set", "web.hosts=['deck.example']") as (url, _):
        run(look(url))


# --- acting

@pytest.mark.slow
def test_nothing_can_be_done_unless_it_is_switched_on(runtime_dir: Path) -> None:
    async def look(url: str) -> None:
        async with page(url) as seen:
            await seen.until(lambda: seen.members == [1, 2], "the members")
            for action, what in (("cast_out", {"node": 2}), ("leave", {"node": 2}), ("delete_topic", {"topic": "t"})):
                answer = await seen.act(action, **what)
                assert not answer["ok"] and "only shows" in answer["text"]

    with group(runtime_dir, 2) as (url, nodes):
        run(look(url))
        assert nodes[1].process.poll() is None


@pytest.mark.slow
def test_leave_cast_out_and_delete(runtime_dir: Path) -> None:
    async def look(url: str, nodes: list[Daemon]) -> None:
        async with page(url) as seen:
            await seen.until(lambda: seen.members == [1, 2, 3] and seen.topic("t"), "the members and the topic")
            refused = await seen.act("delete_topic", topic="t")
            assert not refused["ok"] and "node 1 has readers or writers" in refused["text"]
            writer.close()
            assert (await seen.act("delete_topic", topic="t"))["ok"]
            await seen.until(lambda: not seen.topic("t"), "it is deleted")
            assert not (await seen.act("cast_out", node=1))["ok"]
            for nonsense in ({"action": "cast_out"}, {"action": "fly"}, {"action": "cast_out", "node": "3"},
                             {"action": "delete_topic", "topic": 7}, {"action": "record", "topic": "t"}):
                assert not (await seen.act(nonsense.pop("action"), **nonsense))["ok"]  # type: ignore[arg-type]
            assert (await seen.act("cast_out", node=3))["ok"]
            await seen.until(lambda: seen.members == [1, 2], "node 3 is cast out")
            await seen.until(lambda: [one for one in seen.happened if one["kind"] == "act" and "node 3 is cast out" in
                                      one["text"]], "it is told")
            assert (await seen.act("leave", node=2))["ok"]
            await seen.until(lambda: seen.members == [1], "node 2 has left")

    with group(runtime_dir, 3, "--set", "web.actions=true") as (url, nodes), (
            attach(runtime_dir=runtime_dir, node_id=1)) as session:
        session.declare_topic(TopicSpec("t"))
        writer = session.open_writer("t")
        run(look(url, nodes))
        assert nodes[1].wait() == 0 and nodes[2].wait() == CastOut.exit_code
        assert "token at 127.0.0.1 wants: node 3 is cast out" in nodes[0].log


@pytest.mark.slow
def test_a_topic_is_recorded(runtime_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "recordings"

    async def look(url: str, writer: Any) -> None:
        async with page(url) as seen:
            await seen.until(lambda: seen.topic("t"), "the topic")
            assert seen.told["welcome"]["records"]
            answer = await seen.act("record", topic="t")
            assert answer["ok"], answer
            await seen.until(lambda: seen.told["figures"]["recordings"], "it is shown")
            assert not (await seen.act("record", topic="t"))["ok"]
            for number in range(100):
                writer.inbox.write(b"%d" % number)
            await seen.until(lambda: any(one["application"] == "spindle record" for one in seen.topic("t")["readers"]),
                             "it reads")
            writer.inbox.write(b"last")
            assert await asyncio.to_thread(writer.inbox.wait_acknowledged, 20)  # it has come to every reader
            await seen.until(lambda: any(path.stat().st_size > 0 for path in folder.glob("t-*")), "it writes")
            answer = await seen.act("stop_recording", topic="t")
            assert answer["ok"], answer
            await seen.until(lambda: not seen.told["figures"]["recordings"], "it has ended")

    with group(runtime_dir, 1, "--set", "web.actions=true", "--set", f"web.recordings={folder}") as (url, _), (
            attach(runtime_dir=runtime_dir, node_id=1)) as session:
        session.declare_topic(TopicSpec("t"))
        with session.open_writer("t") as writer:
            run(look(url, writer))
    from mcap.reader import make_reader

    (path,) = folder.glob("t-*.mcap")
    with path.open("rb") as file:
        assert [message.data for _, _, message in make_reader(file).iter_messages()][-1] == b"last"


# --- those who mean no good, and what ends

@pytest.mark.slow
def test_nonsense_is_cut_off(runtime_dir: Path) -> None:
    async def look(url: str) -> None:
        for nonsense in ("[", "[]", '{"ask": "everything"}', '{"ask": "watch", "node": "x"}', "x" * 20_000,
                         "[" * 15_000):
            async with page(url) as seen:
                await seen.hear()
                await seen.socket.send_str(nonsense)
                while (await seen.socket.receive(timeout=10)).type is aiohttp.WSMsgType.TEXT:
                    pass
        async with page(url) as seen:
            await seen.until(lambda: seen.members, "the others are served")

    with group(runtime_dir, 1) as (url, _):
        run(look(url))


@pytest.mark.slow
def test_what_is_not_http_costs_a_line_and_the_end_says_nothing_of_it(runtime_dir: Path, tmp_path: Path) -> None:
    """Goal: strangers fill no log with tracebacks, nor with what they send. Method: requests without Host, with an
    endless address, and with a body that never comes; what the command says on stderr until after its end."""
    said = tmp_path / "said"
    with group(runtime_dir, 1) as (_, _), command("--runtime-dir", runtime_dir, errors=said) as url:
        host, _, port = url.split("/")[2].partition(":")
        with ExitStack() as open_ones:
            for request, status in (
                    (b"GET / HTTP/1.1\r\n\r\n", b" 400 "),
                    (b"GET /" + b"stuffing" * 10_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b" 400 "),
                    (f"POST / HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 99999\r\n\r\n".encode(), b" 405 ")):
                stranger = open_ones.enter_context(socket.create_connection((host, int(port)), timeout=10))
                stranger.sendall(request)
                assert status in stranger.recv(100)
    lines = said.read_text().splitlines()
    assert len([one for one in lines if "can't read it as HTTP" in one]) == 2, lines
    assert not [one for one in lines if re.search("Traceback|stuffing|destroyed|Task", one)], lines


@pytest.mark.slow
def test_strangers_who_say_nothing_keep_nobody_out(runtime_dir: Path) -> None:
    async def look(url: str) -> None:
        base = url.partition("/#")[0]
        async with aiohttp.ClientSession() as session:
            silent = [await session.ws_connect(f"{base}/live") for _ in range(100)]
            async with page(url) as seen:
                await seen.until(lambda: seen.members == [1], "who has the token is served")
            for one in silent:
                await one.close()

    with group(runtime_dir, 1) as (url, _):
        run(look(url))


@pytest.mark.slow
def test_of_many_who_come_at_once_no_more_are_served_than_may_be(runtime_dir: Path) -> None:
    """Goal: the limits hold for those who connect before any of them has said hello, as all pages do when a node is
    back. Method: twice as many as may look, then as many as there are places, one more, and one in its place."""
    async def look(url: str) -> None:
        base, _, token = url.partition("/#token=")

        async def hello(socket: aiohttp.ClientWebSocketResponse) -> aiohttp.WSMsgType:
            with suppress(ConnectionError):
                await socket.send_str(json.dumps({"hello": token}))
            return (await socket.receive()).type

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            async def come(count: int) -> list[aiohttp.ClientWebSocketResponse]:
                return [await session.ws_connect(f"{base}/live") for _ in range(count)]

            first = await come(2 * BROWSERS_MAX)
            types = await asyncio.gather(*map(hello, first))
            assert types.count(aiohttp.WSMsgType.TEXT) == STRANGERS_MAX, "the oldest strangers have made room"
            *others, last = await come(BROWSERS_MAX - STRANGERS_MAX)
            assert set(await asyncio.gather(*map(hello, others))) == {aiohttp.WSMsgType.TEXT}
            async with page(url):
                assert await hello(last) is aiohttp.WSMsgType.CLOSE
                assert last.close_code == aiohttp.WSCloseCode.TRY_AGAIN_LATER
                with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
                    await come(1)
            await first[-1].close()  # which was open until now
            while True:  # as a page tries it
                with suppress(aiohttp.WSServerHandshakeError):
                    (again,) = await come(1)
                    break
                await asyncio.sleep(0.01)
            assert await hello(again) is aiohttp.WSMsgType.TEXT

    with group(runtime_dir, 1) as (url, _):
        run(look(url))


@pytest.mark.slow
def test_who_does_not_read_is_cut_off_and_nobody_else_is_hurt(runtime_dir: Path) -> None:
    """Its socket takes nothing any more: what is sent waits in the server for a bounded time, and is bounded itself."""
    async def look(url: str, writer: Any) -> None:
        base, _, token = url.partition("/#token=")
        host, _, port = base.removeprefix("http://").partition(":")
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((host, int(port)))
        deaf.sendall(f"GET /live HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                     "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        for said in ({"hello": token}, {"ask": "watch", "key": "a", "topic": "t", "hz": 30}):
            text = json.dumps(said).encode()
            deaf.sendall(bytes((0x81, 0x80 | 126)) + len(text).to_bytes(2, "big") + bytes(4) + text)
        async with page(url) as seen:
            await seen.say(ask="watch", key="a", topic="t")
            cut = asyncio.get_running_loop().time() + 40

            def told() -> bool:
                for _ in range(20):
                    writer.write(bytes(8000))
                assert asyncio.get_running_loop().time() < cut
                return "has taken nothing" in nodes[0].log

            await seen.until(told, "it is cut off", 40)
            assert seen.samples["a"]
        deaf.close()

    with group(runtime_dir, 1) as (url, nodes), participant(runtime_dir, 1, "source") as one:
        run(look(url, dds.DataWriter(one, dds.Topic(one, "t", bytes))))


@pytest.mark.slow
def test_the_daemon_starts_its_cockpit_again_and_takes_it_along(runtime_dir: Path) -> None:
    async def look(url: str) -> int:
        async with page(url) as seen:
            await seen.until(lambda: seen.members == [1], "the member")
            return int(next(one["pid"] for one in seen.state["applications"] if one["name"] == "spindle cockpit"))

    with group(runtime_dir, 1) as (url, nodes):
        path = runtime_dir / "domain-0" / "cockpit-1.url"
        assert path.stat().st_mode & 0o777 == 0o600
        pid = run(look(url))
        assert pid != nodes[0].pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: path.read_text().strip() != url, 20, "another address")
        again = url_of(runtime_dir)
        assert again.partition("#")[2] == url.partition("#")[2]  # so an open page with a fixed port goes on
        pid = run(look(again))
        nodes[0].kill()
        wait_until(lambda: not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z",
                   10, "it ends with its daemon")


@pytest.mark.slow
def test_an_address_that_is_taken_costs_the_node_nothing(runtime_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        daemon = Daemon(1, "--set", f"web.listen={port}", runtime_dir=runtime_dir)
        try:
            daemon.wait_ready()
            wait_until(lambda: f"the cockpit can't listen on 127.0.0.1:{port}" in daemon.log, 20, "it is said why")
            assert daemon.process.poll() is None
        finally:
            daemon.stop()


@pytest.mark.slow
def test_the_cockpit_of_a_daemon_runs_no_file_of_the_directory_it_was_started_in(
        runtime_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end with that file's error; and where others may write there, do what they like."""
    (tmp_path / "aiohttp.py").write_text("raise SystemExit(7)\n")
    monkeypatch.chdir(tmp_path)

    async def look(url: str) -> None:
        async with page(url) as seen:
            await seen.until(lambda: seen.members == [1], "the member")

    with group(runtime_dir, 1) as (url, nodes):
        run(look(url))
        assert "the cockpit has ended" not in nodes[0].log
