"""Participants: finding a node, embedding one, ending.

Goal: clear errors without a node; one embedded node for a process unless asked otherwise; programs that end always end,
whatever they leave open.
Method: embedded nodes in this process, and whole programs as processes of their own.
"""

import os
import subprocess
import sys
import textwrap
import weakref

import pytest

from dds import DataReader, DataWriter, DDSException, DDSNodeLost, Domain, DomainParticipant, Policy, Qos, Topic
from spindle.config.settings import NodeConfig
from tests.dds.test_sub import LONG


def run(program, timeout_s=60, **env):
    """Exit code and all output of a Python program."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env={**os.environ, **env}, timeout=timeout_s, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def test_without_a_node_the_error_says_both_ways():
    with pytest.raises(DDSNodeLost) as caught:
        DomainParticipant()
    assert isinstance(caught.value, ConnectionError)
    for text in ("spindle daemon", "DomainParticipant.embedded()", "SPINDLE_EMBED=1", "domain 0"):
        assert text in str(caught.value)


def test_embedding_by_environment(monkeypatch):
    monkeypatch.setenv("SPINDLE_EMBED", "1")
    with DomainParticipant() as one:
        assert one.session.embedded
    monkeypatch.setenv("SPINDLE_EMBED", "0")
    with pytest.raises(DDSNodeLost):
        DomainParticipant()
    monkeypatch.setenv("SPINDLE_EMBED", "maybe")
    with pytest.raises(DDSException, match="must be 0 or 1"):
        DomainParticipant()


def test_participants_of_a_process_share_their_embedded_node():
    one, two = DomainParticipant.embedded(), DomainParticipant.embedded()
    assert one.session is two.session
    assert one.guid != two.guid
    reader = DataReader(two, Topic(two, "topic", bytes))
    writer = DataWriter(one, Topic(one, "topic", bytes))
    writer.write(b"x")
    assert reader.take_one(timeout=LONG) == b"x"
    one.close()
    assert not two.session.gone
    other = DataWriter(two, reader.topic)
    other.write(b"y")
    assert reader.take_one(timeout=LONG) == b"y"
    session = two.session
    two.close()
    assert session.gone


def test_domains_are_apart():
    with DomainParticipant.embedded(3) as three, DomainParticipant.embedded(4) as four:
        assert (three.domain_id, four.domain_id) == (3, 4)
        Topic(three, "topic", bytes, qos=Qos(Policy.Durability.Volatile))
        assert four.session.topics() == []
        assert Domain(3).get_participants() == Domain(3).get_children() == Domain(3).children == [three]


@pytest.mark.slow
def test_settings_of_another_dds_are_named_once():
    code, output = run("""
        import dds

        with dds.DomainParticipant.embedded(), dds.DomainParticipant.embedded():
            pass
        """, CYCLONEDDS_URI="<General/>")
    assert code == 0 and output.count("CYCLONEDDS_URI is set") == 1, output


def test_wrong_arguments():
    for bad in ("0", None, 1.5, True):
        with pytest.raises(TypeError):
            DomainParticipant(bad)
    for bad in (-1, 233):
        with pytest.raises(DDSException):
            DomainParticipant(bad)
    for keywords in ({"qos": 3}, {"listener": 3}, {"qos": Qos().topic()}):
        with pytest.raises(TypeError):
            DomainParticipant.embedded(0, **keywords)


def test_configuring_an_embedded_node(tmp_path):
    domain = Domain(5, NodeConfig(domain_id=5, default_size_max=1000))
    with DomainParticipant.embedded(5) as participant:
        assert participant.session.domain_id == 5
        with pytest.raises(DDSException) as caught:
            Domain(5, NodeConfig())
        assert caught.value.code == DDSException.DDS_RETCODE_PRECONDITION_NOT_MET
    with pytest.raises(DDSException):
        Domain(6, str(tmp_path / "missing.toml"))
    assert domain.get_participants() == []
    domain.close()


def test_a_domain_that_is_closed_configures_no_more_nodes(tmp_path):
    """What one part of a program has configured and closed is not met by another."""
    def kept_in():
        with DomainParticipant.embedded(5) as participant:
            return participant.session.status()["members"][0]["address"]

    usual = kept_in()
    with Domain(5, NodeConfig(domain_id=5, runtime_dir=tmp_path)):
        assert kept_in().startswith(str(tmp_path))
    assert kept_in() == usual
    first = Domain(5, NodeConfig(domain_id=5))
    with Domain(5, NodeConfig(domain_id=5, runtime_dir=tmp_path)):
        first.close()  # whose configuration doesn't hold any more
        assert kept_in().startswith(str(tmp_path))


def test_forgotten_participants_leave():
    participant = DomainParticipant.embedded()
    session, name = participant.session, weakref.ref(participant)
    del participant
    assert name() is None
    with DomainParticipant.embedded() as again:  # waits for what was forgotten
        assert session.gone and again.session is not session


def test_when_the_node_goes_everybody_is_told(two_nodes):
    one, two = two_nodes
    reader = DataReader(two, Topic(two, "topic", bytes))
    writer = DataWriter(two, reader.topic)
    writer.write(b"left over")
    assert writer.wait_for_acks(LONG)
    two.session.close()
    assert reader.take(5) == [b"left over"]
    for call in (reader.take, reader.read, lambda: next(reader.take_iter()), lambda: writer.write(b"x"),
                 lambda: Topic(two, "other", bytes)):
        with pytest.raises(DDSNodeLost):
            call()
    assert one.session.view()


@pytest.mark.slow
@pytest.mark.parametrize("leftover", [
    "", "del participant", "reader.close()", "listener = dds.Listener(on_data_available=lambda r: r.take(1)); "
    "reader.set_listener(listener)", "thread(lambda: [*reader.take_iter()])",
    "thread(lambda: [writer.write(b'y') for _ in iter(int, 1)])", "loan = writer.loan(5)",
    "cycle = [reader]; cycle.append(cycle)", "waits()"])
def test_programs_end(leftover):
    code, output = run(f"""
        import dds
        participant = dds.DomainParticipant.embedded()
        topic = dds.Topic(participant, "topic", bytes)
        reader, writer = dds.DataReader(participant, topic), dds.DataWriter(participant, topic)
        writer.write(b"x")
        assert reader.read(1) == [b"x"]

        def thread(work):
            import threading
            threading.Thread(target=work, daemon=True).start()

        def waits():
            waitset = dds.WaitSet(participant)
            waitset.attach(dds.ReadCondition(reader, dds.SampleState.NotRead))
            thread(lambda: waitset.wait(10**12))

        {leftover}
        print("end")
    """, timeout_s=30)
    assert (code, output) == (0, "end\n")


@pytest.mark.slow
def test_programs_end_after_an_exception():
    code, output = run("""
        import dds
        participant = dds.DomainParticipant.embedded()
        writer = dds.DataWriter(participant, dds.Topic(participant, "topic", bytes))
        raise RuntimeError("as planned")
    """, timeout_s=30)
    assert code == 1 and "as planned" in output and "Exception ignored" not in output
