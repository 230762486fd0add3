"""Goal: a program may close what it is just using, from a filter, a condition, a listener, a set or a batch: it gets
what there was, or is told that it is closed, and nothing hangs. Method: a program of its own for each, on its main
thread, whose closing other threads do.
"""

import pytest

from tests.dds.test_domain import run

BEGINNING = """
    import dds
    import numpy as np

    ANY = dds.SampleState.Any | dds.ViewState.Any | dds.InstanceState.Any
    LONG = dds.duration(seconds=20)
    participant = dds.DomainParticipant.embedded()
    record = np.dtype([("n", "i4")])
    topic = dds.Topic(participant, "topic", record)
    reader, writer = dds.DataReader(participant, topic), dds.DataWriter(participant, topic)
    one = np.ones(1, record)

    def write():
        writer.write_many(one)
        assert writer.wait_for_acks(LONG)

    def says_closed(call):
        try:
            call()
        except dds.DDSException as error:
            assert error.code == dds.DDSException.DDS_RETCODE_ALREADY_DELETED, error
        else:
            raise AssertionError("it is open")
"""
WITHIN = {
    "a condition": """
        condition = dds.QueryCondition(reader, ANY, lambda sample: reader.close() is None)
        write()
        assert len(reader.take(1, condition=condition)) == 1
        says_closed(reader.take)
        """,
    "a condition, its participant": """
        condition = dds.QueryCondition(reader, ANY, lambda sample: participant.close() is None)
        write()
        assert len(reader.take(1, condition=condition)) == 1
        says_closed(reader.take)
        says_closed(lambda: writer.write_many(one))
        """,
    "a condition that is waited for": """
        waitset = dds.WaitSet(participant)
        waitset.attach(dds.QueryCondition(reader, ANY, lambda sample: reader.close() is None))
        write()
        waitset.wait(dds.duration(milliseconds=1))
        says_closed(reader.take)
        """,
    "a filter": """
        chosen = dds.Topic(participant, "topic", record)
        chosen.set_topic_filter(lambda topic, sample: chosen_reader.close() is None)
        chosen_reader = dds.DataReader(participant, chosen)
        write()
        assert len(chosen_reader.take(1)) == 1
        says_closed(chosen_reader.take)
        """,
    "taking one by one": """
        write(), write()
        taken = reader.take_iter(timeout=LONG)
        next(taken)
        reader.close()
        says_closed(lambda: next(taken))
        """,
    "a batch": """
        write()
        with reader.take_batch(1) as batch:
            reader.close()
        says_closed(reader.take)
        """,
    "a loan": """
        loan = writer.loan(1)
        writer.close()
        says_closed(lambda: writer.write_many(one))
        """,
    "a set": """
        coherent = dds.Qos(dds.Policy.PresentationAccessScope.Topic(coherent_access=True, ordered_access=False))
        publisher = dds.Publisher(participant, qos=coherent)
        other = dds.DataWriter(publisher, topic)
        with publisher.coherent():
            other.write_many(one)
            other.close()
        publisher.close()
        write()
        """,
    "an access": """
        scope = dds.Qos(dds.Policy.PresentationAccessScope.Group(coherent_access=True, ordered_access=True))
        subscriber = dds.Subscriber(participant, qos=scope)
        grouped = dds.Topic(participant, "grouped", record, order="group")
        inside = dds.DataReader(subscriber, grouped)
        with subscriber.access():
            inside.close()
        with subscriber.access():
            subscriber.close()
        says_closed(subscriber.begin_access)
        """,
    "a listener": """
        import threading

        done = threading.Event()

        class Closes(dds.Listener):
            def on_data_available(self, reader):
                participant.close()
                done.set()

        reader.set_listener(Closes())
        writer.write_many(one)
        assert done.wait(20)
        says_closed(reader.take)
        """,
}


@pytest.mark.slow
@pytest.mark.parametrize("where", list(WITHIN))
def test_closing_what_is_being_used(where):
    code, output = run(BEGINNING + WITHIN[where].replace("\n        ", "\n    ") + "\n    print('end')\n", timeout_s=30)
    assert (code, output) == (0, "end\n")
