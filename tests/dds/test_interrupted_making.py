"""Goal: who is interrupted by a signal while he makes a reader or writer leaves none behind that nobody can close: its
node would keep it, and a reader that keeps all would hold the topic's writers up for good. Nor are the descriptors
left that came with it.

Method: a node within the test, interruptions at every place where a signal's handler may run; then the node says what
is open.
"""

import gc

import pytest

from dds import DataReader, DataWriter, DDSException, Policy, Publisher, Qos, Topic
from tests.interrupts import Alarm, interrupted_everywhere
from tests.support import descriptors_before, open_descriptors, wait_until

COHERENT = Qos(Policy.PresentationAccessScope.Topic(coherent_access=True, ordered_access=False))


def open_at_node(participant):
    """Names of the topics of what its program has open: of writers, and of readers."""
    return [(one["writers"], one["readers"]) for one in participant.session.status()["applications"]]


MAKE = {
    "reader": DataReader,
    "writer": DataWriter,
    "carrier": lambda participant, topic: DataWriter(Publisher(participant, qos=COHERENT), topic),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(MAKE))
def test_what_is_not_made_is_not_open(participant, kind):
    topic = Topic(participant, "topic", bytes)
    make = MAKE[kind]
    make(participant, topic).close()  # what that imports is there
    made = []
    before = descriptors_before()

    def act():
        made.append(make(participant, topic))

    def look(error):
        try:
            if not isinstance(error, (Alarm, DDSException)):
                raise error
            made.pop().close()
        except IndexError:
            pass

    assert interrupted_everywhere(act, look, Alarm) > 200
    made.pop().close()
    gc.collect()
    wait_until(lambda: open_at_node(participant) == [([], [])])
    # Python can't keep what a call returned where a handler raises right behind it: a few of some hundred.
    wait_until(lambda: gc.collect() >= 0 and open_descriptors() < before + 20)
    with DataWriter(participant, topic) as writer, DataReader(participant, topic) as reader:
        writer.write(b"goes on")
        wait_until(lambda: reader.take() == [b"goes on"])
