"""Users of this host as the configuration names them, and what a rule of [access] says about one.

Why apart from the keys: a rule is a table of its own in the file, and names of users and groups are looked up when they
are asked for, so that later changes of users count.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Iterable

from spindle.config.keys import is_int
from spindle.errors import ConfigError

ANSWER_TIMEOUT_S = 0.2  # for the host's name service, while a node waits
FRESH_S = 0.2  # for so long an answer is not asked for again: one decision may need it many times
LOG = logging.getLogger("spindle.node")


@dataclasses.dataclass(frozen=True)
class AccessRule:
    """What one user, one group of users, or one application of another host may do. Exactly one of `user`, `uid`,
    `group`, `gid` and `application` is given; the last is the name in its certificate.

    `publish` and `subscribe` are globs over topic names ("*", "flight/*"); an empty tuple allows nothing.
    """

    user: str = ""
    uid: int | None = None
    group: str = ""
    gid: int | None = None
    application: str = ""
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("user", "group", "application"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name).isprintable():
                raise ConfigError(f"[[access.rules]] {name} = {getattr(self, name)!r}: must be a name")
        given = [bool(self.user), self.uid is not None, bool(self.group), self.gid is not None,
                 bool(self.application)]
        if sum(given) != 1:
            raise ConfigError(
                "[[access.rules]]: each rule must name exactly one of user, uid, group, gid or application "
                f"(this one names {sum(given)})"
            )
        for name in ("uid", "gid"):
            value = getattr(self, name)
            if value is not None and (not is_int(value) or not 0 <= value < 2**32 - 1):
                raise ConfigError(f"[[access.rules]] {name} = {value!r}: must be 0 to {2**32 - 2}")
        for name in ("publish", "subscribe"):
            value = getattr(self, name)
            if not isinstance(value, (tuple, list)) or not all(isinstance(v, str) and v for v in value):
                raise ConfigError(f'[[access.rules]] {name} = {value!r}: must be a list of globs, as ["flight/*"]')
            object.__setattr__(self, name, tuple(value))

    def matches(self, uid: int, gids: Iterable[int], application: str = "") -> bool:
        """True if the rule is about this user, or this application of another host. Names are looked up now, so that
        later changes of users count."""
        if self.application or application:
            return self.application == application
        if self.uid is not None:
            return self.uid == uid
        if self.gid is not None:
            return self.gid in set(gids)
        if self.user:
            return uid_of(self.user) == uid
        return gid_of(self.group) in set(gids)


def uid_of(user: str) -> int | None:
    """None if the host knows no such user."""
    return _NAMES.number("user", user)


def gid_of(group: str) -> int | None:
    """None if the host knows no such group."""
    return _NAMES.number("group", group)


class Names:
    """What names of users and groups stand for, as the host's name service says, which may be a server elsewhere: it is
    asked by a thread, and where it doesn't answer in time, what it said last counts until it does. Else a directory
    service that hangs would hang each node to which a program comes, and their groups would go on without them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: dict[tuple[str, str], tuple[int | None, float]] = {}  # the number, and when (monotonic, s)
        self._asking: threading.Thread | None = None  # the one that has got no answer in time

    def number(self, kind: str, name: str) -> int | None:
        """Of a "user" or "group"; None if there is none of that name, or nobody has said so yet."""
        with self._lock:
            if self._asking is not None and self._asking.is_alive():
                return self._last(kind, name)
            self._asking = None
            _, when = self._said.get((kind, name), (None, -FRESH_S))
            if time.monotonic() - when >= FRESH_S:
                self._ask(kind, name)
            return self._last(kind, name)

    def _last(self, kind: str, name: str) -> int | None:
        return self._said.get((kind, name), (None, 0.0))[0]

    def _ask(self, kind: str, name: str) -> None:
        def ask() -> None:
            self._said[kind, name] = _asked(kind, name), time.monotonic()

        thread = threading.Thread(target=ask, name="spindle-names", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there may be no more threads
            ask()
            return
        thread.join(ANSWER_TIMEOUT_S)
        if thread.is_alive():
            self._asking = thread
            LOG.warning("this host's name service has not said for %g s who %s %r is (see passwd and group in "
                        "/etc/nsswitch.conf): until it answers, names stand for whom they stood for before",
                        ANSWER_TIMEOUT_S, kind, name)


def _asked(kind: str, name: str) -> int | None:
    import grp
    import pwd

    try:
        return pwd.getpwnam(name).pw_uid if kind == "user" else grp.getgrnam(name).gr_gid
    except (KeyError, ValueError):  # ValueError: what no name can be, "a\0", say
        return None


_NAMES = Names()


def uid_of_name_or_number(user: str) -> int | None:
    """The user id that "spindle" or "1001" means; None if there is no such user."""
    return int(user) if user.isascii() and user.isdigit() else uid_of(user)
