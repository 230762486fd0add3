"""Goal: one contact that is of no use (another program at its port, a node with other keys) keeps nobody from joining
through the others, and never makes a second group; who gets on with none hears why at once.

Method: nodes with a secret, as hosts that reach each other over loopback; in a contact's place an HTTP server, or a
node with another secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from spindle.config.settings import NodeConfig
from spindle.errors import AccessDenied, ProtocolMismatch
from spindle.joining.contacts import LOOKING, WAITING, Answer, Answers, may_form
from tests.spindle.node.test_node import until
from tests.spindle.transport.test_network import Site, members, with_site

Useless = Callable[[Site, int], contextlib.AbstractAsyncContextManager[None]]


def secret(directory: Path, name: str) -> Path:
    path = directory / name
    if not path.exists():
        path.write_text(secrets.token_hex(32))
        path.chmod(0o600)
    return path


@contextlib.asynccontextmanager
async def another_program(site: Site, place: int) -> AsyncIterator[None]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    host, port = site.addresses[place].split(":")
    server = await asyncio.start_server(answer, host, int(port))
    try:
        yield
    finally:
        server.close()
        await server.wait_closed()


@contextlib.asynccontextmanager
async def other_keys(site: Site, place: int) -> AsyncIterator[None]:
    node = site.node(place, contacts=(), secret=secret(site.directory, "another"))
    await node.start()
    try:
        yield
    finally:
        await node.stop()


useless = pytest.mark.parametrize("stranger", [another_program, other_keys])
SAYS = {another_program: "does not speak TLS as nodes do", other_keys: "another secret"}


def with_secret(directory: Path, **config: Any) -> Callable[..., Callable[[Path], None]]:
    """Four hosts of which the first three are contacts, the first of all the one that is to be of no use."""
    return with_site(4, contacts=3, secret=secret(directory, "secret"), **config)


@useless
def test_who_is_let_in_by_one_contact_needs_no_other(
        runtime_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, stranger: Useless) -> None:
    @with_secret(tmp_path)
    async def body(site: Site) -> None:
        await site.start(1, 2)
        async with stranger(site, 0):
            caplog.clear()
            (newcomer,) = await site.start(3)
            await until(lambda: members(newcomer) == [2, 3, 4], "the newcomer is in")
        warned = [one.getMessage() for one in caplog.records if "is of no use to this node" in one.getMessage()]
        assert len(warned) == 1 and site.addresses[0] in warned[0] and SAYS[stranger] in warned[0]

    body(runtime_dir)


@useless
def test_no_group_is_formed_beside_a_contact_that_may_be_of_one(
        runtime_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, stranger: Useless) -> None:
    caplog.set_level("INFO", "spindle.node")

    @with_secret(tmp_path, join_timeout_s=30.0)
    async def body(site: Site) -> None:
        async with stranger(site, 0):
            nodes = [site.node(1), site.node(2)]
            starting = [asyncio.ensure_future(node.start()) for node in nodes]
            await until(lambda: caplog.text.count("2 of 3 contacts are there, none is formed while") == 2, "both wait")
            assert not any(node._view for node in nodes)
        await asyncio.gather(*starting)  # it has gone
        assert members(nodes[0]) == [2, 3]

    body(runtime_dir)


@useless
def test_who_gets_on_with_no_contact_hears_why_at_once(runtime_dir: Path, tmp_path: Path, stranger: Useless) -> None:
    @with_secret(tmp_path, join_timeout_s=1000.0)
    async def body(site: Site) -> None:
        async with stranger(site, 0), another_program(site, 1), another_program(site, 2):
            with pytest.raises((AccessDenied, ProtocolMismatch), match=SAYS[stranger]):
                await site.start(3)
            await site.nodes[-1].stop()

    body(runtime_dir)


@pytest.mark.parametrize("form", ["majority", "all", "alone"])
def test_who_may_form_a_group(form: str) -> None:
    config = NodeConfig(node_id=1, listen="a:1", contacts=("a:1", "b:1", "c:1"), form=form)
    there = (Answer(1, 2, 7), Answer(2, 3, 8))
    assert may_form(config, (1, 9), Answers(there, {}))
    assert not may_form(config, (1, 9), Answers(there, {}, {"d:1": ProtocolMismatch("it is another program")}))


@pytest.mark.parametrize("form", ["majority", "all"])
@pytest.mark.parametrize("lists", [["abc", "abc", "abc"], ["abc", "bca", "cab"], ["cba", "acb", "bac"]], ids=str)
def test_one_of_those_that_are_there_forms_the_group(form: str, lists: list[str]) -> None:
    """Whatever order each one's file has, and though two have the same id, by mistake."""
    lives = {"a": (3, 7), "b": (2, 9), "c": (2, 8)}
    forming = []
    for own, order in zip("abc", lists, strict=True):
        contacts = tuple(f"{one}:1" for one in order)
        config = NodeConfig(node_id=lives[own][0], listen=f"{own}:1", contacts=contacts, form=form)
        found = Answers(tuple(Answer(order.index(one), *lives[one]) for one in "abc" if one != own), {})
        forming += [own] if may_form(config, lives[own], found) else []
        assert not may_form(config, None, found), "it is no contact"
    assert forming == ["c"]


def test_nobody_waits_for_one_that_only_joins_and_forms_a_group() -> None:
    """Its own file doesn't name it any more, or not yet; that of another one does."""
    config = NodeConfig(node_id=3, listen="c:1", contacts=("a:1", "b:1", "c:1"))
    only_joins, other = Answer(0, 1, 7, WAITING), Answer(1, 4, 8)
    assert may_form(config, (3, 9), Answers((only_joins, other), {}))
    assert not may_form(config, (5, 9), Answers((only_joins, other), {}))
    assert not may_form(config, (3, 9), Answers((dataclasses.replace(only_joins, standing=LOOKING), other), {}))
