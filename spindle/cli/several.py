"""`spindle sub` of several topics, or of all that are like a pattern, those that come later included.

Why a thread for each topic: each of them follows its topic from node to node and waits for it by itself, as a command
on one topic does. They share the session, and one participant for topics with a type, as long as the node is there.

Rules: what one topic delivers is printed in its order; between topics there is none, unless they are in one order group
and a program reads them as such. A topic that can't be read is named, and the others go on; unless the rules forbid it,
it is tried again: nodes that it waits for come back, disks get room, programs declare it otherwise.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from spindle.cli import typed
from spindle.cli.common import Target, is_like, note, put
from spindle.cli.following import ATTEMPT_S, PAUSE_S, Following
from spindle.cli.ports import OPAQUE_TYPE, found
from spindle.errors import AccessDenied, NoDaemon, NodeStopped, SpindleError
from spindle.locks import Latch
from spindle_core.errors import CoreError

if TYPE_CHECKING:
    from dds.dynamic import TopicType
    from spindle.client import Session

TAKE_MAX = 256
RETRY_S = 5.0  # until a topic that could not be read is tried again
MAGIC = frozenset("*?[")


def is_pattern(topic: str) -> bool:
    return bool(set(topic) & MAGIC)


class Several:
    """Reads all topics that are named, or like one of the patterns; `run()` once.

    style     "text", "lines", "hex", "json" or "raw"
    printer   gives the function that makes bytes of a sample, by style and topic; for topics without a type
    """

    def __init__(self, target: Target, session: Session, topics: Sequence[str], style: str, printer: Any, *,
                 count: int | None, timeout_s: float | None, history: bool, keep_all: bool, again: bool) -> None:
        self._target, self._session, self._wanted, self._style = target, session, topics, style
        self._printer, self._count, self._timeout_s = printer, count, timeout_s
        self._history, self._keep_all, self._again = history, keep_all, again
        self._lock = threading.Lock()
        self._changed = Latch()
        self._reading: set[str] = set()
        self._refused: dict[str, str] = {}  # why topics could not be read
        self._retry: dict[str, float] = {}  # when they are tried again
        self._readers: list[Following] = []
        self._typed_lost: dict[str, list[int]] = {}  # by topic, of each of its readers
        self._participant: Any = None
        self._open = ExitStack()
        self._seen = 0
        self._last_s = time.monotonic()
        self._error: Exception | None = None
        self._over = False

    def run(self) -> tuple[int, int]:
        """Prints until count or timeout; returns (samples printed, samples lost). Raises NodeStopped if the node goes
        and it shall not go on, KeyboardInterrupt."""
        self._session.add_listener(lambda _: self._changed.set())
        told = False
        try:
            while not self._over and self._error is None:
                self._changed.clear()
                self._begin_new()
                if not self._reading and not told:
                    told = True
                    note(f"waiting for topics like {' '.join(map(repr, self._wanted))}; there is none yet")
                left_s = None if self._timeout_s is None else self._last_s + self._timeout_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    break
                wait_s = [PAUSE_S] if self._session.gone else [max(0.0, at - time.monotonic())
                                                               for at in list(self._retry.values())]
                self._changed.wait(min([*wait_s, left_s] if left_s is not None else wait_s, default=None))
        finally:
            with self._lock:
                self._over = True
            for reader in self._readers:
                reader.stay()
            self._open.close()
        if self._error is not None:
            raise self._error
        lost = sum(reader.lost for reader in self._readers) + sum(map(sum, self._typed_lost.values()))
        return self._seen, lost

    def _begin_new(self) -> None:
        """A thread for each topic that nobody reads yet."""
        try:
            if self._session.gone:
                if not self._again:
                    raise self._session.end_error or NodeStopped("the node has gone away")
                self._session = self._target.attach("spindle sub", ATTEMPT_S)
                self._session.add_listener(lambda _: self._changed.set())
            names = topic_names(self._session, self._history)
        except AccessDenied:
            raise
        except (SpindleError, OSError) as error:
            if not self._again or not (self._session.gone or isinstance(error, (NoDaemon, OSError))):
                raise
            return  # looked for again
        now = time.monotonic()
        with self._lock:
            new = [name for name in names if name not in self._reading and is_like(name, self._wanted)
                   and self._retry.get(name, now) <= now]
            self._reading.update(new)
            self._retry = {name: at for name, at in self._retry.items() if at > now}
        for name in new:
            if sys.stderr.isatty() and name not in self._refused:
                note(f"reading {name!r}")
            threading.Thread(target=self._read, args=(name, self._session), name=f"sub {name}", daemon=True).start()

    # --- one topic, on its thread

    def _read(self, name: str, session: Session) -> None:
        try:
            info = found(session, name)
            if info is not None and (info.spec.type_name == OPAQUE_TYPE or self._style in ("hex", "raw")):
                self._read_bytes(name, session, info)
            elif self._style in ("hex", "raw"):
                note(f"{name}: its samples come in packets of an order group; --format text, lines or json prints them")
            else:
                self._read_typed(name, session, info)
        except (NodeStopped, ConnectionError) as error:
            if self._again and session.gone and error.__cause__ is None:
                self._try_again(name, 0.0)  # at the next node
            else:
                self._fail(error)
        except (SpindleError, CoreError, OSError, click.ClickException) as error:
            if self._over:
                return
            text = error.format_message() if isinstance(error, click.ClickException) else str(error)
            if self._refused.get(name) != text:
                self._refused[name] = text
                note(f"{name}: {text}; the others go on")
            if not isinstance(error, (AccessDenied, click.ClickException)):
                self._try_again(name, RETRY_S)
        except Exception as error:  # a defect must not go unseen on a thread
            self._fail(error)

    def _try_again(self, name: str, pause_s: float) -> None:
        with self._lock:
            self._reading.discard(name)
            self._retry[name] = time.monotonic() + pause_s
        self._changed.set()

    def _fail(self, error: Exception) -> None:
        with self._lock:
            if not self._over and self._error is None:
                self._error = error
        self._changed.set()

    def _read_bytes(self, name: str, session: Session, info: Any) -> None:
        printer = self._printer(self._style, name)
        with Following(self._target, session, info, self._keep_all, self._history, self._again) as reader:
            with self._lock:
                if self._over:
                    return
                self._readers.append(reader)
            for pairs in reader.batches(TAKE_MAX, None):
                if not self._put([printer(payload, of) for payload, of in pairs]):
                    return

    def _read_typed(self, name: str, session: Session, info: Any) -> None:
        import dds

        type_name = typed.ORDER_GROUP if info is None else info.spec.type_name
        of, order = typed.wait_for_type(session, name, type_name, None)
        with self._lock:
            if self._over:
                return
            if self._participant is None:
                self._participant = self._open.enter_context(
                    typed.participant(self._target, session, "spindle sub", self._again))
        try:
            self._print_typed(name, of, order)
        except dds.DDSNodeLost as error:
            raise NodeStopped(error.msg) from error
        except dds.DDSException as error:
            raise SpindleError(str(error)) from error

    def _print_typed(self, name: str, of: TopicType, order: str) -> None:
        reader = typed.open_reader(self._participant, name, of, order, self._keep_all, self._history)
        lost = self._typed_lost.setdefault(name, [])
        lost.append(0)
        form = typed.FORMS[self._style]
        try:
            for first in reader.take_iter():
                samples = [first, *reader.take(TAKE_MAX)]
                lost[-1] = reader.get_sample_lost_status().total_count
                lines = [form(name, typed.as_object(of, one), one.sample_info) for one in samples]
                if self._style == "text":
                    lines = [f"{name}  {line}" for line in lines]
                if not self._put([f"{line}\n".encode() for line in lines]):
                    return
        finally:
            reader.close()

    def _put(self, lines: Iterable[bytes]) -> bool:
        """Prints samples, as many as are wanted still; False if no more are."""
        with self._lock:
            if self._over:
                return False
            printed = list(lines)
            if self._count is not None:
                printed = printed[:self._count - self._seen]
            try:
                put(b"".join(printed))
            except OSError as error:
                self._error = self._error or error
                self._over = True
            self._seen += len(printed)
            self._last_s = time.monotonic()
            if self._seen == self._count:
                self._over = True
            over = self._over
        if over:
            self._changed.set()
        return not over


def topic_names(session: Session, kept: bool = False) -> list[str]:
    """The topics of the group as programs know them: an order group's one by one. `kept`: those, too, that nobody has
    open, and of which the node keeps samples."""
    from spindle.cli.topics import topic_in_group

    known = session.topics()
    names = {info.spec.name for info in known if info.spec.type_name != typed.ORDER_GROUP}
    names |= {name for one in session.endpoints() if (name := topic_in_group(one.endpoint))}
    orders = [info.spec.name for info in known if info.spec.type_name == typed.ORDER_GROUP]
    if kept and orders:
        from dds.dynamic import topics_kept

        names |= {name for order in orders for name in topics_kept(session, order)}
    return sorted(names)


__all__ = ["Several", "is_pattern"]
