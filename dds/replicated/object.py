"""Objects that are replicated: a class with commands and queries, and what its state is.

    class Gate(Object):
        open: bool = False
        visitors: dict[str, int]

        def __init__(self) -> None:
            self.visitors = {}

        @command
        def enter(self, name: str) -> int:
            if not self.open:
                raise PermissionError("the gate is closed")
            self.visitors[name] = self.visitors.get(name, 0) + 1
            return self.visitors[name]

        @query
        def total(self) -> int:
            return sum(self.visitors.values())

Rules: every replica carries out the same commands in the same order, so a command must go by nothing but the state, its
arguments and `self.order`. Only commands change the state. What a command raises is raised at its caller; what it had
changed by then is changed everywhere. A class has the same name, state and commands in all programs: a replica of one
that differs from those that are live stops.
"""

from __future__ import annotations

import random
import typing
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from dds.replicated.machine import Context, Result, Unrestorable
from dds.rpc.interface import Interface, caller_scope, describe
from dds.rpc.values import Fields

F = TypeVar("F", bound=Callable[..., Any])

COMMAND, QUERY = "command", "query"
DIGEST_BYTES = 16
RESERVED = frozenset((
    "close", "id", "order", "phase", "replica_gone", "replicas", "restore", "snapshot", "synchronize", "typed",
    "wait_for"))


def command(function: F) -> F:
    """Of a method: every replica carries it out, in the order of all commands."""
    function.__rpc_mark__ = COMMAND  # type: ignore[attr-defined]
    return function


def query(function: F) -> F:
    """Of a method: it is answered by the replica at hand, and changes nothing."""
    function.__rpc_mark__ = QUERY  # type: ignore[attr-defined]
    return function


class Order:
    """What a command may go by beside the state and its arguments. The same at every replica.

    index      number of the command in the order, from 1
    timestamp  agreed time, UTC ns: when the command was written by its sender's clock; never before that of the command
               before it
    sender     id of the replica that it comes from (16 bytes)
    """

    def __init__(self, context: Context) -> None:
        self.index = context.index
        self.timestamp = context.timestamp
        self.sender = context.sender
        self._seed = context.seed
        self._random: random.Random | None = None

    @property
    def random(self) -> random.Random:
        """Random numbers that are the same everywhere, and others for each command."""
        if self._random is None:
            self._random = random.Random(self._seed)
        return self._random


class Object:
    """Base of replicated objects. Its state is its annotated attributes, unless it has snapshot() and restore()."""

    _interface: ClassVar[Interface | None] = None
    _scope: ClassVar[Mapping[str, Any]] = {}
    _fields: ClassVar[Fields | None] = None
    _order: Order | None = None

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls._scope = {**cls._scope, **caller_scope(1)}
        cls._interface = cls._fields = None

    @property
    def order(self) -> Order:
        """Of the command that is being carried out. Raises RuntimeError outside of one."""
        if self._order is None:
            raise RuntimeError("only a command has a place in the order: queries have no agreed time or random numbers")
        return self._order

    def snapshot(self) -> bytes:
        """The state as bytes. Equal states must have equal bytes: put sets into an order."""
        fields = state_of(type(self))
        return fields.encode([getattr(self, name) for name in fields.names])

    def restore(self, state: bytes) -> None:
        """Take over a state that snapshot() of another replica has given. ValueError for other bytes."""
        fields = state_of(type(self))
        for name, value in zip(fields.names, fields.decode(state), strict=True):
            setattr(self, name, value)

    def replica_gone(self, replica: bytes) -> None:
        """Called as a command is, when a replica has gone (closed, or its program or node died) or is taken for gone
        because its node was: with `order`, at every replica in the same place."""


def interface_of(cls: type[Object]) -> Interface:
    """The commands and queries of a class. TypeError for methods that can't be called, or a state without types."""
    if cls._interface is None:
        made = describe(cls, cls.__name__, RESERVED, (), cls._scope, marked=True)
        for one in made.operations.values():
            if one.is_async:
                raise TypeError(f"{cls.__name__}.{one.name}: commands and queries can't be coroutines")
            if one.mark == COMMAND:
                _ = one.arguments
        if cls.snapshot is Object.snapshot:
            state_of(cls)
        cls._interface = made
    return cls._interface


def state_of(cls: type[Object]) -> Fields:
    """The annotated attributes of a class. TypeError for types that can't be sent, or if there is none."""
    if cls._fields is None:
        try:
            hints = typing.get_type_hints(cls, None, dict(cls._scope), include_extras=True)
        except NameError as error:
            raise TypeError(f"{cls.__name__}: {error}: a type must be known where the class is") from error
        fields = {name: hint for name, hint in hints.items() if not name.startswith("_")
                  and typing.get_origin(hint) is not ClassVar}
        if not fields:
            raise TypeError(f"{cls.__name__} says nothing of its state: annotate its attributes, or give it snapshot() "
                            "and restore()")
        cls._fields = Fields(f"{cls.__name__}_state", fields)
    return cls._fields


def signature_of(cls: type[Object]) -> bytes:
    """16 bytes that differ where classes have other names, commands or states. What the state of a class with its own
    snapshot() is like nobody knows."""
    from hashlib import blake2b

    found = blake2b(cls.__name__.encode(), digest_size=16)
    for name, one in sorted(interface_of(cls).operations.items()):
        if one.mark == COMMAND:
            found.update(name.encode() + b"\0" + one.arguments.signature)
    if cls.snapshot is Object.snapshot:
        found.update(state_of(cls).signature)
    return found.digest()


class Carrier:
    """An object as the state machine wants it (`dds.replicated.machine.Target`)."""

    def __init__(self, cls: type[Object], make: Callable[[], Object]) -> None:
        self._make = make
        self.signature = signature_of(cls)
        self._operations = interface_of(cls).operations
        self.object = make()

    def begin(self) -> None:
        self.object = self._make()

    def carry_out(self, name: str, body: bytes, context: Context) -> Result:
        operation = self._operations.get(name)
        if operation is None or operation.mark != COMMAND:
            return Result(error=TypeError(f"there is no command {name[:100]!r}"))
        try:
            values = operation.arguments.decode(body)
        except ValueError as error:
            return Result(error=TypeError(f"{operation.describe()}: {error}"))
        self.object._order = Order(context)
        try:
            return Result(operation.call(self.object, values))
        except Exception as error:
            return Result(error=error)
        except BaseException as error:  # it ends neither this thread nor who has called
            return Result(error=RuntimeError(f"{operation.describe()} raised {error!r}"))
        finally:
            self.object._order = None

    def tell_gone(self, replica: bytes, context: Context) -> None:
        self.object._order = Order(context)
        try:
            self.object.replica_gone(replica)
        except BaseException:
            import logging

            logging.getLogger("dds").exception("replica_gone() of %s failed", type(self.object).__name__)
        finally:
            self.object._order = None

    def snapshot(self) -> bytes | None:
        try:
            return self.object.snapshot()
        except BaseException as error:
            import logging

            logging.getLogger("dds").error("no snapshot can be made of %s, and no replica can come, until a command "
                                           "mends its state: %r", type(self.object).__name__, error)
            return None

    def restore(self, state: bytes) -> None:
        restored = self._make()
        try:
            restored.restore(state)
        except ValueError:
            raise
        except BaseException as error:
            raise Unrestorable(f"restore() of {type(restored).__name__} failed: {error!r}") from error
        self.object = restored

    def digest(self) -> bytes:
        from hashlib import blake2b

        state = self.snapshot()
        return bytes(DIGEST_BYTES) if state is None else blake2b(state, digest_size=DIGEST_BYTES).digest()


__all__ = ["Carrier", "Object", "Order", "command", "interface_of", "query", "signature_of", "state_of"]
