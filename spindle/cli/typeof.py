"""`spindle typeof`: what a sample of a topic is made of."""

from __future__ import annotations

import click

from spindle.cli import ports, typed
from spindle.cli.common import Target, complete_topic, json_option, print_json, target_options
from spindle.errors import TopicMismatch, TopicUnknown

EPILOG = """\b
Examples:
  spindle typeof fixes                its type as IDL
  spindle typeof fixes > fixes.idl    for an IDL compiler

\b
Of NumPy records the fields are shown, of protobuf messages the message. The
type is what the topic's readers and writers announce; where they have
several, each is shown, that of most of them first. Behind these come types of
samples that the topic keeps, whose writers have gone.
"""


@click.command(epilog=EPILOG)
@click.argument("topic", shell_complete=complete_topic)
@json_option
@target_options
def typeof(target: Target, topic: str, as_json: bool) -> int:
    """Print the type of TOPIC's samples."""
    with target.attach("spindle typeof") as session:
        info = ports.found(session, topic)
        found, order = typed.types(session, topic)
    if info is None and not order:
        raise TopicUnknown(f"there is no topic {topic!r}; `spindle topics` lists them")
    if as_json:
        print_json([{"name": one.name, "kind": one.announced.kind, "identifier": one.announced.identifier,
                     "keys": list(one.keys), "endpoints": one.endpoints, "definition": typed.shown(one)}
                    for one in found])
        return 0
    if not found:
        name = ports.OPAQUE_TYPE if info is None else info.spec.type_name
        if name == ports.OPAQUE_TYPE:
            click.echo("bytes")
            return 0
        raise TopicMismatch(f"topic {topic!r} carries {name}, and {typed.UNTOLD}")
    for number, one in enumerate(found):
        if number:
            click.echo()
        if not one.endpoints:
            click.echo("// of samples that the topic keeps; nobody has it open with this type:")
        elif len(found) > 1:
            click.echo(f"// {one.endpoints} readers and writers:")
        click.echo(typed.shown(one))
    return 0
