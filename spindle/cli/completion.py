"""`spindle completion`: tab completion of commands, options and topic names."""

from __future__ import annotations

import click

from spindle.cli.common import debug_option

EPILOG = """\b
Once for all new shells of bash:
  spindle completion bash > ~/.local/share/bash-completion/completions/spindle
of zsh, with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc:
  spindle completion zsh > ~/.zfunc/_spindle
of fish:
  spindle completion fish > ~/.config/fish/completions/spindle.fish

\b
For this shell only:
  eval "$(spindle completion bash)"
"""


@click.command(epilog=EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@debug_option
def completion(shell: str) -> None:
    """Print the tab completion of SHELL.

    Topic names are completed too, from the running daemon.
    """
    from click.shell_completion import get_completion_class

    from spindle.cli.root import COMPLETE_VARIABLE, cli

    made = get_completion_class(shell)
    assert made is not None
    generator = made(cli, {}, "spindle", COMPLETE_VARIABLE)
    # not generator.source(): that starts the bash of this machine to look at its version
    click.echo(generator.source_template % generator.source_vars())
