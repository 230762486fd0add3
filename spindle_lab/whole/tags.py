"""Tags of the messages that simulated programs write: of each message the same wherever it is taken."""

ENDS = 1
FAREWELL = 9
DEPARTURE = 17
LAPSE = 33
REVIVAL = 34
TIME = 35
PRESENT, PRESENT_RANKED = 200, 201  # of messages of which a table says only that their writers are there
TIMED = 255  # of a message that counts for a time, as its last bytes say
_TAGS = (0, 0, ENDS, TIMED)


def tag_of(payload: bytes) -> int:
    return _TAGS[len(payload) % len(_TAGS)]
