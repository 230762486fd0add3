"""A peer of another make, which breaks the rules at will: what it may do, it can; nonsense ends its connection alone.

It is a program over pyverbs that shares only the format of addresses. Needs an RDMA device (`make rdma-test` has one).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spindle_core.fabric.verbs_address import Address
from tests.spindle_core.fabric.conformance import BOUND_S
from tests.spindle_core.fabric.verbs_peers import ROW_SIZE, VerbsPeer, failure, needs_verbs
from tests.support import wait_until

pytestmark = needs_verbs

SYSTEM_PYTHON = "/usr/bin/python3"


class Stranger:
    """The pyverbs program, and the member that it is connected to."""

    def __init__(self, process: subprocess.Popen[str], member: VerbsPeer) -> None:
        self.process, self.member = process, member

    def do(self, name: str, *arguments: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer


@pytest.fixture(scope="module")
def program() -> Iterator[subprocess.Popen[str]]:
    if not any(Path(directory, "pyverbs").is_dir() for directory in ("/usr/lib/python3/dist-packages",)):
        pytest.skip(f"{SYSTEM_PYTHON} has no pyverbs (on Debian python3-pyverbs)")
    process = subprocess.Popen([SYSTEM_PYTHON, str(Path(__file__).with_name("pyverbs_peer.py"))], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    yield process
    assert process.stdin is not None
    process.stdin.close()
    process.wait(10)


@pytest.fixture
def stranger(program: subprocess.Popen[str]) -> Stranger:
    it = Stranger(program, VerbsPeer(0, 2, rings=4, ack_timeout=12, retries=4))
    it.member.fabric.connect(1, bytes.fromhex(it.do("begin", 1)["address"]))
    it.do("connect", it.member.fabric.local_address(1).hex())
    return it


def word(kind: int, limit: int) -> int:
    return kind << 30 | limit


def test_a_program_over_pyverbs_writes_and_is_written_to(stranger: Stranger) -> None:
    """Its write with a word lands and wakes; what is posted to it lands in its copy, with the word that it expects."""
    member, fabric = stranger.member, stranger.member.fabric
    fabric.prepare_wait()
    assert stranger.do("write", 4096, b"quietly".hex(), None) == {"status": 0}
    assert not fabric.wait(0.05)
    assert stranger.do("write", 128, b"and with a ring".hex(), word(0, 8)) == {"status": 0}
    assert fabric.wait(BOUND_S)
    assert bytes(member.peer_row(1)[4096:4103]) == b"quietly"
    assert bytes(member.peer_row(1)[128:143]) == b"and with a ring"
    member.row.view()[256:264] = b"to pyv.."
    member.row.view()[8192:12288] = os.urandom(4096)
    fabric.post_writes([(1, 8192, 4096), (1, 256, 8)])
    wait_until(lambda: member.progress() >= 0 and fabric.drained, BOUND_S)
    seen = stranger.do("look", 256, 8)
    assert bytes.fromhex(seen["data"]) == b"to pyv.."
    assert bytes.fromhex(stranger.do("look", 8192, 4096)["data"]) == bytes(member.row.view()[8192:12288])
    # One ring for the list; it has made one of four, and may make five in all.
    assert [entry["word"] for entry in seen["received"]] == [word(0, 5)]
    assert fabric.failures() == {}


NONSENSE = {
    "a ring that tells more credit than it has receives": ("write", 0, "00" * 8, word(0, 8 + 9)),
    "far more credit than it has receives": ("write", 0, "00" * 8, word(0, (1 << 30) - 1)),
    "a word of no kind": ("write", 0, "00" * 8, word(3, 8)),
    "a message that says it is a ring": ("message", "", word(0, 8)),
    "a message with bytes": ("message", "00" * 8, word(0, 8)),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_words_that_make_no_sense_end_the_connection(name: str, stranger: Stranger) -> None:
    what, *arguments = NONSENSE[name]
    stranger.do(what, *arguments)
    assert failure(stranger.member) == "it sent what no node of this version sends"
    assert not any(stranger.member.peer_row(1)) and stranger.member.fabric.ring(1) == 0


@pytest.mark.parametrize("beyond", [True, False], ids=["beyond the row", "with another key"])
def test_what_was_not_registered_can_not_be_written(beyond: bool, stranger: Stranger) -> None:
    """The device refuses; the connection ends on both sides, and no byte is changed."""
    member = stranger.member
    address = Address.parse(member.fabric.local_address(1))
    answer = stranger.do("write", ROW_SIZE - 4 if beyond else 0, "ff" * 8, None,
                         None if beyond else address.row.key ^ 1)
    assert answer["status"] != 0
    assert not any(member.peer_row(1))
    member.fabric.post_writes([(1, 0, 8)])
    assert failure(member) in ("the connection was closed", "it does not answer any more")
