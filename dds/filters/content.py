"""What readers and conditions need of a filter, however it is written.

Why two questions: decoding a sample costs more than most decisions. A filter is asked with the payload first, and with
the decoded sample only if the payload didn't tell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from spindle.errors import give_way

LOG = logging.getLogger("dds")


class Undecided(Exception):
    """A filter can't tell about a sample, because the sample isn't what its type promises."""


class Content(Protocol):
    """Decides by the content of samples."""

    def of_payload(self, payload: bytes) -> bool | None:
        """Whether the sample with this payload passes; None if only the sample itself can tell."""
        ...

    def of_sample(self, sample: Any) -> bool:
        """Whether `sample` passes. Raises Undecided, and what a function of the program raises."""
        ...


class ByFunction:
    """Samples for which a Python function of the program is true."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def of_payload(self, payload: bytes) -> bool | None:
        return None

    def of_sample(self, sample: Any) -> bool:
        return bool(self._function(sample))


class Forgiving(ByFunction):
    """As ByFunction; samples that the function raises an exception for don't pass, and the log has the first one.

    What a QueryCondition asks is asked again and again, by whoever waits, too: an exception of it would come out
    of calls that have nothing to do with the sample.
    """

    _told = False

    def of_sample(self, sample: Any) -> bool:
        try:
            return super().of_sample(sample)
        except Exception as error:
            give_way(error)
            if not self._told:
                self._told = True
                LOG.warning("the function %r of a QueryCondition raised %r: such samples don't pass it",
                            getattr(self._function, "__qualname__", self._function), error, exc_info=error)
            return False


class Both:
    """Samples that pass two filters; the second is asked about those that pass the first."""

    def __init__(self, first: Content, second: Content) -> None:
        self._first = first
        self._second = second

    def of_payload(self, payload: bytes) -> bool | None:
        verdict = self._first.of_payload(payload)
        if verdict:
            return self._second.of_payload(payload)
        return verdict

    def of_sample(self, sample: Any) -> bool:
        return self._first.of_sample(sample) and self._second.of_sample(sample)


__all__ = ["Both", "ByFunction", "Content", "Forgiving", "Undecided"]
