"""A benchmark's child process: `python -m spindle_lab.bench.worker FD PARENT`, started by crew.Worker only.

It dies with its parent, takes its role and configuration from the line, and reports failure as a message with the
traceback, so that the parent can say what went wrong where.
"""

from __future__ import annotations

import importlib
import os
import resource
import sys
import traceback
from collections.abc import Callable
from typing import Any

from spindle_lab.bench.channel import Channel, ChannelClosed

# Role to the function that plays it. Imported when needed: the bare loops must not load the node.
ROLES = {
    "limit": "spindle_lab.bench.limit:work",
    "stream": "spindle_lab.bench.stream:work",
    "core": "spindle_lab.bench.core_node:work",
    "app": "spindle_lab.bench.app_node:work",
    "idle": "spindle_lab.bench.idle:work",
    "startup": "spindle_lab.bench.startup:work",
    "replicas": "spindle_lab.bench.replicas:work",
    "topics": "spindle_lab.bench.topics:work",
    "large": "spindle_lab.bench.large:work",
    "links": "spindle_lab.bench.links:work",
    "failover": "spindle_lab.bench.failover:work",
}


def cpu_s() -> float:
    """CPU time of this process so far: user and system, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def play(role: str) -> Callable[[Channel, dict[str, Any]], None]:
    module, _, function = ROLES[role].partition(":")
    return getattr(importlib.import_module(module), function)


def main(arguments: list[str]) -> int:
    fd, parent = int(arguments[0]), int(arguments[1])
    from spindle_lab.bench.bare import die_with_parent

    die_with_parent()
    if os.getppid() != parent:
        return 1  # it had died before we asked to die with it
    channel = Channel.inherited(fd)
    try:
        message, _ = channel.receive()
        play(message["role"])(channel, message["config"])
    except ChannelClosed:
        return 1
    except BaseException:
        try:
            channel.send({"event": "failed", "traceback": traceback.format_exc()})
        except ChannelClosed:
            traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Straight out: interpreter shutdown with live threads of a failed run must not hang the benchmark.
    os._exit(code)
