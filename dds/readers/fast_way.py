"""The fast way of a reader: it takes from the log in order, and keeps nothing.

Open while samples need not be looked at one by one: nothing is kept, no writer is to be ignored, the topic has no
filter. KeepLast of instances, too, has it where all that has come is taken at once (`_take_newest`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from dds.exceptions import DDSException, undecodable
from dds.filters.content import Content
from dds.readers.reader_qos import ReaderByQos
from dds.readers.source import REFUSALS
from dds.status import InstanceState, SampleState, ViewState
from spindle.errors import of_signal

ANY = SampleState.Any | ViewState.Any | InstanceState.Any
UNREAD = SampleState.NotRead | ViewState.Any | InstanceState.Any


class FastWay(ReaderByQos):
    """The base of `dds.readers.reader.ReaderCore`.

    _fast     samples are taken in order, those that the Qos wants only by counting
    _newest   those that the Qos wants are the last of each instance, and no other
    _failure  of a sample that was taken with others, to be raised by the next call; None: there is none
    """

    _newest: bool
    _failure: Exception | None
    _consumed: int
    _bytes_sample: Any
    _info_type: Any
    _live_info: Any
    _lock: threading.RLock

    def _search(self, n: int, mask: int, content: Content | None, handle: int | None, take: bool,
                order: Callable[[Any], Any] | None = None) -> list[Any]:
        """Up to `n` samples that are looked at one by one."""
        raise NotImplementedError

    def _await_own(self, wanted: int, found: int) -> bool:
        """Wait a moment for what this process has written."""
        raise NotImplementedError

    @property
    def _is_free(self) -> bool:
        """Whatever comes, and has no tag, is something for the program, though not all of it."""
        return self._fast or self._newest

    @property
    def _has_plain(self) -> bool:
        """There is such a message."""
        return self._is_free and self._source.log.pending > 0 and not self._source.log.meets_tagged

    def _take_fast(self, n: int) -> list[Any]:
        if not self._fast:  # any more
            return self._search(n, ANY, None, None, True)
        if self._limit:
            self._look_for_rejected()
        log = self._source.log
        samples: list[Any] = []
        try:
            if self._depth:
                self._skip()
                if log.tagged_ahead:  # what it is must be known before it is said which ones are the last
                    return self._search(n, ANY, None, None, True)
            if self._codec.kind != "bytes":
                with self._lock:  # decoding lets other threads run
                    if self._intake.is_ahead():
                        return self._search(n, ANY, None, None, True)
                    self._take_decoded(n, samples)
            else:
                log.take(n, self._bytes_sample, self._info_type, self._intake.before, samples)
                if not samples and self._intake.before:
                    return self._take_behind(n)
            self._consumed += len(samples)
        except REFUSALS as error:
            self._put_back(samples)
            if log is not self._source.log:  # another thread has gone on in the next one meanwhile
                return self._take_fast(n)
            raise self._source.refusal(error) from None
        except BaseException:
            self._put_back(samples)
            raise
        self._info_type = self._live_info if samples else self._info_type
        return samples

    def _put_back(self, samples: list[Any]) -> None:
        """Whoever took these was interrupted, and has not got them."""
        if samples:
            with self._lock:
                self._intake.put_back(samples)

    def _take_behind(self, n: int) -> list[Any]:
        """Another thread has let samples in, which come first, or had."""
        with self._lock:
            if self._intake.is_ahead():
                return self._search(n, ANY, None, None, True)
        return self._take_fast(n)

    def _take_newest(self, n: int) -> list[Any]:
        """KeepLast of instances: the last ones of each, at once where `n` are not fewer than all that has come; else
        what is left must be kept, and they are looked at one by one."""
        source = self._source
        if source.log.pending < n:
            self._await_own(n, 0)
        samples: list[Any] = []
        try:
            with self._lock:
                pending = source.log.pending
                if not self._newest or not 0 < pending <= n or self._intake.is_ahead() or source.log.tagged_ahead:
                    return self._search(n, ANY, None, None, True)
                try:
                    self._take_decoded(pending, samples)
                except REFUSALS as error:
                    raise source.refusal(error) from None
                self._look_for_lost()
                self._consumed += len(samples)
                self._info_type = self._live_info
            wanted = [one for one in samples if one.sample_info.following < self._depth]
        except BaseException:
            self._put_back(samples)
            raise
        return wanted

    def _skip(self) -> None:
        """KeepLast: skip all but the newest. Skipped samples are replaced, not lost, so lost ones are counted here."""
        self._source.log.skip_to_last(self._depth)
        self._look_for_lost()

    def _take_decoded(self, n: int, samples: list[Any]) -> None:
        """Adds to `samples`. Under the lock."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._consumed += 1
            raise undecodable(self._topic.name, failure) from failure
        while True:
            try:
                self._take_some(n - len(samples), samples)
                return
            except Exception as error:
                if getattr(error, "taken", None) is None:
                    raise  # not from decoding
                self._consumed += 1
                self._intake.refuse(error)
                self._look_for_refused()

    def _take_some(self, n: int, samples: list[Any]) -> None:
        instances, codec = self._intake.instances, self._codec
        keys, learn = (None, None) if instances is None else (instances.table, self._intake.learn)
        self._source.log.take_with(
            n, codec.decode, self._info_type, keys=keys, learn=learn, decode_large=codec.decode_lasting, into=samples,
            interrupts=of_signal)

    def _complete(self, n: int, samples: list[Any]) -> list[Any]:
        """Fewer came than wanted: look at what must be looked at one by one, wait for our own writes that are on their
        way, or say that nothing can come."""
        if self._source.log.meets_tagged:
            return self._go_on_by_one(n, samples)
        if self._failure is None and self._await_own(n - len(samples), len(samples)):
            samples = samples + self._take_plain_or_tagged(n - len(samples))
        return samples or self._source.first(lambda: self._take_plain_or_tagged(n), samples)

    def _take_plain_or_tagged(self, n: int) -> list[Any]:
        samples = self._take_fast(n)
        return samples if samples or not self._source.log.meets_tagged else self._go_on_by_one(n, samples)

    def _go_on_by_one(self, n: int, samples: list[Any]) -> list[Any]:
        """After `samples` there is a message with a tag."""
        try:
            return samples + self._select_more(n - len(samples))
        except DDSException as error:
            if not samples:
                raise
            self._failure = error  # the next call raises for that
            return samples

    def _select_more(self, n: int) -> list[Any]:
        found = self._search(n, ANY, None, None, True)
        if len(found) < n and self._await_own(n - len(found), len(found)):
            found += self._search(n - len(found), ANY, None, None, True)
        return found


def sample_count(n: object) -> int:
    """N of take() and read() as an int. TypeError unless it is positive."""
    if isinstance(n, bool) or not hasattr(n, "__index__") or n.__index__() < 1:
        raise TypeError(f"N must be a positive int, not {n!r}")
    return int(n.__index__())
