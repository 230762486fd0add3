"""`spindle daemon`: configuration from file and options, then the node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spindle.cli.common import beside_file, debug_option, given_on_line

if TYPE_CHECKING:
    from spindle.config.settings import NodeConfig

EPILOG = """\b
Examples:
  spindle daemon                                 a node with the defaults
  spindle daemon --print-config > spindle.toml   all keys, explained
  spindle daemon --config spindle.toml           run with that file
  spindle daemon --journal-dir /var/lib/spindle  with logged topics
  spindle daemon --metrics 9464                  Prometheus on 127.0.0.1:9464
  spindle daemon --web 7480                      a page on 127.0.0.1:7480
  spindle daemon --set core.null_sends=false     any key of the file, once
  spindle daemon --edge --nodes host1,host2      no node: programs here use
                                                 those, over one connection

\b
Three nodes on one host, to try things out (each takes the lowest free id):
  spindle daemon & spindle daemon & spindle daemon &

The node runs in the foreground and logs to stderr. SIGTERM, SIGHUP or Ctrl-C makes it leave the group in order.
docs/configuration.md has every key; packaging/ has units for systemd and a
container file, docs/operations.md how to use them.
"""


EDGE_OPTIONS = {"edge_nodes": "--nodes", "certificate": "--certificate", "certificate_key": "--key",
                "authority": "--authority", "secret": "--secret"}


def configuration(path: Path | None, options: dict[str, Any], settings: tuple[str, ...]) -> NodeConfig:
    """The environment, then the file that the command line names, then --set, then options: later wins. Raises
    ConfigError."""
    from spindle.config.loading import load_config

    below, above = beside_file({name: (name, value) for name, value in options.items()})
    return load_config(path, below=below, above={**dict(setting(text) for text in settings), **above})


def for_edge(options: dict[str, Any]) -> dict[str, Any]:
    """The options of an edge: addresses are several."""
    nodes = options.pop("edge_nodes")
    return {**options, "edge_nodes": tuple(filter(None, map(str.strip, (nodes or "").split(","))))}


def for_node(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a node: without those of an edge, which the environment may have for other commands. Raises
    ConfigError if the command line has them."""
    from spindle.errors import ConfigError

    for name, option in EDGE_OPTIONS.items():
        if given_on_line(name):
            raise ConfigError(f"{option} is for an edge: give --edge, too; a node has such things in its "
                              "configuration file, or by --set")
    return {name: value for name, value in options.items() if name not in EDGE_OPTIONS}


def setting(text: str) -> tuple[str, Any]:
    """ "core.busy_poll_us=20" to ("busy_poll_us", 20). The value is TOML; what isn't, is taken as text."""
    from spindle.config.loading import parse_toml, settings_of
    from spindle.errors import ConfigError

    name, equals, value = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if not equals or not dot:
        raise ConfigError(f"--set {text}: write SECTION.KEY=VALUE, as core.busy_poll_us=20")
    try:
        content = parse_toml(f"value = {value}", "value")["value"]
    except ConfigError:
        content = value.strip()
    return next(iter(settings_of({section: {key: content}}).items()))


@click.command(epilog=EPILOG)
@click.option("-c", "--config", "path", type=click.Path(path_type=Path), envvar="SPINDLE_CONFIG", help="TOML file.")
@click.option("-d", "--domain", "domain_id", type=int, envvar="SPINDLE_DOMAIN", help="DDS domain. [default: 0]")
@click.option(
    "-n", "--node", "node_id", type=int, envvar="SPINDLE_NODE_ID", help="Id of this node. [default: the lowest free]"
)
@click.option(
    "--runtime-dir", type=click.Path(path_type=Path), envvar="SPINDLE_RUNTIME_DIR", help="Directory of the sockets."
)
@click.option("--name", help="Name in listings. [default: host name and process id]")
@click.option("--journal-dir", type=click.Path(path_type=Path), help="Directory of the logged topics' files.")
@click.option("--metrics", "metrics_listen", metavar="[HOST:]PORT", help="Prometheus endpoint.")
@click.option("--web", "web_listen", metavar="[HOST:]PORT", help="Cockpit, a page for browsers.")
@click.option("--busy-poll-us", type=int, help="Microseconds to spin before sleeping. [default: 10]")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="[default: info]")
@click.option("--edge", is_flag=True, help="Be no node, but bring this host's programs to nodes elsewhere.")
@click.option("--nodes", "edge_nodes", metavar="HOST:PORT,...", envvar="SPINDLE_NODES", help="With --edge: the nodes.")
@click.option("--certificate", type=click.Path(path_type=Path), envvar="SPINDLE_CERTIFICATE",
              help="With --edge: of an application, as `spindle keys application` makes it.")
@click.option("--key", "certificate_key", type=click.Path(path_type=Path), envvar="SPINDLE_KEY",
              help="With --edge: the certificate's key.")
@click.option("--authority", type=click.Path(path_type=Path), envvar="SPINDLE_AUTHORITY",
              help="With --edge: who signs the nodes' certificates.")
@click.option("--secret", type=click.Path(path_type=Path), envvar="SPINDLE_SECRET",
              help="With --edge: the site's secret, where it has no certificates.")
@click.option("--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Any key of the file; repeatable.")
@click.option("--print-config", is_flag=True, help="Print the resulting configuration, annotated, and exit.")
@debug_option
def daemon(path: Path | None, settings: tuple[str, ...], print_config: bool, edge: bool, **options: Any) -> int:
    """Run a node of a domain, or an edge.

    The node joins the group of its domain, or forms it if it is the first, and takes applications until it is stopped.

    An edge is for a host that runs no node: it takes applications, too, and brings all of them to a node of another
    host over one connection.
    """
    config = configuration(path, for_edge(options) if edge else for_node(options), settings)
    if edge and not config.edge_nodes:
        from spindle.errors import ConfigError

        raise ConfigError("--edge: which nodes? Name them: --nodes host1,host2, $SPINDLE_NODES, or [edge] nodes in "
                          "the file")
    if print_config:
        from spindle.config.reference import toml_text

        click.echo(toml_text(config), nl=False)
        return 0
    from spindle.service.daemon import run_daemon

    return int(run_daemon(config) or 0)
