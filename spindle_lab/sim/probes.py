"""Rare paths that a run of nightly size must have taken: else the simulator no longer looks where the bugs are."""

from __future__ import annotations

PHASES = ("stable", "acknowledged", "preparing", "prepared", "wedged", "echoed", "installing")
EVERYWHERE = (
    *(f"crash while {phase}" for phase in (*PHASES, "outside", "admitted")),
    *(f"leader's crash while {phase}" for phase in PHASES if phase != "installing"),
    "ended in the middle of a row's change",
    "overtaken in the middle of a row's change",
    "false suspicion",
    "failed CastOut",
    "failed NoMajority",
    "may not suspect",
    "said what it lacks",
    "left out a joiner",
    "told a member to stop",
    "trim met a full log",
    "application died with a claim",
    "slot still open at the end of its view",
    "silence declared",
    "settled without some",
    "connection broke",
)


def expected(fabric: str) -> tuple[str, ...]:
    """Names of probes that must have been hit."""
    return EVERYWHERE + (("cut off",) if fabric == "copied" else ())
