"""Goal: nobody is said to have gone who is there, and who has gone is said to have.

Method: the conduct of replicas over one order (`tests.dds.replicated.model`), told of who is there by hand.
"""

from __future__ import annotations

from dds.replicated.messages import Kind
from tests.dds.replicated.model import World


def test_who_has_not_been_there_yet_has_not_gone() -> None:
    """Goal: the order may say that a replica is live before anybody is told that it is there; nobody tells the object
    then that it has gone. Who was there and is no more has gone at once; who never comes, when that is sure."""
    world = World(1)
    one, two = world.come(), world.come()
    world.settle()
    alone, both = {one.machine.me}, {one.machine.me, two.machine.me}
    conduct = one.conduct
    conduct._seen.clear()
    assert conduct.awaits_news(alone) and not conduct.is_lacking(alone) and conduct.look_around(alone) == []
    [gone] = conduct.look_around(alone, surely=True)
    assert gone.kind == Kind.GONE and gone.body == two.machine.me
    one.machine._buried.clear()
    assert not conduct.awaits_news(both) and not conduct.is_lacking(both) and conduct.look_around(both) == []
    assert conduct.is_lacking(alone) and not conduct.awaits_news(alone)
    [gone] = conduct.look_around(alone)
    assert gone.kind == Kind.GONE and gone.body == two.machine.me
