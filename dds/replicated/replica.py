"""A replica: an object here that is the same in every program that has one of its name.

    counter = Replica(participant, "visitors", Counter)
    counter.add(1)          # a command: returns when this replica has carried it out, with what that returned
    counter.value()         # a query: from this replica, which has every command that returned here

What programs call is here; `dds.replicated.driver` is how it works.

Rules: a command whose node dies is written again by the replica itself if its participant goes on at another node, and
is carried out once. A replica is closed by close(), by leaving a `with` block, or with its participant.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from dds.entity import Participant
from dds.replicated.driver import Driver
from dds.replicated.errors import ReplicaError
from dds.replicated.object import COMMAND, Carrier, Object, interface_of
from dds.rpc.errors import CallTimeout, OutcomeUnknown
from dds.rpc.interface import Operation
from dds.util import duration
from dds.waiting.wake import Deadline, check_positive, span_text

if TYPE_CHECKING:
    from typing_extensions import Self

O = TypeVar("O", bound=Object)  # noqa: E741  an Object
R = TypeVar("R")

TIMEOUT_NS = duration(seconds=10)
JOIN_NS = duration(seconds=30)
CHECK_EVERY = 1000
COMMANDS_MAX = 1000
HISTORY_BYTES = 16 << 20
HISTORY_BYTES_MIN = 1 << 20  # of a logged object
NAME_MAX = 200  # bytes

class Replica(Generic[O]):
    """A replica of an object. The commands and queries of its class are attributes of the replica.

    name      of the object in the group
    cls       its class, the same in every program
    logged    True: the object survives the death of all nodes, on disk; False: it lasts as long as one replica does
    make      makes an object in the state in which it begins; None = the class
    timeout   ns that a command may take
    join_timeout  ns that becoming a replica may take
    check_every   commands after which all replicas compare their states; 0 = never. The same in every program
    commands_max  commands of this replica in flight
    size_max  bytes of the largest command, with about 100 bytes for its head; 0 = as the group has it, else 16 KiB
    history_bytes  what a node keeps of the topic. For a logged object at least 1 MiB, and eight times the bytes of its
               largest snapshot
    Returns when the replica has the state. Raises TypeError for a class that can't be replicated, DDSTimeout,
    StateLost, DDSException as making a Topic does.

    A command raises what it raises, CallTimeout, OutcomeUnknown, ReplicaDiverged, InvalidArguments, DDSSampleTooLarge.
    """

    def __init__(self, participant: Participant, name: str, cls: type[O], *, logged: bool = False,
                 make: Callable[[], O] | None = None, timeout: int = TIMEOUT_NS, join_timeout: int = JOIN_NS,
                 check_every: int = CHECK_EVERY, commands_max: int = COMMANDS_MAX, size_max: int = 0,
                 history_bytes: int = HISTORY_BYTES) -> None:
        if not (isinstance(cls, type) and issubclass(cls, Object)):
            raise TypeError(f"{cls!r} is no class of replicated objects: derive it from dds.replicated.Object")
        if not name or len(name.encode()) > NAME_MAX:
            raise ValueError(f"the name of an object has 1 to {NAME_MAX} bytes, not {name!r}")
        check_positive(timeout, "timeout")
        check_positive(join_timeout, "join_timeout")
        if commands_max <= 0:
            raise ValueError(f"commands_max must be positive, not {commands_max!r}")
        if logged and history_bytes < HISTORY_BYTES_MIN:
            raise ValueError(f"history_bytes {history_bytes}: a logged object needs {HISTORY_BYTES_MIN} or more")
        interface = interface_of(cls)
        self._timeout_ns = timeout
        self._operations = interface.operations
        self._core = Driver(participant, name, Carrier(cls, make or cls), logged, check_every, commands_max, size_max,
                           history_bytes, timeout)
        self._core.start()
        try:
            self._core.wait_live(join_timeout)
        except BaseException:
            self.close()
            raise

    def __getattr__(self, name: str) -> Any:
        operation = self.__dict__.get("_operations", {}).get(name)
        if operation is None:
            raise AttributeError(f"the object has neither a command nor a query {name!r}")
        made: Any
        if operation.mark == COMMAND:
            made = ReplicatedCommand(self._core, operation, self._timeout_ns)
        else:
            core = self._core

            def made(*arguments: Any, **keywords: Any) -> Any:
                return core.ask(operation, arguments, keywords)

            made.__name__, made.__doc__ = operation.name, operation.__doc__
        self.__dict__[name] = made
        return made

    @property
    def typed(self) -> O:
        """The replica itself, for type checkers: its commands and queries have the types of the class's methods."""
        return cast(O, self)

    @property
    def id(self) -> bytes:
        """16 bytes: the `sender` of its commands."""
        return self._core.machine.me

    @property
    def phase(self) -> str:
        """"is live", or what it does instead."""
        return self._core.machine.phase.value

    def replicas(self) -> list[bytes]:
        """The ids of the replicas that have the state, in the order in which they got it."""
        return self._core.live_replicas()

    def synchronize(self, timeout: int = TIMEOUT_NS) -> None:
        """Return when this replica has carried out every command that any replica had written when this was called.

        Raises CallTimeout after `timeout` ns.
        """
        self._core.synchronize(timeout)

    def wait_for(self, condition: Callable[[O], bool], timeout: int | None = None) -> bool:
        """Return True as soon as `condition` of the object is true; False after `timeout` ns (None = never).

        It is asked after commands were carried out, on this thread; it must change nothing.
        """
        return self._core.wait_for(cast(Callable[[Any], bool], condition), timeout)

    def close(self) -> None:
        """End it; commands in flight raise OutcomeUnknown. Idempotent."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<dds.replicated.Replica of {self._core.name!r}, which {self.phase}>"


class ReplicatedCommand(Generic[R]):
    """One command of a replica: call it, or choose how. One of a logged object returns when it is on disk as well, at
    every node that has the object; a future says nothing of that."""

    def __init__(self, core: Driver, operation: Operation, timeout_ns: int) -> None:
        self._core = core
        self._operation = operation
        self._timeout_ns = timeout_ns
        self.__doc__ = operation.__doc__
        self.__name__ = operation.name

    def __call__(self, *arguments: Any, **keywords: Any) -> R:
        """Have it carried out, and wait for its result."""
        deadline = Deadline(self._timeout_ns)
        future = self._core.begin(self._operation, arguments, keywords, self._timeout_ns)
        if not future.wait(deadline.left_s()):
            raise self._late()
        self._keep(future, deadline)
        return future.result()

    def future(self, *arguments: Any, **keywords: Any) -> Future[R]:
        """Have it carried out, and don't wait for that; there is no deadline. Waits for room, as a write does."""
        return self._core.begin(self._operation, arguments, keywords, self._timeout_ns)

    async def aio(self, *arguments: Any, **keywords: Any) -> R:
        """Have it carried out, and wait in a coroutine."""
        import asyncio

        # Writing may have to wait for room, and the loop must not.
        deadline = Deadline(self._timeout_ns)
        future = await asyncio.to_thread(self._core.begin, self._operation, arguments, keywords, self._timeout_ns)
        waiting = asyncio.wrap_future(future)
        try:
            if not (await asyncio.wait([waiting], timeout=deadline.left_s()))[0]:
                raise self._late()
            if self._core.logged:
                await asyncio.to_thread(self._keep, future, deadline)
            return cast(R, waiting.result())
        finally:
            # Nobody waits any more: of what the command raises later, asyncio would say that nobody has asked.
            if not waiting.cancel() and not waiting.cancelled():
                waiting.exception()

    def _keep(self, future: Future[R], deadline: Deadline) -> None:
        """Wait until the command of a logged object is on disk, at every node that has the object; one whose replica
        has ended, or has lost its place, was not known to be carried out, and has nothing to wait for."""
        if self._core.logged and not isinstance(future.exception(), (OutcomeUnknown, ReplicaError)) and (
                not self._core.persisted(deadline)):
            raise self._late()

    def within(self, timeout: int) -> ReplicatedCommand[R]:
        """The same with another timeout, in ns."""
        check_positive(timeout, "timeout")
        return ReplicatedCommand(self._core, self._operation, timeout)

    def _late(self) -> CallTimeout:
        return CallTimeout(f"{self._core.name}: {self._operation.name}() was not carried out within "
                           f"{span_text(self._timeout_ns)}; it may be yet")


__all__ = ["Replica", "ReplicatedCommand"]
