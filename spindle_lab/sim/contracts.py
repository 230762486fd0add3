"""What the parts of a run need of a life and of its world, so that they don't import those who drive them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from spindle.group.view import Member, View
    from spindle.membership.machine import Machine
    from spindle_core.engine import Engine
    from spindle_core.epoch import Epoch


class Life(Protocol):
    """One life of a node (`node.Life`)."""

    number: int
    node_id: int
    me: Member
    engine: Engine
    machine: Machine
    view: View | None
    epoch: Epoch | None
    end: str

    @property
    def running(self) -> bool:
        """It has not ended."""

    @property
    def now_ns(self) -> int:
        """Its clock."""

    @property
    def readers(self) -> Mapping[int, Any]:
        """`apps.Reader` by topic id."""

    @property
    def writers(self) -> Mapping[int, Sequence[Any]]:
        """`apps.Writer` by topic id."""

    @property
    def direct(self) -> Mapping[int, Any]:
        """The writers into the node's own ring, by topic id."""

    def state(self) -> Any:
        """For people."""


class Fabric(Protocol):
    """How rows reach the others (`fabrics.Rows`)."""

    @property
    def certain(self) -> bool:
        """A process that ends is seen to have ended."""


class World(Protocol):
    """All lives of a run (`world.World`)."""

    causes: int
    now_ns: int

    @property
    def lives(self) -> Sequence[Life]:
        """By number."""

    @property
    def fabric(self) -> Fabric:
        """Of this run."""

    def life_of(self, member: Member) -> Life:
        """The life of this member."""

    def certain(self, life: Life) -> bool:
        """Everybody can see that this process has ended."""

    def hit(self, probe: str) -> None:
        """A rare path was taken."""

    def mix(self, a: int, b: int) -> None:
        """Into the hash of the run."""
