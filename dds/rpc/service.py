"""The decorator that makes a class a service."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar, overload

from dds.rpc.interface import Interface, caller_scope, describe

C = TypeVar("C", bound=type)

# What clients have themselves.
RESERVED = frozenset(("close", "servers", "typed", "wait_for_servers"))
_MARK = "__rpc_service__"


@dataclasses.dataclass(frozen=True)
class Described:
    """ordered, logged  see service()"""

    interface: Interface
    ordered: bool
    logged: bool


@overload
def service(cls: C) -> C: ...


@overload
def service(cls: None = None, *, name: str | None = None, ordered: bool = False, logged: bool = False,
            raises: Sequence[type[Exception]] = ()) -> Callable[[C], C]: ...


def service(cls: C | None = None, *, name: str | None = None, ordered: bool = False, logged: bool = False,
            raises: Sequence[type[Exception]] = ()) -> C | Callable[[C], C]:
    """Make a class a service: its public methods, with types, can be called by clients.

    name     of the service in the group; None = the name of the class
    ordered  every server carries out every call, all in the same order; the caller gets the first reply. Else one
             server does
    logged   an ordered service whose calls are kept on disk: a server that starts carries out all those first that the
             topic still has, without replying
    raises   exceptions that arrive as themselves, whichever method raises them; see also dds.rpc.raises()
    Raises TypeError for methods that can't be called: without types, or with a name that clients have themselves.
    """
    scope = caller_scope(1)

    def decorate(cls: C) -> C:
        if logged and not ordered:
            raise TypeError(f"{cls.__name__}: only the calls of an ordered service can be logged: say ordered=True")
        interface = describe(cls, name or cls.__name__, RESERVED, raises, scope)
        setattr(cls, _MARK, Described(interface, ordered, logged))
        return cls

    return decorate if cls is None else decorate(cls)


def service_of(cls: type) -> Described:
    """What service() has left at a class or one of its bases. TypeError if it has not."""
    found = getattr(cls, _MARK, None)
    if not isinstance(found, Described):
        if cls is type:
            raise TypeError("a server takes an object of the service's class, not the class itself")
        raise TypeError(f"{cls!r} is no service: decorate the class with @dds.rpc.service")
    return found


__all__ = ["Described", "service", "service_of"]
