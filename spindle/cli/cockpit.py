"""`spindle cockpit`: a page about the group, for browsers."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import click

from spindle.cli.common import Target, target_options
from spindle.errors import SpindleError

EPILOG = """\b
Examples:
  spindle cockpit                       print the address, and serve it
  spindle cockpit --actions             with buttons for who has the token
  spindle cockpit --listen 8080 -n 2    on that port, as node 2 sees it
  spindle cockpit --nodes host1,host2   of nodes on other hosts
  ssh -L 7480:127.0.0.1:7480 host       and open the address here

\b
It listens on this host alone unless --listen names another address: then the
page comes over TLS, with the certificates that [network] of --config names.
Whoever has the address with its token sees what you may see; keep it to
yourself. `[web] listen` of a daemon serves the same page all the time.
Ctrl-C ends it.
"""


@click.command(epilog=EPILOG)
@click.option("-l", "--listen", metavar="[HOST:]PORT", help="Where. [default: a free port from 127.0.0.1:7480 on]")
@click.option("--actions", is_flag=True, help="Let who has the token act: cast out, leave, delete, record.")
@click.option("--recordings", type=click.Path(path_type=Path), metavar="DIR", help="Where recordings go.")
@click.option("-c", "--config", "path", type=click.Path(path_type=Path), envvar="SPINDLE_CONFIG",
              help="TOML file, for its [web], [network] certificates and [access] rules.")
@target_options
def cockpit(target: Target, listen: str | None, actions: bool, recordings: Path | None, path: Path | None) -> int:
    """Serve a page for browsers: the group, its topics and samples, live.

    It shows whether the group is whole, what has happened, how fast topics are, who holds whom back, and live samples.
    """
    if importlib.util.find_spec("aiohttp") is None:
        raise SpindleError("the cockpit takes the package aiohttp, which is not installed: pip install aiohttp")
    from spindle.cockpit.running import Ways, run
    from spindle.config.loading import load_config

    config = load_config(path)
    config = dataclasses.replace(
        config, domain_id=target.domain, web_listen=listen or config.web_listen,
        web_actions=actions or config.web_actions, web_recordings=recordings or config.web_recordings,
        runtime_dir=target.runtime_dir or config.runtime_dir)
    with target.attach("spindle cockpit") as session:
        node_id = session.node_id
    if path is not None and not target.nodes:
        target = dataclasses.replace(target, runtime_dir=config.runtime_dir)
    ways = Ways(target.domain, target.node, target.runtime_dir, target.nodes)

    def ready(url: str) -> None:
        click.echo(f"spindle: cockpit of node {node_id}, domain {target.domain}: {url}")

    return run(config, ways, config.web_listen if listen or path else None, None, ready)
