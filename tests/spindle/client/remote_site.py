"""A site of daemons for tests of sessions with nodes on other hosts."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spindle.client import ReaderHandle, Session
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from tests.spindle.hosts import Host, hosts
from tests.spindle.site import Site

LONG_S = 20.0


def options(**settings: Any) -> list[str]:
    return [f"{name.replace('__', '.')}={json.dumps(value)}" for name, value in settings.items()]


@contextlib.contextmanager
def one_host(directory: Path, *settings: str) -> Iterator[Host]:
    with hosts(directory, 1, *settings) as (host,):
        yield host


def with_certificates(site: Site) -> list[str]:
    found = site.settings()
    return options(network__certificate=str(found["certificate"]), network__key=str(found["certificate_key"]),
                   network__authority=str(found["authority"]))


def keys_of(site: Site, name: str = "plotter") -> dict[str, Any]:
    certificate, key = site.files(name, site.application(name))
    return {"certificate": certificate, "key": key, "authority": site.authority_file}


def declare(session: Session, name: str = "t", level: Level = Level.ATOMIC, **more: Any) -> None:
    session.declare_topic(TopicSpec(name, level=level, **{"size_max": 1000, **more}))


def more(got: list[bytes], reader: ReaderHandle, count: int = 10_000) -> list[bytes]:
    """`got` with what the reader has."""
    got.extend(reader.log.take(count))
    return got
