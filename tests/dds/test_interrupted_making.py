"""Goal: who is interrupted by a signal while he makes or closes a reader or writer leaves none behind that nobody can
close: its node would keep it, and a reader that keeps all would hold the topic's writers up for good. Nor are the
descriptors left that came with it.

Method: a node within the test, or one of another host; interruptions at every place where a signal's handler may run;
then the node says what is open.
"""

import gc

import pytest

from dds import DataReader, DataWriter, DDSException, DomainParticipant, Policy, Publisher, Qos, Topic
from spindle.client.channel import closings_within
from tests.interrupts import Alarm, interrupted_everywhere
from tests.spindle.hosts import hosts
from tests.support import descriptors_before, open_descriptors, wait_until

COHERENT = Qos(Policy.PresentationAccessScope.Topic(coherent_access=True, ordered_access=False))


def open_at_node(participant):
    """Names of the topics of what its program has open: of writers, and of readers."""
    return [(one["writers"], one["readers"]) for one in participant.session.status()["applications"]]


@pytest.fixture(params=["of this program", "of another host"])
def at_node(request, runtime_dir):
    """A participant."""
    if request.param == "of this program":
        with DomainParticipant.embedded() as one:
            yield one
    else:
        with hosts(runtime_dir, 1) as running, DomainParticipant.remote([running[0].address]) as one:
            yield one


MAKE = {
    "reader": DataReader,
    "writer": DataWriter,
    "carrier": lambda participant, topic: DataWriter(Publisher(participant, qos=COHERENT), topic),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(MAKE))
def test_what_is_not_made_is_not_open(at_node, kind):
    topic = Topic(at_node, "topic", bytes)
    make = MAKE[kind]
    make(at_node, topic).close()  # what that imports is there
    made = []
    before = descriptors_before()

    def act():
        made.append(make(at_node, topic))

    def look(error):
        try:
            if not isinstance(error, (Alarm, DDSException)):
                raise error
            made.pop().close()
        except IndexError:
            pass

    assert interrupted_everywhere(act, look, Alarm) > 200
    made.pop().close()
    assert closings_within() is None  # nothing that this thread opens from now on is kept for something that is over
    gc.collect()
    wait_until(lambda: open_at_node(at_node) == [([], [])])
    # Python can't keep what a call returned where a handler raises right behind it: a few of some hundred.
    wait_until(lambda: gc.collect() >= 0 and open_descriptors() < before + 20)
    with DataWriter(at_node, topic) as writer, DataReader(at_node, topic) as reader:
        writer.write(b"goes on")
        wait_until(lambda: reader.take() == [b"goes on"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reader", "writer"])
def test_what_is_closed_half_is_closed(at_node, kind):
    topic = Topic(at_node, "topic", bytes)
    made = []
    before = descriptors_before()

    def act():
        made[0].close()

    def look(error):
        if not isinstance(error, Alarm):
            raise error
        made[:] = [MAKE[kind](at_node, topic)]

    made.append(MAKE[kind](at_node, topic))
    assert interrupted_everywhere(act, look, Alarm) > 10
    gc.collect()
    wait_until(lambda: open_at_node(at_node) == [([], [])])
    wait_until(lambda: gc.collect() >= 0 and open_descriptors() < before + 20)
