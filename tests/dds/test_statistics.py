"""Numbers of entities.

Goal: they count what really happened to the samples of a writer and a reader.
Method: samples are written, read, taken and filtered on one embedded node.
"""

from dataclasses import dataclass

import pytest

from dds import (
    ContentFilteredTopic,
    DataReader,
    DataWriter,
    DDSException,
    Domain,
    DomainParticipant,
    Policy,
    Publisher,
    Qos,
    Topic,
    duration,
)
from dds.core import Statistics
from dds.idl import IdlStruct
from spindle.config.settings import NodeConfig

LONG = duration(seconds=20)


@dataclass
class Point(IdlStruct):
    x: int


def test_of_a_writer_and_its_readers(participant):
    topic = Topic(participant, "points", Point)
    reader = DataReader(participant, topic)
    high = DataReader(participant, ContentFilteredTopic(participant, "high", topic, "x >= 3"))
    writer = DataWriter(participant, topic)
    of_writer, of_reader, of_high = Statistics(writer), Statistics(reader), Statistics(high)
    assert of_writer["written"] == of_reader["given"] == 0
    before = of_writer.time
    for x in range(5):
        writer.write(Point(x))
    assert writer.wait_for_acks(LONG)
    assert of_writer["written"] == 0  # until it is asked for
    assert of_writer.refresh() is of_writer and of_writer.time > before
    assert of_writer.data == {"written": 5, "acknowledged": 5, "unacknowledged": 0}
    assert of_reader.refresh().data == {"given": 0, "waiting": 5, "kept": 0, "filtered": 0, "lost": 0}
    assert len(reader.take(2)) == 2
    assert of_reader.refresh().data == {"given": 2, "waiting": 3, "kept": 0, "filtered": 0, "lost": 0}
    assert len(reader.read(9)) == 3
    assert of_reader.refresh().data == {"given": 5, "waiting": 0, "kept": 3, "filtered": 0, "lost": 0}
    assert len(high.take(9)) == 2
    assert of_high.refresh().data == {"given": 2, "waiting": 0, "kept": 0, "filtered": 3, "lost": 0}
    assert "written" in repr(of_writer)
    writer.close()
    with pytest.raises(DDSException):
        of_writer.refresh()


def test_of_a_logged_topic_what_is_on_disk(tmp_path):
    Domain(9, NodeConfig(domain_id=9, journal_dir=tmp_path))
    with DomainParticipant.embedded(9) as participant:
        topic = Topic(participant, "recorded", bytes, qos=Qos(Policy.Durability.Persistent))
        _reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
        writer.write(b"a")
        assert writer.wait_for_acks(LONG, persisted=True)
        assert Statistics(writer)["persisted"] == 1


def test_of_a_participant_its_nodes_counters(participant):
    assert Statistics(participant).data.keys() == participant.session.counters().snapshot().keys()


def test_of_anything_else(participant):
    with pytest.raises(TypeError):
        Statistics(participant.session)
    with pytest.raises(DDSException) as raised:
        Statistics(Publisher(participant))
    assert raised.value.code == DDSException.DDS_RETCODE_ILLEGAL_OPERATION
