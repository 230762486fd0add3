"""Goal: rules of [access] hold for links as docs/links.md says: for what is opened, and for what a program submits
afterwards by itself.

Method: a node in this process, with rules about this user.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spindle.client.embedding import embed
from spindle.client.session import Session
from spindle.config.settings import AccessRule, NodeConfig
from spindle.errors import AccessDenied, LinkError
from spindle.links import Link, Links


@contextmanager
def ruled(runtime_dir: Path, publish: tuple[str, ...], subscribe: tuple[str, ...]) -> Iterator[Session]:
    rule = AccessRule(uid=os.getuid(), publish=publish, subscribe=subscribe)
    with embed(config=NodeConfig(runtime_dir=runtime_dir, access_rules=(rule,))) as session:
        yield session


def sends(link: Link, port: int) -> str:
    """How a message completes that the program submits past its API."""
    link.user.send(8, link.buffer, port=port, cookie=99)
    while True:
        link.user.wait(1.0)
        for cookie, status, value in link.user.take():
            if cookie == 99:
                return f"{status}: {value}" if status == "wrong" else status


def test_regions_follow_the_rules_about_topics_of_their_names(runtime_dir: Path) -> None:
    with ruled(runtime_dir, ("both/*", "publish"), ("both/*", "subscribe")) as session:
        links = Links(session)
        for name in ("both/a", "publish", "subscribe"):
            links.offer(name, 64, atomics=True)
        with pytest.raises(AccessDenied, match="other"):
            links.offer("other", 64)
        with links.open(session.node_id) as link:
            assert link.region("both/a").read(0, 8) == bytes(8)
            assert link.region("both/a", change=True).fetch_add(0, 1) == 0
            assert link.region("subscribe").read(0, 8) == bytes(8)
            for name, change in (("publish", False), ("publish", True), ("subscribe", True), ("other", False)):
                with pytest.raises(AccessDenied, match=name):
                    link.region(name, change=change)
            reads = link.region("both/a")  # without `change`, whoever asks past the API is refused
            for ask in (lambda: reads.fetch_add(0, 1), lambda: reads.write(0, bytes(8)),
                        lambda: reads.compare_swap(0, 1, 2)):
                with pytest.raises(LinkError):
                    ask()
            assert reads.read(0, 8) == (1).to_bytes(8, "little")


def test_who_listens_subscribes_and_who_sends_publishes(runtime_dir: Path) -> None:
    with ruled(runtime_dir, ("port/7", "port/9"), ("port/7", "port/8")) as session:
        links, node = Links(session), session.node_id
        with pytest.raises(AccessDenied, match="port/9"):
            links.listen(9)
        with links.listen(7) as seven, links.listen(8) as eight:
            with pytest.raises(AccessDenied, match="port/8"):
                links.open(node, port=8)
            with links.open(node, port=7) as link:
                link.send(b"allowed", 7)
                assert (seven.receive() or pytest.fail("nothing came")).data == b"allowed"
                for port in (8, 9, 77):
                    with pytest.raises(LinkError, match="no access rule of the node"):
                        link.send(b"not", port)
                    assert sends(link, port) == "wrong: no access rule of the node lets its user do that"
            with links.open(node) as link:  # names none: it sends to links only
                for port in (7, 8, 65535):
                    assert sends(link, port) == "wrong: no access rule of the node lets its user do that"
                with pytest.raises(LinkError, match="nobody"):
                    link.send(b"by the link's id", to=eight._end.id)
            assert eight.receive(0) is None and seven.receive(0) is None


def test_an_answer_needs_no_rule_about_the_ports_of_who_called(runtime_dir: Path) -> None:
    with ruled(runtime_dir, ("port/7",), ("port/7",)) as session:
        links = Links(session)
        with links.listen(7) as port, links.open(session.node_id, port=7) as link:
            import threading

            def serve() -> None:
                message = port.receive()
                assert message is not None
                port.answer(message, message.data[::-1])

            thread = threading.Thread(target=serve)
            thread.start()
            assert link.call(7, b"abc") == b"cba"
            thread.join()


def test_who_may_send_to_all_ports_names_none(runtime_dir: Path) -> None:
    with ruled(runtime_dir, ("port/*",), ("port/*",)) as session:
        links = Links(session)
        with links.listen(7) as seven, links.open(session.node_id) as link:
            link.send(b"one", 7)
            assert (seven.receive() or pytest.fail("nothing came")).data == b"one"
            assert sends(link, 9) == "nobody"
