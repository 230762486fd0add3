"""Goal: one user's applications can't use up a node or the group, are told the limit, and get back what they give back.

Method: quotas alone with given times; a stand-in node to which this user is one of those who are limited.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spindle.applications.quotas import CHANGES_AT_ONCE_S, Quota, Quotas
from spindle.client.attaching import attach
from spindle.client.embedding import embed
from spindle.config.settings import AccessRule, NodeConfig
from spindle.errors import AccessDenied, SpindleError, TopicLimit
from spindle.group.layout import sender_bytes
from spindle.group.topics import TopicSpec
from spindle.links import Links
from spindle.security.access import NetworkPeer, PeerCredentials, Permissions
from spindle.security.identity import Identity
from tests.spindle.stand_in import StandInNode
from tests.support import wait_until


@contextlib.contextmanager
def limited(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, **config: Any) -> Iterator[StandInNode]:
    """A node that takes this user for one who may only attach."""
    monkeypatch.setattr(NodeConfig, "is_node_user", lambda self, uid: False)
    with StandInNode(runtime_dir / "node.sock", NodeConfig(**config)) as node:
        yield node


def test_applications_of_a_user(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the limit holds, names its key, and a place that is given back can be taken."""
    with limited(runtime_dir, monkeypatch, max_apps_per_user=2) as node:
        first, second = node.session(), node.session()
        with pytest.raises(SpindleError, match=r"has 2 applications.*max_apps_per_user"):
            node.session()
        first.close()
        wait_until(lambda: len(node.attachments.apps) == 1)
        node.session().close()
        second.close()


def test_topics_of_a_user(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the limit on topics is the user's, over all his applications; topics of others and known ones are free."""
    with limited(runtime_dir, monkeypatch, max_topics_per_user=3) as node:
        with node.session() as session, node.session() as other:
            for name in ("a", "b"):
                session.declare_topic(TopicSpec(name))
            other.declare_topic(TopicSpec("c"))
            for one in (session, other):
                with pytest.raises(TopicLimit, match=r"'d': user \d+ has declared 3 topics.*max_topics_per_user"):
                    one.declare_topic(TopicSpec("d"))
                one.declare_topic(TopicSpec("a"))
        with node.session() as later, pytest.raises(TopicLimit):
            later.declare_topic(TopicSpec("d"))


def test_memory_of_a_user(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: rings of topics and inboxes count together; what is closed, or failed, is given back."""
    with limited(runtime_dir, monkeypatch, max_bytes_per_user=4 << 20) as node, node.session() as session:
        with pytest.raises(TopicLimit, match=r"4 MiB.*max_bytes_per_user"):
            session.declare_topic(TopicSpec("large", size_max=1 << 20, window=16))
        session.declare_topic(TopicSpec("small", size_max=1000, window=16))
        for _ in range(3):
            with contextlib.closing(session.open_writer("small", slots=2000)):
                with pytest.raises(TopicLimit, match="max_bytes_per_user"):
                    session.open_writer("small", slots=2500)


def test_endpoints_of_a_user(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: over all his applications; an application that goes gives all back."""
    with limited(runtime_dir, monkeypatch, max_endpoints_per_user=3) as node, node.session() as session:
        session.declare_topic(TopicSpec("t"))
        for _ in range(3):
            with node.session() as other:
                held = [session.open_writer("t"), other.open_writer("t"),
                        other.open_reader("t", keep_all=False, from_history=False)]
                with pytest.raises(TopicLimit, match=r"has 3 readers and writers.*max_endpoints_per_user"):
                    session.open_writer("t")
            held[0].close()
            wait_until(lambda: not node.open_ports)


def test_who_may_be_a_node_is_not_limited(runtime_dir: Path) -> None:
    config = NodeConfig(max_topics_per_user=1, max_apps_per_user=1, max_endpoints_per_user=1)
    with StandInNode(runtime_dir / "node.sock", config) as node, node.session() as one, node.session() as other:
        for name in ("a", "b"):
            one.declare_topic(TopicSpec(name))
        with contextlib.closing(one.open_writer("a")), contextlib.closing(other.open_writer("b")):
            pass


def test_changes_that_come_too_fast_wait() -> None:
    """Goal: a burst goes at once; then changes begin at the rate and no faster, and time gives all back."""
    quota = Quota("user 7", NodeConfig(max_changes_per_user_s=10))
    due = [quota.change_due_in_s(100.0) for _ in range(70)]
    assert due[:50] == [0.0] * 50 and CHANGES_AT_ONCE_S == 5.0
    assert due[50:] == pytest.approx([0.1 * k for k in range(1, 21)])
    assert quota.change_due_in_s(101.0) == pytest.approx(1.1)
    assert quota.change_due_in_s(200.0) == 0.0


def test_a_topic_on_which_the_group_decides_counts_already() -> None:
    """Goal: many declared at once are not more than the limit; one that is refused counts no more, nor one that the
    group has no longer."""
    quota = Quota("user 7", NodeConfig(max_topics_per_user=2))
    spec = TopicSpec("a", size_max=100, window=8)
    with quota.declaring(spec, []), quota.declaring(TopicSpec("b", size_max=100, window=8), []):
        with pytest.raises(TopicLimit), quota.declaring(TopicSpec("c", window=8), []):
            raise AssertionError
    assert quota.topics == {"a": sender_bytes(spec), "b": sender_bytes(spec)}
    with pytest.raises(RuntimeError), quota.declaring(TopicSpec("c", window=8), ["a"]):
        raise RuntimeError
    assert set(quota.topics) == {"a"}


def test_whose_quota_it_is() -> None:
    """Goal: by user here, by name or else by address elsewhere; and it isn't forgotten while there is something."""
    quotas = Quotas(NodeConfig())

    def user(uid: int) -> PeerCredentials:
        return PeerCredentials(1, uid, uid, frozenset())

    assert quotas.of(user(0)) is None
    one = quotas.of(user(54321))
    assert one is not None and one is quotas.of(user(54321)) and one is not quotas.of(user(54322))
    named = quotas.of(NetworkPeer("192.0.2.1:5", Identity("pilot", "application")))
    assert named is not None and named is quotas.of(NetworkPeer("192.0.2.9:6", Identity("pilot", "application")))
    assert quotas.of(NetworkPeer("192.0.2.1:5", Identity("n1", "node"))) is None
    plain = quotas.of(NetworkPeer("192.0.2.1:5"))
    assert plain is not None and plain is quotas.of(NetworkPeer("192.0.2.1:6")) and plain is not named
    plain.change_due_in_s(time.monotonic())
    quotas.of(user(1))
    assert quotas.of(NetworkPeer("192.0.2.1:6")) is plain


# --- what is announced, and what is shown


def test_announcements_are_their_application_s(runtime_dir: Path) -> None:
    """Goal: nobody replaces or withdraws what another application has announced; its own it may announce anew. Method:
    a second application opens a writer under the guid of the first one's, and closes it."""
    with StandInNode(runtime_dir / "node.sock") as node, node.session("one") as one, node.session("two") as two:
        one.declare_topic(TopicSpec("t"))
        mine = one.open_writer("t", guid=b"g" * 16)
        with pytest.raises(AccessDenied, match="another application"):
            two.open_writer("t", guid=b"g" * 16)
        wait_until(lambda: len(node.open_ports) == 1)
        assert node.announced[b"g" * 16].app_name == "one"
        again = one.open_reader("t", keep_all=False, from_history=False, guid=b"g" * 16)
        mine.close()
        wait_until(lambda: len(node.open_ports) == 1)
        assert not node.announced[b"g" * 16].is_writer, "the newer one stays announced"
        again.close()
        wait_until(lambda: not node.announced)
        with contextlib.closing(two.open_writer("t", guid=b"g" * 16)):
            assert node.announced[b"g" * 16].app_name == "two"


def test_the_status_shows_what_rights_show(runtime_dir: Path) -> None:
    """Goal: topics and other users' applications are hidden from who may not know of the topics. Method: the status as
    a stranger with a rule, as the own user, and without rules."""
    stranger = PeerCredentials(1, 54321, 54321, frozenset({54321}))
    rule = AccessRule(uid=54321, publish=("public/*",), subscribe=("public/*",))
    config = NodeConfig(allow_uids=(54321,), access_rules=(rule,))
    with StandInNode(runtime_dir / "node.sock", config) as node, node.session("one") as one, node.session("two") as two:
        topics = [{"name": "public/a"}, {"name": "secret", "journal": {"files": 3}}]
        node.status = lambda: {"topics": [dict(topic) for topic in topics]}  # type: ignore[method-assign]
        for name in ("public/a", "secret"):
            one.declare_topic(TopicSpec(name))
            one.open_writer(name)
        two.open_writer("secret")
        shown = node.attachments.status_for(Permissions(config, stranger))
        assert [topic["name"] for topic in shown["topics"]] == ["public/a"]
        assert [(app["name"], app["writers"]) for app in shown["applications"]] == [("one", ["public/a"])]
        for everything in (two.status(), node.attachments.status_for(Permissions(NodeConfig(allow_uids=(54321,)),
                                                                                 stranger))):
            assert len(everything["topics"]) == 2
            assert [app["writers"] for app in everything["applications"]] == [["public/a", "secret"], ["secret"]]


def test_links_of_a_user(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the limits on links and memory are the user's, over all his programs, and what is closed is given back."""
    config = NodeConfig(runtime_dir=runtime_dir, max_links_per_user=3, max_bytes_per_user=8 << 20)
    with embed(config=config) as own:
        monkeypatch.setattr(NodeConfig, "is_node_user", lambda self, uid: False)  # of those who attach now
        with attach(runtime_dir=runtime_dir, embedded=True) as first, \
                attach(runtime_dir=runtime_dir, embedded=True) as second:
            one, two = Links(first), Links(second)
            held = [one.open(0), one.listen(1), two.open(0)]
            for links in (one, two):
                with pytest.raises(SpindleError, match=r"has 3 links open, the limit: .*max_links_per_user"):
                    links.listen(2)
            Links(own).listen(2).close()
            held[1].close()
            two.listen(2).close()
            with two.offer("large", 4 << 20), pytest.raises(TopicLimit, match="links and regions, the limit is 8 MiB"):
                one.offer("too large", 4 << 20)
            one.offer("too large", 4 << 20).end()
        with attach(runtime_dir=runtime_dir, embedded=True) as later:
            Links(later).offer("larger", 6 << 20).end()
