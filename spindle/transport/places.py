"""Places for connections that have yet to say who they are, shared fairly between users and hosts.

Why: a connection that says nothing costs its opener nothing, and everybody on this host can open hundreds. So whoever
holds many places gives way to those who hold few.

Rules:
- Some places are only for users who may be nodes (the node's own, root, those named): strangers never keep them out.
- When the strangers' places are full, the user (of another host: the address) that holds most of them loses its oldest
  one to a newcomer that holds fewer. A newcomer of whoever holds most gets none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from spindle.security.access import Credentials

PLACES_MAX = 256
RESERVED = 64  # of them, for those who may be nodes

T = TypeVar("T")
Holder = int | str  # a user id of this host, or an address of another one


class Places(Generic[T]):
    """Places for `T`, whatever is to be closed when it has to give way. is_own(credentials): may it be a node?"""

    def __init__(self, is_own: Callable[[Credentials], bool], places_max: int = PLACES_MAX,
                 reserved: int = RESERVED) -> None:
        self._is_own = is_own
        self._max, self._strangers_max = places_max, places_max - reserved
        self._strangers: dict[Holder, dict[T, None]] = {}  # oldest first
        self._own: set[T] = set()

    def take(self, one: T, who: Credentials) -> T | None:
        """A place for `one`. Returns who has to give way for it: nobody, or another one, or itself if there is no place
        for it."""
        n_strangers = sum(map(len, self._strangers.values()))
        most = max(self._strangers.values(), key=len, default={})
        own = self._is_own(who)
        if own:
            full, may_push = n_strangers + len(self._own) >= self._max, bool(most)
        else:
            held = self._strangers.get(holder_of(who), {})
            full = n_strangers >= self._strangers_max or n_strangers + len(self._own) >= self._max
            may_push = len(held) < len(most)
        if full and not may_push:
            return one
        given_up = None
        if full:
            given_up = next(iter(most))
            self.leave(given_up)
        if own:
            self._own.add(one)
        else:
            self._strangers.setdefault(holder_of(who), {})[one] = None
        return given_up

    def leave(self, one: T) -> None:
        """Its place is free. Nothing happens if it had none."""
        self._own.discard(one)
        for holder, held in self._strangers.items():
            if one in held:
                del held[one]
                if not held:
                    del self._strangers[holder]
                return


def holder_of(who: Credentials) -> Holder:
    """Who answers for a connection: its user, or the host that it comes from."""
    return who.uid if who.local else who.address.rpartition(":")[0]  # type: ignore[union-attr]
