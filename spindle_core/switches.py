"""Which of the paper's techniques a node uses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Switches:
    """The paper's techniques, each of which can be switched off; all off is its baseline (sections 3.2 to 3.4).

    Two switches are not the paper's. skip_idle: a pass visits only topics in which something may have changed.
    exchange_first: a pass receives and acknowledges in all of these before it delivers in any. With both off a pass
    goes through all topics, one after the other, as in the paper.
    """

    batch_send: bool = True
    batch_receive: bool = True
    batch_delivery: bool = True
    null_sends: bool = True
    post_after_unlock: bool = True
    skip_idle: bool = True
    exchange_first: bool = True

    @classmethod
    def baseline(cls) -> Switches:
        return cls(False, False, False, False, False, False, False)
