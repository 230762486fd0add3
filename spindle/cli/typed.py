"""Topics with a type, for `pub`, `sub` and `typeof`: what type that is, and its samples as JSON.

Why through the DDS API: samples of a type have keys, ends, coherent sets and other versions of the type, and `dds`
knows all of these. It is imported only when a topic has a type: a shell command on bytes stays as quick as it was.

The type is what the readers and writers of the topic announce, or, if nobody has it open, that of the samples that it
keeps. Where there are several, the one that most ends have; samples of the others are converted as far as XTypes lets
them.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from spindle.cli.common import Target, note, put, time_text
from spindle.errors import NodeStopped, NoResources, TopicMismatch, shortage
from spindle.locks import Latch

if TYPE_CHECKING:
    from dds import DataReader, DataWriter, DomainParticipant
    from dds.dynamic import TopicType
    from spindle.cli.published import Published
    from spindle.client import Session

ORDER_GROUP = "order group"  # the type of a node's topic that holds several of the DDS layer
TAKE_MAX = 256
SHOWN_ELEMENTS_MAX = 64  # of a long array, for people
UNTOLD = ("nobody who has it open says what that is: its type is known while a program of the DDS API reads or writes "
          "it, unless IDL has no word for a member of it (`list[...]`, `dict` or `bytes`; `sequence[...]` has one)")


def order_of(session: Session, topic: str, look_inside: bool = False) -> str:
    """The order group in which somebody has this topic open, or that keeps samples of it; empty for a topic that is in
    none. `look_inside`: the node may become a member of groups for it."""
    known = session.topics()
    if any(one.spec.name == topic for one in known) or all(one.spec.type_name != ORDER_GROUP for one in known):
        return ""
    from dds.messages.order_groups import group_of

    grouped = group_of(topic, session, known)
    if grouped is not None:
        return grouped[0]
    from dds.dynamic import topics_kept

    return next((one.spec.name for one in known if one.spec.type_name == ORDER_GROUP
                 and topic in topics_kept(session, one.spec.name, look_inside)), "")


def types(session: Session, topic: str, look_inside: bool = True) -> tuple[list[TopicType], str]:
    """The types that are announced of a topic, that of most ends first, those of what it keeps behind them, and the
    order group it is in ("" for none). `look_inside`: the node may become a member of the topic for it."""
    from dds.dynamic import types_of

    order = order_of(session, topic, look_inside)
    return types_of(session, order or topic, topic if order else "", look_inside), order


def chosen(session: Session, topic: str, type_name: str) -> tuple[TopicType, str]:
    """The type to read or write a topic with, and its order group. Raises TopicMismatch if it can't be had."""
    found, order = types(session, topic)
    usable = [one for one in found if not one.reason]
    if usable:
        return usable[0], order
    if found:
        raise TopicMismatch(f"topic {topic!r} carries {found[0].name}, and {found[0].reason}")
    raise TopicMismatch(
        f"topic {topic!r} carries {type_name}, and {UNTOLD}. `spindle sub --format hex` prints the bytes, `spindle pub "
        "--force` writes some, which readers refuse unless they are of their type")


@contextlib.contextmanager
def participant(target: Target, session: Session, name: str, reattach: bool = False) -> Iterator[DomainParticipant]:
    """A participant at the session's node; with `reattach` at the same one started again, or another one of the host,
    when that goes away. Errors of DDS end the command with their text."""
    import dds
    from dds.nodes.ways import DistantNode, FirstNode, HostNode

    way = DistantNode(target.nodes) if target.nodes else (FirstNode if reattach else HostNode)(
        session.node_id, target.runtime_dir)
    try:
        with dds.DomainParticipant(target.domain, qos=dds.Qos(dds.Policy.EntityName(name)), way=way,
                                   reattach=reattach) as made:
            yield made
    except dds.DDSNodeLost as error:
        raise NodeStopped(error.msg) from error
    except dds.DDSException as error:
        if shortage(error.__cause__ or error, "") is not None:
            raise NoResources(error.msg) from error
        raise click.ClickException(str(error)) from error


def open_writer(within: DomainParticipant, topic: str, of: TopicType, order: str, timeout_s: float
                ) -> DataWriter[Any]:
    import dds

    made = dds.Topic(within, topic, of.data_type, keys=of.keys, order=order)
    spec = made.spec
    policies: list[Any] = [dds.Policy.WriterDataLifecycle(autodispose=False)]  # what was published outlives the command
    if spec is not None and spec.level:
        policies.append(dds.Policy.Reliability.Reliable(int(timeout_s * 1e9)))
    return dds.DataWriter(within, made, qos=dds.Qos(*policies))


def open_reader(within: DomainParticipant, topic: str, of: TopicType, order: str, keep_all: bool, history: bool
                ) -> DataReader[Any]:
    import dds

    made = dds.Topic(within, topic, of.data_type, keys=of.keys, order=order)
    spec = made.spec
    policies: list[Any] = [] if keep_all else [dds.Policy.Reliability.BestEffort]
    if history and spec is not None and spec.level >= 2:
        policies.append(dds.Policy.Durability.TransientLocal)
    else:
        policies.append(dds.Policy.Durability.Volatile)
    return dds.DataReader(within, made, qos=dds.Qos(*policies))


# --- publishing

def publish(writer: DataWriter[Any], of: TopicType, batches: Iterator[list[bytes]], published: Published) -> None:
    """Write everything. Raises ClickException that names the message, and its member, that is wrong."""
    import dds
    from dds.codecs.json_samples import from_plain

    for batch in batches:
        for text in batch:
            number = f"message {published.count + 1}"
            try:
                sample = from_plain(of.data_type, json.loads(text))
            except json.JSONDecodeError as error:
                raise click.ClickException(
                    f"{number} is not JSON: {error.msg} at character {error.pos + 1}. A sample of {of.name} is one "
                    "JSON object on a line; `spindle typeof` shows its members") from None
            except (ValueError, RecursionError) as error:
                raise click.ClickException(f"{number}: {error}") from None
            try:
                while True:
                    try:
                        writer.write(sample)
                        break
                    except dds.DDSUnacknowledged as error:
                        _write_again(writer, error.samples, published)
            except dds.DDSTimeout as error:
                raise click.ClickException(f"{number} was held back: {error}") from None
            except (dds.DDSException, TypeError, ValueError) as error:
                raise click.ClickException(f"{number}: {error}") from None
            published.add([text])


def _write_again(writer: DataWriter[Any], doubts: Any, published: Published) -> None:
    """What was on its way when the node went away; as `spindle.cli.sending` has it."""
    import dds

    left = list(doubts)
    note(f"goes on at another node; {len(left)} messages that may have been delivered are published again")
    published.resent += len(left)
    while left:
        try:
            writer.write(left[0].sample)
            left.pop(0)
        except dds.DDSUnacknowledged as error:
            left = [*error.samples, *left]


def wait_for_acks(writer: DataWriter[Any], timeout_s: float, published: Published) -> bool:
    """True once all is delivered everywhere, False after the timeout."""
    import dds

    while True:
        try:
            return writer.wait_for_acks(int(timeout_s * 1e9))
        except dds.DDSUnacknowledged as error:
            _write_again(writer, error.samples, published)


# --- reading

def print_samples(reader: DataReader[Any], of: TopicType, style: str, topic: str, count: int | None,
                  timeout_s: float | None) -> tuple[int, int]:
    """Print until count or timeout; returns (samples printed, samples lost). Raises DDSNodeLost, KeyboardInterrupt."""
    seen = 0
    forms = FORMS[style]
    timeout = None if timeout_s is None else int(timeout_s * 1e9)
    while count is None or seen < count:
        first = next(reader.take_iter(timeout=timeout), None)
        if first is None:
            break
        left = TAKE_MAX if count is None else min(TAKE_MAX, count - seen)
        samples = [first, *(reader.take(left - 1) if left > 1 else ())]
        most = 0 if style == "json" else SHOWN_ELEMENTS_MAX
        put(b"".join(f"{forms(topic, as_object(of, one, most), one.sample_info)}\n".encode() for one in samples))
        seen += len(samples)
    return seen, reader.get_sample_lost_status().total_count


def as_object(of: TopicType, sample: Any, most: int = 0) -> Any:
    """A sample for JSON, `most` as in to_plain(); of the end of an instance its key, and how it ended."""
    from dds import InstanceState, InvalidSample
    from dds.codecs.json_samples import to_plain

    if not isinstance(sample, InvalidSample):
        return to_plain(of.data_type, sample, most)
    ended = "disposed" if sample.sample_info.instance_state == InstanceState.NotAliveDisposed else "no writers"
    plain = to_plain(of.data_type, sample.key_sample)
    return {"ended": ended, "key": _only_key(of, plain)}


def _only_key(of: TopicType, plain: Any) -> Any:
    """Of a sample that has nothing but its key, only that."""
    if hasattr(of.data_type, "__idl__"):
        from dds.idl.members import key_members

        return {one.name: plain[one.name] for one in key_members(of.data_type)}
    return {name: plain[name] for name in dict.fromkeys(key.split(".")[0] for key in of.keys)}


def _record(topic: str, plain: Any, info: Any) -> str:
    return json.dumps({
        "topic": topic, "source_timestamp": info.source_timestamp, "reception_timestamp": info.reception_timestamp,
        "node": info.node, "sequence": info.sequence, "view": info.view_id, "sample": plain})


def _text(topic: str, plain: Any, info: Any) -> str:
    return f"{time_text(info.source_timestamp)}  {info.node}  {info.sequence:>6}  {json.dumps(plain)}"


FORMS = {"lines": lambda topic, plain, info: json.dumps(plain), "text": _text, "json": _record}


# --- showing

def shown(one: TopicType) -> str:
    """The type for people: IDL, a NumPy dtype, or a protobuf message."""
    if one.reason:
        return f"// {one.name}: {one.reason}"
    if hasattr(one.data_type, "__idl__"):
        from dds.idl.printer import idl_text

        return idl_text(one.data_type)
    keys = f"// keys: {', '.join(one.keys)}\n" if one.keys else ""
    if hasattr(one.data_type, "DESCRIPTOR"):
        return keys + _message_text(one.data_type.DESCRIPTOR)
    return keys + _dtype_text(one.data_type)


def _message_text(descriptor: Any) -> str:
    """A message and the ones in it, as a .proto file has them."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    found: dict[str, Any] = {}

    def gather(message: Any) -> None:
        if message.full_name not in found:
            found[message.full_name] = message
            for one in message.fields:
                if one.message_type is not None:
                    gather(one.message_type)

    gather(descriptor)
    parts = []
    for name, message in found.items():
        lines = []
        for one in message.fields:
            kind = one.message_type or one.enum_type
            text = kind.full_name if kind is not None else FieldDescriptorProto.Type.Name(one.type)[5:].lower()
            lines.append(f"  {'repeated ' if one.is_repeated else ''}{text} {one.name} = {one.number};")
        parts.append(f"message {name} {{\n" + "".join(f"{line}\n" for line in lines) + "}")
    return "\n\n".join(parts)


def _dtype_text(dtype: Any) -> str:
    """A dtype, a field a line."""
    if dtype.names is None:
        return f"numpy.dtype({dtype.str!r})"
    lines = [f"  {name}: {dtype.fields[name][0]}  // at byte {dtype.fields[name][1]}" for name in dtype.names]
    return f"numpy.dtype, {dtype.itemsize} bytes:\n" + "\n".join(lines)


def wait_for_type(session: Session, topic: str, type_name: str, timeout_s: float | None) -> tuple[TopicType, str]:
    """As chosen(), once a program that has the topic open says what its type is; or after `timeout_s`, None = never."""
    changed = Latch()
    session.add_listener(lambda _: changed.set())
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    told = looked = False
    while True:
        changed.clear()
        found, _ = types(session, topic, look_inside=not looked)  # that is a change, too
        looked = True
        left_s = None if deadline is None else deadline - time.monotonic()
        if found or (left_s is not None and left_s <= 0):
            return chosen(session, topic, type_name)
        if not told and deadline is None:
            told = True
            note(f"waiting for a program that says what {type_name} is; nobody reads or writes {topic!r}")
        changed.wait(left_s)
