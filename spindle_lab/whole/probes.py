"""Rare events that a few hundred seeds must meet all the same: else the runs no longer go where bugs are."""

from __future__ import annotations

EXPECTED = (
    "a program without a node has found one",
    "a program without a node has found one through an edge",
    "a program without a node hears of turned",
    "an edge dies",
    "a late reader gets the last messages of each key",
    "a table of keys is what it should be",
    "a key that is over is kept for a while",
    "a key goes whose delay is over",
    "a sample goes because of a limit",
    "a reader finds the type of another program's writer",
    "a journal has the types of its messages",
    "a reader goes on at the next node",
    "a reader may have missed something before the next node",
    "a writer sends again at the next node",
    "a node brings newer settings into its group",
    "a node with older settings learns the group's",
    "a reader is told that a writer gives no sign of life",
    "a reader is told that a writer lives again",
    "a reader gets a set",
    "a reader gets a set of several messages",
    "a reader gives up a set whose writer has gone",
    "a reader is told what time it is",
    "a topic is deleted",
    "a message is taken of a topic that has begun anew",
    "a topic is opened that somebody else has declared",
    "a liar is shown the door",
    *(f"a liar: {lie}" for lie in ("ask_nonsense", "flood", "half_a_frame", "hand_over", "hang_up", "miscount", "open",
                                   "say_nonsense", "say_nothing", "scribble", "write")),
)
