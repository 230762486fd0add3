"""The command `spindle`: one group, its subcommands loaded only when used.

Why lazy: `spindle --help` and `spindle pub` in a shell loop must feel instant, and rich, protobuf or the benchmarks
would each cost more than the command itself. So `root` knows every command's name, place and one line of help, and
imports the module of a command when it runs.

Rules:
- What a script might read is on stdout, also as --json; everything said to a person besides is on stderr.
- An error is one line on stderr, `spindle: what happened; what to do`, and an exit code (docs/operations.md, "Exit
  codes"). Tracebacks only with --debug.
- Every command takes --domain, --node and --runtime-dir where it talks to a node.
"""

from __future__ import annotations

from spindle.cli.root import cli, main

__all__ = ["cli", "main"]
