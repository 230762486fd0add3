"""Users of this host as the configuration names them, and what a rule of [access] says about one.

Why apart from the keys: a rule is a table of its own in the file, and names of users and groups are looked up when they
are asked for, so that later changes of users count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from spindle.config.keys import is_int
from spindle.errors import ConfigError


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
            if not isinstance(getattr(self, name), str):
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
    import pwd

    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def gid_of(group: str) -> int | None:
    import grp

    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        return None


def uid_of_name_or_number(user: str) -> int | None:
    """The user id that "spindle" or "1001" means; None if there is no such user."""
    return int(user) if user.isascii() and user.isdigit() else uid_of(user)
