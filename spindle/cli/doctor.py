"""`spindle doctor`: the checks of spindle.cli.checks, shown."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from spindle.cli.common import Target, beside_file, json_option, print_json, target_options

EPILOG = """\b
Examples:
  spindle doctor
  spindle doctor -c /etc/spindle/spindle.toml   with what that node has:
                                                directories, hosts, keys
  spindle doctor --json | jq '.checks[] | select(.verdict != "ok")'

\b
Verdicts: ok; warn (works, but slow or fragile); fail (a node can't work).
Exit code 1 if anything fails.
"""

HEADINGS = {"machine": "Machine", "files": "Files", "clocks": "Clocks", "network": "Network", "rdma": "RDMA"}
SIGNS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}


@click.command(epilog=EPILOG)
@click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(path_type=Path),
    envvar="SPINDLE_CONFIG",
    help="Check for the node of this configuration.",
)
@json_option
@target_options
def doctor(target: Target, path: Path | None, as_json: bool) -> int:
    """Check what of this machine would hurt a node, and say what to do about it.

    Looks at Python and kernel, shared memory, limits and cores; the directories of sockets and journals, and what dead
    nodes left behind; clocks; the other hosts and this node's keys; RDMA. Changes nothing.
    """
    from spindle.cli.checks import FAIL, Machine, run_checks, worst
    from spindle.config.loading import load_config

    below, above = beside_file({"domain": ("domain_id", target.domain), "node": ("node_id", target.node),
                                "runtime_dir": ("runtime_dir", target.runtime_dir)})
    config = load_config(path, below=below, above=above)
    results = run_checks(Machine(config.domain_dir, config=config))
    verdict = worst(results)
    if as_json:
        print_json({"verdict": verdict, "checks": [dataclasses.asdict(result) for result in results]})
    else:
        width = max(len(result.name) for result in results)
        section = ""
        for result in results:
            if result.section != section:
                section = result.section
                click.echo(click.style(HEADINGS[section], bold=True))
            sign, colour = SIGNS[result.verdict]
            click.echo(f"{click.style(sign, fg=colour, bold=True)} {result.name:<{width}}  {result.detail}")
            if result.advice:
                click.echo(f"  {'':<{width}}  {click.style('→ ' + result.advice, fg=colour)}")
        count = {kind: sum(result.verdict == kind for result in results) for kind in SIGNS}
        click.echo(f"\n{count['ok']} ok, {count['warn']} to look at, {count['fail']} failed")
    return 1 if verdict == FAIL else 0
