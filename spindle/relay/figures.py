"""What a node counts of the applications on hosts without a node that it has served, for status and metrics."""

from __future__ import annotations

import dataclasses


def _counter(text: str) -> int:
    return dataclasses.field(default=0, metadata={"help": text})


@dataclasses.dataclass
class RelayFigures:
    """Counts since the node began. The metadata of each field says under `help` what it counts."""

    turned: int = _counter("applications without a node that turned to this one from another, or came back to it")
    refused: int = _counter("applications without a node that were refused, or cut off for what they sent")
    taken: int = _counter("messages taken from writers of applications without a node")
    taken_bytes: int = _counter("their payload")
    given: int = _counter("messages sent to readers of applications without a node")
    given_bytes: int = _counter("their payload")


RELAY_HELP = {one.name: one.metadata["help"] for one in dataclasses.fields(RelayFigures)}
