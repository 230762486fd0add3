"""Goal: who is interrupted by a signal while he opens or closes a link, a port or a region leaves nothing behind that
nobody can close any more, and his session goes on.

Method: a node within the test, interruptions at every place where a signal's handler may run; then all that a program
may have is opened.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spindle.client import embed
from spindle.client.session import Session
from spindle.errors import ConfigError
from spindle.links import Links, program
from tests.interrupts import Alarm, interrupted_everywhere
from tests.support import wait_until

LINKS_MAX, REGIONS_MAX = 256, 64


@pytest.fixture
def session(runtime_dir: Path) -> Iterator[Session]:
    with embed() as made:
        yield made


def room(make: Callable[[int], contextlib.AbstractContextManager[object]]) -> int:
    """How many there may be."""
    with contextlib.ExitStack() as stack:
        for number in itertools.count():
            try:
                stack.enter_context(make(number))
            except ConfigError:
                return number
    raise AssertionError("there is always room")


def interrupted(act: Callable[[], object]) -> None:
    act()  # what that imports is there: interrupted, an import leaves locks of Python's own taken
    assert interrupted_everywhere(act, lambda _: None, Alarm) > 20
    gc.collect()


def test_links_are_given_back(session: Session) -> None:
    links = Links(session)

    def act() -> None:
        with links.open(session.node_id, port=7):
            pass

    interrupted(act)
    interrupted(lambda: links.open(session.node_id, port=7).close())
    wait_until(lambda: room(lambda _: links.open(session.node_id, port=7)) == LINKS_MAX)


def test_what_is_forgotten_is_given_back(session: Session) -> None:
    links = Links(session)
    for _ in range(2 * LINKS_MAX):
        links.open(session.node_id, port=7)
        gc.collect(0)
    wait_until(lambda: room(lambda _: links.open(session.node_id, port=7)) == LINKS_MAX)


def test_a_port_is_free_again(session: Session) -> None:
    links = Links(session)

    def act() -> None:
        with links.listen(7):
            pass

    interrupted(act)

    def listens() -> bool:
        with contextlib.suppress(ConfigError), links.listen(7):
            return True
        return False

    wait_until(listens)


def test_regions_are_ended(session: Session) -> None:
    """But those of whose `with` nothing had begun when it was interrupted: they can't be told from one that is kept
    without."""
    links, numbers, unbegun = Links(session), itertools.count(), itertools.count()

    def act() -> None:
        with links.offer(f"interrupted {next(numbers)}", 8):
            pass

    def look(error: BaseException) -> None:
        if any(one.name == "__enter__" and one.filename == program.__file__
               for one in traceback.extract_tb(error.__traceback__)):
            next(unbegun)

    act()
    assert interrupted_everywhere(act, look, Alarm) > 20
    gc.collect()
    left = REGIONS_MAX - next(unbegun)
    wait_until(lambda: room(lambda number: links.offer(f"{number} of {next(numbers)}", 8)) == left)
