"""Goal: the page, in a real browser, shows within a second what happens to a group; nothing in it is broken, on a
laptop and on a phone, dark and light; and whoever has no rights sees nothing.

Method: Chromium without a window, driven by selenium, against real daemons and the programs of examples/. Skipped, with
the reason, where there is no Chromium; `make test-web` installs it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dds
from spindle.client import attach
from spindle.group.topics import TopicSpec
from tests.spindle.cockpit.browser import LAPTOP, PHONE, browser, errors, save, unavailable
from tests.spindle.cockpit.support import group
from tests.spindle.daemons import Daemon
from tests.support import wait_until

REASON = unavailable()
pytestmark = [pytest.mark.skipif(bool(REASON), reason=REASON), pytest.mark.slow]
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TIMEOUT_S = 30.0

# Watches the page from inside: when was it first so, by the page's own clock?
WATCH = """
const [name, condition] = arguments;
globalThis.seen ??= {};
const test = new Function(`return ${condition}`);
const look = () => test() ? seen[name] = Date.now() / 1000 : setTimeout(look, 5);
look();
"""


def shown(driver: Any, expression: str, what: str = "", timeout_s: float = TIMEOUT_S) -> Any:
    """Waits until the JavaScript expression is something true."""
    return wait_until(lambda: driver.execute_script(f"return {expression}"), timeout_s, what or expression, 0.05)


def text_of(selector: str) -> str:
    return f"document.querySelector({selector!r})?.textContent ?? ''"


@contextmanager
def flight(runtime_dir: Path) -> Iterator[None]:
    """The programs of examples/ on three nodes; the flight has begun."""
    started: list[subprocess.Popen[bytes]] = []

    def start(node: int, script: str, *options: str) -> None:
        started.append(subprocess.Popen(
            [sys.executable, str(EXAMPLES / script), "--json", *options], stdout=subprocess.DEVNULL,
            env={**os.environ, "SPINDLE_RUNTIME_DIR": str(runtime_dir), "SPINDLE_NODE_ID": str(node)}))

    try:
        for node in (1, 2, 3):
            start(node, "alert_monitor.py")
        play = ("--speed", "8", "--start", "3580", "--at", str(time.time() + 3))
        start(1, "air_data_publisher.py", *play)
        start(2, "attitude_publisher.py", *play)
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(15)


def journals(directory: Path) -> tuple[str, ...]:
    return ("--journal-dir", str(directory))


@contextmanager
def flying(runtime_dir: Path, tmp_path: Path, *more: str) -> Iterator[tuple[str, list[Daemon]]]:
    nodes: list[Daemon] = []
    with group(runtime_dir, 1, *more, "--name", "host1", *journals(tmp_path / "1")) as (url, first):
        try:
            for node in (2, 3):
                nodes.append(Daemon(node, "--name", f"host{node}", *journals(tmp_path / str(node)),
                                    runtime_dir=runtime_dir))
                nodes[-1].wait_ready()
            with flight(runtime_dir):
                yield url, [*first, *nodes]
        finally:
            for daemon in reversed(nodes):
                daemon.stop()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "leaves"])
def test_what_becomes_of_a_member_is_shown_within_a_second(runtime_dir: Path, how: signal.Signals) -> None:
    with group(runtime_dir, 3) as (url, nodes), browser() as driver:
        driver.get(url)
        shown(driver, f"{text_of('#whole')} === 'The group is whole'")
        assert shown(driver, "document.querySelectorAll('[data-node]').length") == 3
        gone = "missing" if how is signal.SIGKILL else "gone"
        driver.execute_script(WATCH, gone, (
            "document.querySelector('[data-node=\"3\"].missing') && document.querySelector('#timeline .bad')"
            if how is signal.SIGKILL else "!document.querySelector('[data-node=\"3\"]')"))
        nodes[2].process.send_signal(how)
        nodes[2].wait()
        told_s = time.time()  # the process has ended: what is counted begins here
        seen_s = shown(driver, f"seen.{gone}", "the page shows it")
        assert seen_s - told_s < 1.0
        title = shown(driver, text_of("#whole"))
        assert title == ("The group is not whole" if how is signal.SIGKILL else "The group is whole")
        save(driver, f"cockpit-{gone}.png")
        assert not errors(driver)


def test_the_page_says_when_its_daemon_dies_and_goes_on_when_there_is_one_again(runtime_dir: Path) -> None:
    from tests.support import free_ports

    port = f"web.listen={free_ports(1)[0]}"
    with group(runtime_dir, 2, "--set", port) as (url, nodes), browser() as driver:
        driver.get(url)
        shown(driver, f"{text_of('#whole')} === 'The group is whole'")
        driver.execute_script(WATCH, "gone", "document.querySelector('#whole').textContent === 'No connection' || "
                                             "document.querySelector('#whole').textContent === 'no connection'")
        nodes[0].kill()
        told_s = time.time()
        assert shown(driver, "seen.gone") - told_s < 1.0
        again = Daemon(1, "--set", port, runtime_dir=runtime_dir)
        try:
            again.wait_ready()
            shown(driver, f"{text_of('#whole')} === 'The group is whole'", "it goes on with the same token")
        finally:
            again.stop()


def test_topics_samples_and_plots(runtime_dir: Path, tmp_path: Path) -> None:
    with flying(runtime_dir, tmp_path) as (url, _), browser() as driver:
        driver.get(url)
        for hash_, wanted in (
                ("topics", "document.querySelectorAll('#topics tbody tr').length >= 2"),
                ("counters", "document.querySelectorAll('.card .uplot').length > 20"),
                ("topic/flight", "document.querySelectorAll('.rows tbody tr').length > 10")):
            driver.execute_script(f"location.hash = {hash_!r}")
            shown(driver, wanted)
        for view, wanted in (("tree", ".tree details[open] .leaf"), ("plot", ".samples .uplot canvas")):
            driver.execute_script(f"document.querySelector('[data-view={view}]').click()")
            shown(driver, f"document.querySelector({wanted!r}) !== null")
        shown(driver, "document.querySelectorAll('.uplot').length >= 3", "rate, latency and plot")
        # bounded, however long it is open
        rows = driver.execute_script("""
            const page = cockpit.live, watch = [...page.watches.values()][0];
            for (let k = 0; k < 3000; k++) watch.take({state: "", of: "x", count: k, lost: 0, rows: [
                {time: k, late: 0, node: 1, sequence: k, view: 1, value: {a: k, b: Math.sin(k)}}]});
            return 1;""")
        assert rows == 1
        bounded = driver.execute_script("""
            const {live, store} = cockpit, say = (type, detail) => live.dispatchEvent(new CustomEvent(type, {detail}));
            const figures = {...store, topics: {}, all: false};
            for (let k = 0; k < 3000; k++) {
                say("figures", {...figures, time: store.time + 1});
                say("happened", {entries: [{number: 1e6 + k, time: k, kind: "topic", level: "info", text: `${k}`}]});
            }
            return [store.happenings.length, Math.max(...[...store.sparks.values()].map(one => one.length)),
                    store.columns.topic[0].length];""")
        assert bounded[0] <= 500 and bounded[1] <= 40 and bounded[2] <= 900, bounded
        driver.execute_script("document.querySelector('[data-view=table]').click()")
        shown(driver, "document.querySelectorAll('.rows tbody tr').length === 100")
        assert not errors(driver)


def test_two_flight_displays_side_by_side_show_the_same(runtime_dir: Path, tmp_path: Path) -> None:
    with flying(runtime_dir, tmp_path) as (url, _), browser() as driver:
        base, _, token = url.partition("/#")
        driver.get(f"{base}/flight.html?nodes=1,3#{token}")
        shown(driver, "document.querySelectorAll('.display').length === 2")
        shown(driver, "/^the same: \\d{3,} samples$/.test(document.querySelector('#same').textContent)", "they compare")
        frames = "[...flight.displays.values()].map(one => one.frames)"
        before, began_s = driver.execute_script(f"return {frames}"), time.monotonic()
        wanted = [count + 30 for count in before]
        shown(driver, f"{frames}.every((count, at) => count >= {wanted}[at])", "they are drawn")
        assert all(one.get("speed") for one in driver.execute_script(
            "return [...flight.displays.values()].map(one => ({speed: one.flight.get('ias_kt')}))"))
        if not os.environ.get("CI"):  # a rate can't be promised on a machine that does something else meanwhile
            print(f"drawn {30 / (time.monotonic() - began_s):.0f} times a second at least")
        assert not errors(driver)
        save(driver, "cockpit-flight.png")


def test_who_has_no_token_sees_nothing(runtime_dir: Path) -> None:
    with group(runtime_dir, 1) as (url, _), attach(runtime_dir=runtime_dir) as session, browser() as driver:
        session.declare_topic(TopicSpec("secret/topic"))
        driver.get(url.partition("#")[0])
        shown(driver, f"{text_of('#whole')} === 'no access'")
        driver.execute_script("location.hash = 'topics'")
        assert "secret" not in driver.execute_script("return document.body.textContent")
        assert driver.execute_script("return cockpit.store.state") is None
        driver.get(url)  # and now with it
        driver.execute_script("location.hash = 'topics'")
        shown(driver, "document.body.textContent.includes('secret/topic')")
        assert "token" not in driver.current_url


def test_actions(runtime_dir: Path) -> None:
    with group(runtime_dir, 3, "--set", "web.actions=true") as (url, nodes), browser() as driver:
        driver.get(url)
        shown(driver, "document.querySelectorAll('[data-node=\"2\"] .acts button').length === 2")
        driver.execute_script("document.querySelector('[data-node=\"2\"] .acts button').click()")
        shown(driver, "document.querySelector('dialog').open")
        assert nodes[1].process.poll() is None
        driver.execute_script("document.querySelector('#confirm').click()")
        assert nodes[1].wait() == 0
        shown(driver, "document.querySelectorAll('[data-node]').length === 2")
        shown(driver, "document.querySelector('#timeline').textContent.includes('node 2 leaves')")


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
@pytest.mark.parametrize("dark", [True, False], ids=["dark", "light"])
def test_nothing_sticks_out(runtime_dir: Path, tmp_path: Path, size: tuple[int, int], dark: bool) -> None:
    """On every page: nothing is wider than the window, and the colours are those that were asked for."""
    with flying(runtime_dir, tmp_path, "--set", "web.actions=true") as (url, _), browser(size, dark) as driver, (
            dds.DomainParticipant(qos=dds.Qos(dds.Policy.EntityName("cabin display")), node_id=1,
                                  runtime_dir=runtime_dir)) as participant:
        topic = dds.Topic(participant, "cabin/pressure", bytes)
        ends = [dds.DataWriter(participant, topic, qos=dds.Qos(dds.Policy.Reliability.BestEffort)),
                dds.DataReader(participant, topic, qos=dds.Qos(dds.Policy.Reliability.Reliable(10**9)))]
        driver.get(url)
        pages: list[tuple[str, str]] = [
            ("overview", "document.querySelector('.attention li') && document.querySelector('.overview .uplot')"),
            ("topics", "document.querySelectorAll('#topics tbody tr').length >= 3"),
            ("topic/flight", "document.querySelectorAll('.rows tbody tr').length > 10 && "
                             "document.querySelectorAll('.uplot').length >= 2"),
            ("counters", "document.querySelector('.card .uplot')")]
        for hash_, wanted in pages:
            driver.execute_script(f"location.hash = {hash_!r}")
            shown(driver, wanted)
            # On a phone innerWidth grows with what sticks out.
            wide = driver.execute_script("return (e => [e.scrollWidth, e.clientWidth])(document.documentElement)")
            assert wide[0] <= wide[1], (hash_, wide)
            look: Callable[[str], Any] = driver.execute_script
            ground = look("return getComputedStyle(document.documentElement).backgroundColor")
            assert (sum(map(int, ground[4:-1].split(","))) < 200) == dark
            name = f"cockpit-{hash_.partition('/')[0]}-{'dark' if dark else 'light'}{'-phone' if size == PHONE else ''}"
            save(driver, f"{name}.png", "Object.values(cockpit.store.columns).some(one => one?.[0].length > 20)")
        assert not errors(driver)
        del ends
