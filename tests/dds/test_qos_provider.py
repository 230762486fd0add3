"""Qos from DDS-XML files.

Goal: what a file says is what the Qos is, with the defaults of DDS for what it leaves out; what it says wrongly is
refused with the place. A file that means harm costs an error, not the process.
"""

import re

import pytest

from dds import DataReader, DDSException, Policy, Qos, Topic, duration
from dds.qos import DataReaderQos, DataWriterQos
from dds.qos_provider import QosProvider

FOREVER = duration(infinite=True)


def xml(content, profile="p", base=""):
    base = f' base_name="{base}"' if base else ""
    return f'<dds><qos_library name="l"><qos_profile name="{profile}"{base}>{content}</qos_profile></qos_library></dds>'


def writer_qos(policies):
    return QosProvider(xml(f"<datawriter_qos>{policies}</datawriter_qos>")).get_datawriter_qos("l::p")


def reader_qos(policies):
    return QosProvider(xml(f"<datareader_qos>{policies}</datareader_qos>")).get_datareader_qos("l::p")


@pytest.mark.parametrize(("text", "policy"), [
    ("<reliability/>", Policy.Reliability.Reliable(duration(milliseconds=100))),
    ("<reliability><kind>BEST_EFFORT_RELIABILITY_QOS</kind></reliability>", Policy.Reliability.BestEffort),
    ("<reliability><max_blocking_time><sec>1</sec><nanosec>5</nanosec></max_blocking_time></reliability>",
     Policy.Reliability.Reliable(duration(seconds=1, nanoseconds=5))),
    ("<durability><kind> TRANSIENT_LOCAL_DURABILITY_QOS\n</kind></durability>", Policy.Durability.TransientLocal),
    ("<history/>", Policy.History.KeepLast(1)),
    ("<history><kind>KEEP_ALL_HISTORY_QOS</kind></history>", Policy.History.KeepAll),
    ("<deadline><period><sec>DURATION_INFINITE_SEC</sec></period></deadline>", Policy.Deadline(FOREVER)),
    ("<deadline><period><nanosec>7</nanosec></period></deadline>", Policy.Deadline(7)),
    ("<lifespan><duration><sec>DURATION_INFINITY</sec></duration></lifespan>", Policy.Lifespan(FOREVER)),
    ("<liveliness><kind>MANUAL_BY_TOPIC_LIVELINESS_QOS</kind><lease_duration><sec>2</sec></lease_duration>"
     "</liveliness>", Policy.Liveliness.ManualByTopic(duration(seconds=2))),
    ("<latency_budget/>", Policy.LatencyBudget(0)),
    ("<ownership><kind>EXCLUSIVE_OWNERSHIP_QOS</kind></ownership>", Policy.Ownership.Exclusive),
    ("<ownership_strength><value>5</value></ownership_strength>", Policy.OwnershipStrength(5)),
    ("<destination_order><kind>BY_SOURCE_TIMESTAMP_DESTINATIONORDER_QOS</kind></destination_order>",
     Policy.DestinationOrder.BySourceTimestamp),
    ("<resource_limits><max_samples>9</max_samples><max_instances>LENGTH_UNLIMITED</max_instances></resource_limits>",
     Policy.ResourceLimits(9, -1, -1)),
    ("<transport_priority><value>-3</value></transport_priority>", Policy.TransportPriority(-3)),
    ("<user_data><value>aGVs\n bG8=</value></user_data>", Policy.Userdata(b"hello")),
    ("<writer_data_lifecycle/>", Policy.WriterDataLifecycle(True)),
    ("<durability_service><history_kind>KEEP_LAST_HISTORY_QOS</history_kind><history_depth>3</history_depth>"
     "<service_cleanup_delay><sec>1</sec></service_cleanup_delay></durability_service>",
     Policy.DurabilityService(duration(seconds=1), Policy.History.KeepLast(3), -1, -1, -1)),
])
def test_policies_of_a_writer(text, policy):
    qos = writer_qos(text)
    assert isinstance(qos, DataWriterQos) and qos == Qos(policy)


def test_policies_of_a_reader():
    assert reader_qos("<reliability/>") == Qos(Policy.Reliability.BestEffort)
    assert reader_qos("<time_based_filter><minimum_separation><nanosec>3</nanosec></minimum_separation>"
                      "</time_based_filter>") == Qos(Policy.TimeBasedFilter(3))
    assert reader_qos("<reader_data_lifecycle/>") == Qos(Policy.ReaderDataLifecycle(FOREVER, FOREVER))
    both = reader_qos("<history/><durability/>")
    assert isinstance(both, DataReaderQos)
    assert both == Qos(Policy.History.KeepLast(1), Policy.Durability.Volatile)


def test_the_other_entities():
    provider = QosProvider(xml(
        "<publisher_qos><partition><name><element>a</element><element>b</element></name></partition>"
        "<group_data><value>AQ==</value></group_data><entity_factory/></publisher_qos>"
        "<subscriber_qos><presentation><access_scope>TOPIC_PRESENTATION_QOS</access_scope>"
        "<ordered_access>true</ordered_access></presentation></subscriber_qos>"
        "<topic_qos><topic_data><value>AQ==</value></topic_data></topic_qos>"
        "<participant_qos><user_data><value>AQ==</value></user_data><entity_factory>"
        "<autoenable_created_entities>false</autoenable_created_entities></entity_factory></participant_qos>"))
    assert provider.get_publisher_qos("l::p") == Qos(
        Policy.Partition(["a", "b"]), Policy.Groupdata(b"\1"), Policy.EntityFactory())
    assert provider.get_subscriber_qos("l::p") == Qos(Policy.PresentationAccessScope.Topic(False, True))
    assert provider.get_topic_qos("l::p") == Qos(Policy.Topicdata(b"\1"))
    assert provider.get_participant_qos("l::p") == provider.get_domain_participant_qos("l::p") == Qos(
        Policy.Userdata(b"\1"), Policy.EntityFactory(autoenable_created_entities=False))


def test_a_profile_takes_over_what_its_base_has():
    text = (
        '<dds xmlns="http://www.omg.org/spec/DDS-XML"><qos_library name="one"><qos_profile name="base">'
        "<datareader_qos><history><kind>KEEP_LAST_HISTORY_QOS</kind><depth>5</depth></history><durability/>"
        '</datareader_qos></qos_profile><qos_profile name="middle" base_name="base"/></qos_library>'
        '<qos_library name="two"><qos_profile name="top" base_name="one::middle"><datareader_qos><history>'
        "<depth>7</depth></history></datareader_qos></qos_profile></qos_library><!-- a comment --></dds>")
    provider = QosProvider(text)
    assert provider.get_datareader_qos("one::middle") == Qos(Policy.History.KeepLast(5), Policy.Durability.Volatile)
    assert provider.get_datareader_qos("two::top") == Qos(Policy.History.KeepLast(7), Policy.Durability.Volatile)
    assert provider.get_datareader_qos("one::base")[Policy.History].depth == 5


def test_entities_with_names():
    provider = QosProvider(xml('<topic_qos name="fast"><durability/></topic_qos><topic_qos name="kept"><durability>'
                               "<kind>PERSISTENT_DURABILITY_QOS</kind></durability></topic_qos>"))
    assert provider.get_topic_qos("l::p::kept") == Qos(Policy.Durability.Persistent)
    assert provider.get_topic_qos("l::p::fast") == Qos(Policy.Durability.Volatile)
    with pytest.raises(DDSException, match="no <topic_qos> in l::p"):
        provider.get_topic_qos("l::p")


def test_where_files_are_read_from(tmp_path):
    path = tmp_path / "qos.xml"
    path.write_text(xml("<topic_qos><durability/></topic_qos>"))
    text = path.read_text()
    for uri in (path, str(path), str(path).encode(), f"file://{path}", text, path.read_bytes(), f"\ufeff\n {text}",
                f'<?xml version="1.0" encoding="utf-16"?>{text}', text.encode("utf-16"), text.encode("utf-8-sig")):
        for scope in ("*", "", "::", "l", "l::*", "*::p", "l::p::"):
            assert QosProvider(uri, scope).get_topic_qos("l::p") == Qos(Policy.Durability.Volatile)
        assert QosProvider(path=uri).get_topic_qos("l::p")  # cyclonedds calls it so


def test_a_scope_has_something_in_it():
    """What nothing is in was mistyped: it is said where it is given, as by cyclonedds."""
    text = ('<dds><qos_library name="l"><qos_profile name="p"><topic_qos/><topic_qos name="fast"/></qos_profile>'
            '<qos_profile name="q" base_name="p"/></qos_library></dds>')
    for scope in ("l::q", "*::q", "l::p::fast", "*::*::fast", "l::q::fast"):
        with pytest.raises(DDSException, match="outside the scope"):
            QosProvider(text, scope).get_topic_qos("l::p")
    for scope in ("x", "l::x", "*::x", "l::p::x", "x::p::fast"):
        with pytest.raises(DDSException, match=f"nothing in it is of the scope '{re.escape(scope)}'; it has l::p, l::q"
                           ) as caught:
            QosProvider(text, scope)
        assert caught.value.code == DDSException.DDS_RETCODE_BAD_PARAMETER


@pytest.mark.parametrize(("text", "why"), [
    ("<dds>", "is no XML"),
    ("<profiles/>", "its first element is <profiles>"),
    ('<!DOCTYPE x [<!ENTITY a "aaaa">]><dds>&a;</dds>', "document type definition"),
    ('<!DOCTYPE x [<!ENTITY a "aaaa">]><dds>&a;</dds>'.encode("utf-16"), "document type definition"),
    ("<dds>" + " " * (1 << 20) + "</dds>", "more than 1,048,576 characters"),
    (b"<dds>" + b" " * (1 << 20) + b"</dds>", "more than 1,048,576 bytes"),
    ("\ud800", "can't be read"),
    ("<dds>\ud800</dds>", "no XML that can be read"),
    (xml("some text<topic_qos/>"), "<qos_profile> has the text 'some text'"),
    (xml("<topic_qos/>some text"), "<qos_profile> has the text 'some text'"),
    (xml("<topic_qos>some text</topic_qos>"), "<topic_qos> has the text"),
    (xml("<topic_qos><durability>PERSISTENT_DURABILITY_QOS</durability></topic_qos>"), "<durability> has the text"),
    (xml("<topic_qos><history><kind>KEEP_ALL_HISTORY_QOS</kind>5</history></topic_qos>"), "<history> has the text '5'"),
    (xml("<topic_qos><durability/><durability/></topic_qos>"), "topic_qos of l::p has two <durability>"),
    (xml("<topic_qos><history><depth>1</depth><depth>2</depth></history></topic_qos>"), "<history> has two <depth>"),
    (xml("<topic_qos/><topic_qos/>"), "profile l::p has two <topic_qos>"),
    (xml("<topic_qos name='a'/><topic_qos name='a'/>"), "has two <topic_qos> with the name 'a'"),
    (xml("<topic_qos topic_filter='x*'/>"), "<topic_qos> has the attribute 'topic_filter', which means nothing here"),
    (xml("<topic_qos><history kind='x'/></topic_qos>"), "<history> has the attribute 'kind'"),
    (xml("<topic_qos><history><depth unit='x'>1</depth></history></topic_qos>"), "<depth> has the attribute 'unit'"),
    ("<dds><qos_library><x/></qos_library></dds>", "<x> stands in library"),
    (xml("<writer_qos/>"), "<writer_qos> stands in profile l::p; what may stand there is"),
    (xml("<topic_qos><nothing/></topic_qos>"), "<nothing> in topic_qos of l::p is no policy"),
    ('<dds><qos_library name="l"><qos_profile name="p"/><qos_profile name="p"/></qos_library></dds>', "two profiles"),
    ("/nowhere/qos.xml", "can't be read"),
    ("a\0b", "can't be read"),
    (xml("<topic_qos><durability>" + "<x>" * 5000 + "</x>" * 5000 + "</durability></topic_qos>"), "too deep"),
])
def test_files_that_are_wrong(text, why):
    with pytest.raises(DDSException, match=why) as raised:
        QosProvider(text)
    assert raised.value.code == DDSException.DDS_RETCODE_BAD_PARAMETER


@pytest.mark.parametrize(("policy", "why"), [
    ("<history><depht>5</depht></history>", "<history> has no <depht>; it has depth, kind"),
    ("<history><depth>five</depth></history>", "<depth> of <history> is 'five'"),
    ("<history><depth>0</depth></history>", "it must be 1 to 2,147,483,647"),
    ("<history><depth>LENGTH_UNLIMITED</depth></history>", "not a whole number"),
    (f"<history><depth>{'9' * 5000}</depth></history>", "'99999999999999999999'..., not a whole number"),
    ("<resource_limits><max_samples>-2</max_samples></resource_limits>", "must be 1 to"),
    ("<resource_limits><max_samples>0</max_samples></resource_limits>", "must be 1 to"),
    ("<ownership_strength><value>LENGTH_UNLIMITED</value></ownership_strength>", "not a whole number"),
    ("<lifespan><duration><sec>DURATION_INFINITY</sec><nanosec>x</nanosec></duration></lifespan>", "is .x., not a"),
    ("<lifespan><duration><sec>1</sec><nanosec>DURATION_INFINITE_NSEC</nanosec></duration></lifespan>", "<sec> isn't"),
    ("<lifespan><duration><sec>1</sec><nanosec>-1</nanosec></duration></lifespan>", "less than 0"),
    ("<durability><kind>PERSISTENT</kind></durability>", "it may be VOLATILE_DURABILITY_QOS"),
    ("<durability><kind><x/></kind></durability>", "has parts, where text is expected"),
    ("<deadline><period>5</period></deadline>", "must have <sec> and <nanosec>"),
    ("<deadline><period><sec>x</sec></period></deadline>", "not a whole number or DURATION_INFINITE_SEC"),
    ("<deadline><period><sec>-1</sec></period></deadline>", "less than 0"),
    ("<user_data><value>???</value></user_data>", "not base64"),
    ("<writer_data_lifecycle><autodispose_unregistered_instances>perhaps</autodispose_unregistered_instances>"
     "</writer_data_lifecycle>", "not true or false"),
    ("<partition/>", "does not concern a DataWriter"),
    ("<entity_factory><autoenable_created_entities>0</autoenable_created_entities></entity_factory>",
     "does not concern a DataWriter"),
])
def test_policies_that_are_wrong(policy, why):
    with pytest.raises(DDSException, match=why):
        writer_qos(policy)


def test_profiles_that_are_not_there():
    provider = QosProvider(xml("<topic_qos/>", base="q"))
    with pytest.raises(DDSException, match="base of l::p, l::q, isn't there"):
        provider.get_topic_qos("l::p")
    with pytest.raises(DDSException, match="it has l::p"):
        provider.get_topic_qos("l::other")
    for key in ("", "l", "l::p::e::x"):
        with pytest.raises(DDSException, match="names no Qos"):
            provider.get_topic_qos(key)
    with pytest.raises(DDSException, match="more than 16 bases"):
        QosProvider(xml("<topic_qos/>", base="p")).get_topic_qos("l::p")
    with pytest.raises(DDSException, match="no profiles"):
        QosProvider("<dds/>").get_topic_qos("l::p")
    with pytest.raises(DDSException, match="more than three parts"):
        QosProvider("<dds/>", "a::b::c::d")


def test_entities_are_made_with_it(participant):
    qos = reader_qos("<reliability><kind>RELIABLE_RELIABILITY_QOS</kind></reliability><history><depth>3</depth>"
                     "</history>")
    reader = DataReader(participant, Topic(participant, "t", bytes), qos=qos)
    assert reader.qos[Policy.History].depth == 3


def test_lists_of_names():
    def partition(names):
        text = xml(f"<subscriber_qos><partition><name>{names}</name></partition></subscriber_qos>")
        return QosProvider(text).get_subscriber_qos("l::p")[Policy.Partition].partitions

    assert partition("<element>A</element>") == ("A",)
    assert partition("<element>A</element><element>B</element>") == ("A", "B")
    assert partition("") == ()
    for names in ("<elem>A</elem>", "<element><x/></element>", "A", "<element>A</element><x/>"):
        with pytest.raises(DDSException, match=r"a list: what may stand|has parts|<element>|has two"):
            partition(names)


def test_arguments_of_other_types():
    for arguments in ((None,), (5,), ("<dds/>", None)):
        with pytest.raises(TypeError):
            QosProvider(*arguments)
    with pytest.raises(TypeError, match="is not a str"):
        QosProvider("<dds/>").get_topic_qos(None)
