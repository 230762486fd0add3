"""`spindle foxglove`: topics live in Foxglove."""

from __future__ import annotations

import importlib.util
import ipaddress
import sys
from pathlib import Path

import click

from spindle.cli.common import (
    Target,
    check_topics,
    complete_topic,
    note,
    stopped_by_signals,
    target_options,
    use_all_descriptors,
)

PORT = 8765  # Foxglove's own default

EPILOG = """\b
Examples:
  spindle foxglove                        all topics, at ws://127.0.0.1:8765
  spindle foxglove 'flight/*' alerts      some
  spindle foxglove --listen 9000          at another port
  spindle foxglove --listen 0.0.0.0:8765 --certificate c.pem --key k.pem

\b
In Foxglove choose "Open connection", "Foxglove WebSocket", and the address
that this command prints. Topics and their types come and go as in the group.
Types are shown as they are: IDL classes, protobuf messages, NumPy records;
bytes as text or base64.
Clients only look: they publish nothing, and slow ones lose samples, nobody
waits for them. Whoever reaches the address sees what the rules of [access]
let this command's user see, and so may any page in a browser on this host:
beyond loopback that must be said with --open. Needs
`pip install foxglove-sdk`.
"""


@click.command(epilog=EPILOG)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=complete_topic,
                callback=check_topics)
@click.option("--listen", default=str(PORT), show_default=True, metavar="[HOST:]PORT",
              help="Where; a port alone is on 127.0.0.1, port 0 any that is free.")
@click.option("--open", "anyone", is_flag=True, help="Let anybody look who reaches an address beyond loopback.")
@click.option("--certificate", type=click.Path(dir_okay=False, exists=True, path_type=Path),
              help="Certificate (PEM), for wss://.")
@click.option("--key", type=click.Path(dir_okay=False, exists=True, path_type=Path), help="Its private key (PEM).")
@click.option("--no-history", is_flag=True, help="Begin with the next sample, also of topics that keep some.")
@click.option("--no-reattach", is_flag=True, help="End when the node goes away, instead of going on at the next one.")
@target_options
def foxglove(target: Target, topics: tuple[str, ...], listen: str, anyone: bool, certificate: Path | None,
             key: Path | None, no_history: bool, no_reattach: bool) -> int:
    """Show TOPICs (names, or patterns with * and ?; all by default) live in Foxglove."""
    host, port = place(listen)
    if (certificate is None) != (key is None):
        raise click.UsageError("--certificate and --key go together")
    if not is_loopback(host) and not anyone:
        raise click.UsageError(
            f"at {host} everybody who reaches it would see the topics: Foxglove's protocol asks for no password. Say "
            "--open if that is meant, or listen on loopback and use a tunnel (ssh -L)")
    if importlib.util.find_spec("foxglove") is None:
        raise click.ClickException("this needs the package foxglove-sdk: pip install foxglove-sdk")
    from spindle.cli.recordings.bridge import Bridge, ready

    use_all_descriptors()
    session = target.attach("spindle foxglove")
    with Bridge(target, session, topics or ("*",), not no_history, not no_reattach) as bridge:
        ready(bridge)
        for like in bridge.absent() if topics else ():
            note(f"waiting for {like!r}; nobody has declared such a topic yet")
        pems = [one.read_bytes() if one is not None else None for one in (certificate, key)]
        found = bridge.serve(host, port, *pems)
        scheme = "ws" if certificate is None else "wss"
        click.echo(f"{scheme}://{f'[{host}]' if ':' in host else host}:{found}")
        if sys.stderr.isatty():
            note("open this address in Foxglove (Open connection, Foxglove WebSocket); Ctrl-C ends")
        sys.stdout.flush()
        with stopped_by_signals(bridge.stop):
            bridge.follow()
    return 0


def place(listen: str) -> tuple[str, int]:
    """Host and port. Raises UsageError."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"--listen {listen!r}: write PORT or HOST:PORT, for example 8765 or 127.0.0.1:8765")
    return host, int(port)


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
