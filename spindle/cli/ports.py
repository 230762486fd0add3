"""Topics, writers and readers for `pub` and `sub`: declared as bytes if new, adopted as they are if they exist.

Why adopt: the group keeps the first definition of a topic. A shell command that brought its own defaults would be
refused by every topic that a program has made; so what isn't said on the command line is taken from the group.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from spindle.cli.common import note
from spindle.config.settings import parse_size
from spindle.errors import TopicMismatch, TopicUnknown
from spindle.locks import Latch

if TYPE_CHECKING:
    from spindle.client import Event, ReaderHandle, Session, WriterHandle
    from spindle.group.topics import TopicInfo

LEVELS = ("unordered", "atomic", "volatile", "logged")
OPAQUE_TYPE = "bytes"  # of topics whose payload is just what was written

# What our writers and readers announce, as programs with the DDS API read it (dds.matching.matching, `encode_qos`), so
# that they match: a writer offers what the topic's level means, a reader asks for as little as can be.
WRITER_QOS: dict[str, dict[str, Any]] = {
    "unordered": {"Reliability": {"kind": "BestEffort"}},
    "atomic": {},
    "volatile": {"Durability": {"kind": "TransientLocal"}},
    "logged": {"Durability": {"kind": "Persistent"}},
}
READER_QOS: dict[str, Any] = {"Reliability": {"kind": "BestEffort"}}


class Size(click.ParamType):
    """A size in bytes: 4096, 64KiB, "1 MB"."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        size = value if isinstance(value, int) else parse_size(value)
        if size is None or size < 1:
            self.fail(f"{value!r} is not a size: write bytes, or a number with KiB, MiB, KB, MB", param, ctx)
        return size


level_option = click.option("--level", type=click.Choice(LEVELS), help="Level of a new topic. [default: atomic]")
size_max_option = click.option(
    "--size-max", type=Size(), metavar="SIZE",
    help="Slots of a new topic; larger messages cost more. [default: the node's, 16 KiB]"
)


def found(session: Session, topic: str) -> TopicInfo | None:
    """The group's topic of this name; None if nobody has declared it."""
    return next((info for info in session.topics() if info.spec.name == topic), None)


def declared(session: Session, topic: str, level: str | None, size_max: int | None) -> TopicInfo:
    """The topic, declared as bytes if it is new. Raises TopicMismatch if it exists otherwise than was asked for."""
    from spindle.group.levels import Level
    from spindle.group.topics import TopicSpec

    info = found(session, topic)
    if info is not None:
        check_wishes(info, level, size_max)
        return info
    wishes: dict[str, Any] = {}
    if level is not None:
        wishes["level"] = Level[level.upper()]
    if size_max is not None:
        wishes["size_max"] = size_max
    return session.declare_topic(TopicSpec(topic, **wishes))  # what isn't said is the node's to say


def check_wishes(info: TopicInfo, level: str | None, size_max: int | None) -> None:
    """Raise TopicMismatch if the agreed topic is not what the options say."""
    agreed = info.spec
    has = {"level": (agreed.level.name.lower(), level), "size_max": (agreed.size_max, size_max)}
    for key, (there, wanted) in has.items():
        if wanted is not None and wanted != there:
            option = "--" + key.replace("_", "-")
            raise TopicMismatch(
                f"topic {agreed.name!r} has {key} {there}, not {wanted}; without {option} it is taken as it is"
            )


def wait_for_topic(session: Session, topic: str, timeout_s: float | None, otherwise: Callable[[], bool]
                   ) -> TopicInfo | None:
    """The topic as soon as somebody declares it, or None as soon as `otherwise()`: it is in an order group. Raises
    TopicUnknown after `timeout_s`, NodeStopped without a node."""
    info = found(session, topic)
    if info is not None:
        return info
    note(f"waiting for topic {topic!r}; nobody has declared it yet (--create declares it as bytes)")
    changed = Latch()
    session.add_listener(lambda _: changed.set())
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        changed.clear()
        info = found(session, topic)
        if info is not None or otherwise():
            return info
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TopicUnknown(
                f"nobody declared topic {topic!r} within {timeout_s:g} s; `spindle topics` shows what there is"
            )
        changed.wait(left)


def wait_for_readers(session: Session, topic: str, readers: int | None, grace_s: float) -> None:
    """Return when `readers` readers are announced; None waits for one, but not longer than `grace_s`."""
    wanted = 1 if readers is None else readers
    if wanted == 0:
        return
    changed = Latch()

    def on_event(event: Event) -> None:
        if event.endpoint is None or event.endpoint.topic == topic:
            changed.set()

    session.add_listener(on_event)
    deadline = time.monotonic() + grace_s
    told = False
    while True:
        changed.clear()
        there = sum(not one.is_writer for one in session.endpoints(topic))
        if there >= wanted:
            return
        if readers is None:
            if time.monotonic() >= deadline:
                note(f"nobody subscribes to {topic!r}; publishing anyway (--readers 1 waits)")
                return
            changed.wait(max(0.0, deadline - time.monotonic()))
        else:
            if not told:
                told = True
                note(f"waiting for {wanted} subscriber{'' if wanted == 1 else 's'} of {topic!r}, {there} there")
            changed.wait()


def open_writer(session: Session, info: TopicInfo, keep_unacknowledged: bool = False) -> WriterHandle:
    """An announced writer."""
    qos = WRITER_QOS[info.spec.level.name.lower()]
    return session.open_writer(info.spec.name, guid=os.urandom(16), endpoint=announcement(qos),
                               keep_unacknowledged=keep_unacknowledged)


def open_reader(session: Session, info: TopicInfo, keep_all: bool, from_history: bool) -> ReaderHandle:
    """An announced reader."""
    return session.open_reader(
        info.spec.name,
        keep_all=keep_all,
        from_history=from_history,
        guid=os.urandom(16),
        endpoint=announcement(READER_QOS),
    )


def announcement(qos: dict[str, Any]) -> bytes:
    """Policies as an endpoint carries them."""
    return json.dumps({"qos": qos}, separators=(",", ":")).encode()
