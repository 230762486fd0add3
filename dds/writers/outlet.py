"""The way out of a writer: one attempt at its present node, and the same again at the next one when that has gone.

Why one loop: whatever a writer does with its inbox (write, write many, claim a slot, send a set) can find the node gone
in its middle. What follows is the same each time: what was on its way is in doubt, the program hears of that before
anything else is written, and only then does it go on elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from dds.exceptions import DDSException, DDSTimeout, is_about_sample, of_topic, translate
from dds.waiting.wake import Deadline, park

if TYPE_CHECKING:
    from dds.writers.link import WriterLink

R = TypeVar("R")


def through(link: WriterLink, attempt: Callable[[Any, float], R], deadline: Deadline, topic: str = "") -> R:
    """What attempt(inbox, seconds that it may wait) returns, at the first node that doesn't go away in its middle.

    deadline  for all attempts together
    topic     the name by which the program knows it, if that isn't the link's
    Raises DDSUnacknowledged before an attempt, if something is in doubt that nobody has heard of; DDSTimeout,
    DDSNodeLost, DDSSampleTooLarge, or what the attempt raises for a wrong sample.
    """
    while True:
        inbox = link.handle.inbox  # before the check: of what an earlier one had, it says whether that is in doubt
        link.check()
        try:
            return attempt(inbox, deadline.wait_s())
        except DDSException:
            raise
        except ConnectionError:
            link.renew(deadline)
        except Exception as error:
            raise write_error(error, link, topic) from error


def write_error(error: BaseException, link: WriterLink, topic: str = "") -> BaseException:
    """What write() raises for `error`; the same kind for a wrong sample. `topic` as in through(). Raises what a signal
    handler has raised."""
    if isinstance(error, Exception) and is_about_sample(error):
        return of_topic(error, topic or link.spec.name)
    park()
    if link.is_closed:
        return link.closed_error(topic)
    found = translate(error, f"writing to topic {topic or link.spec.name!r}")
    if isinstance(error, TimeoutError) and (held_up_by := link.held_up_by(
            getattr(error, "for_memory", False))):
        return DDSTimeout(f"{found.msg}; it waits for {held_up_by}")
    return found


__all__ = ["through", "write_error"]
