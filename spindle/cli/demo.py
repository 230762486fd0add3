"""`spindle demo`: hands over to spindle.demo."""

from __future__ import annotations

import click


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo(arguments: tuple[str, ...]) -> int:
    """Replay a recorded flight on three nodes and prove what they agree on."""
    from spindle.demo import main

    try:
        return int(main([one for one in arguments if one != "--debug"]) or 0)
    except SystemExit as end:  # argparse after --help or a mistake
        return end.code if isinstance(end.code, int) else 0
