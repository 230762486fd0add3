"""What a fuzz target is, and the table of all targets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus"


@dataclasses.dataclass(frozen=True)
class Target:
    """One decoder under test.

    name      also of its corpus file
    run       takes any bytes; whatever it raises is a finding
    seeds     good inputs made by the code itself, to begin with
    size_max  bytes; longer inputs are not tried
    message   protobuf class of what is in an input with this prefix, if it is one: it is then also changed as such
    prefix    bytes before blocks of messages; None: the whole input is one message
    compiled  what is tested is no Python, so that coverage tells nothing of it: inputs are changed seeds, of any length
    """

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    size_max: int
    message: Callable[[bytes], Any] | None = None
    prefix: int | None = None
    compiled: bool = False

    @property
    def what(self) -> str:
        """What is fuzzed, for people: first line of the function's text."""
        return (self.run.__doc__ or "").strip().splitlines()[0]

    @property
    def corpus_path(self) -> Path:
        return CORPUS / f"{self.name}.txt"

    def corpus(self) -> list[bytes]:
        """What is kept of earlier fuzzing."""
        if not self.corpus_path.exists():
            return []
        return [bytes.fromhex(line) for line in self.corpus_path.read_text().splitlines()]

    def keep(self, inputs: Iterable[bytes]) -> None:
        """Replaces the corpus, smallest first, so that the same inputs always make the same file."""
        lines = [one.hex() for one in sorted(set(inputs), key=lambda one: (len(one), one))]
        if lines:
            self.corpus_path.write_text("".join(f"{line}\n" for line in lines))
        else:
            self.corpus_path.unlink(missing_ok=True)


TARGETS: dict[str, Target] = {}


def target(seeds: Callable[[], Iterable[bytes]], size_max: int = 4096,
           message: Callable[[bytes], Any] | None = None, prefix: int | None = None, compiled: bool = False,
           ) -> Callable[[Callable[[bytes], None]], Target]:
    """Makes a function the target of its name."""

    def register(run: Callable[[bytes], None]) -> Target:
        made = TARGETS[run.__name__] = Target(run.__name__, run, seeds, size_max, message, prefix, compiled)
        return made

    return register


class Cutter:
    """Takes an input apart; what isn't there any more reads as zero or empty."""

    def __init__(self, data: bytes) -> None:
        self.rest = data

    def take(self, size: int) -> bytes:
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken

    def number(self, size: int = 1) -> int:
        return int.from_bytes(self.take(size), "little")

    def blocks(self) -> Iterator[bytes]:
        """The rest as blocks, each behind two bytes of length."""
        while self.rest:
            yield self.take(self.number(2))


def in_blocks(blocks: Iterable[bytes]) -> bytes:
    """Inverse of Cutter.blocks()."""
    return b"".join(len(one).to_bytes(2, "little") + one for one in blocks)
