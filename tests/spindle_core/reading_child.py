"""A process that reads a delivery log and reports what it saw as JSON: the other half of test_reader_concurrent.py.

It is run as a program, `reading_child.py log_fd cursor_fd data_fd how`, with the three descriptors passed on. Every
message says by itself whether it is whole: its number, repeated, then the CRC-32 of that.
"""

from __future__ import annotations

import json
import sys
import time
import zlib

from spindle_core.errors import CoreError, NodeGone
from spindle_core.memory import Mapping
from spindle_core.reader import LogReader

WAIT_S = 30.0


def numbered(number: int, words: int) -> bytes:
    """Message `number`: at least one word of 8 bytes, and 4 bytes of checksum."""
    body = number.to_bytes(8, "little") * words
    return body + zlib.crc32(body).to_bytes(4, "little")


def number_of(message: bytes) -> int:
    """The number in a message; -1 if the message isn't whole."""
    body, crc = message[:-4], message[-4:]
    if zlib.crc32(body).to_bytes(4, "little") != crc or body != body[:8] * (len(body) // 8):
        return -1
    return int.from_bytes(body[:8], "little")


def blocks(reader: LogReader) -> list[bytes]:
    """One block's messages; [] if the log went over it while they were copied."""
    block = reader.take_block(32)
    if block is None:
        return []
    memory = block.buffer
    with block:
        at = [block.offset + i * block.stride for i in range(block.count)]
        messages = [bytes(memory[a : a + block.payload_size]) for a in at]
        return messages if block.intact else []


def read_all(reader: LogReader, how: str) -> dict[str, object]:
    """Reads until the writer stops; what came, in numbers."""
    last, torn, backwards, gaps, taken, error, pauses = -1, 0, 0, 0, 0, "", 0
    try:
        while True:
            reader.wait(WAIT_S)
            if how == "block":
                messages = blocks(reader)
            elif how == "last":
                reader.skip_to_last(3)
                messages = reader.take(3)
            else:
                messages = reader.take(64)
            for message in messages:
                number = number_of(message)
                torn += number < 0
                backwards += number <= last
                gaps += number != last + 1
                last = number
            taken += len(messages)
            if how == "lazy" and taken >> 9 > pauses:
                pauses = taken >> 9
                time.sleep(0.001)  # falls behind, so that the log overtakes it: nothing depends on how long it takes
    except NodeGone:
        pass
    except CoreError as e:
        error = str(e)
    return {
        "last": last,
        "torn": torn,
        "backwards": backwards,
        "gaps": gaps,
        "taken": taken,
        "lost": reader.lost,
        "index": reader.position_index,
        "error": error,
    }


def main() -> None:
    log_fd, cursor_fd, data_fd = map(int, sys.argv[1:4])
    reader = LogReader(Mapping.attach(log_fd), Mapping.attach(cursor_fd, True), data_fd)
    print(json.dumps(read_all(reader, sys.argv[4])))


if __name__ == "__main__":
    main()
