"""What a group agrees on besides its members and topics: settings that all its nodes go by, in versions.

Why in the view: a file is changed on one host after the other, so for a while nodes are started with old ones and new
ones. Whoever comes with a newer version brings it into the next view, in order with everything else; whoever comes with
an older one, or with other values of the same, learns the group's. So nobody is refused for being early or late.

Rules: a version that is greater replaces all values; it never goes back. Version 0 is that of a group that has said
nothing.
"""

from __future__ import annotations

import dataclasses
import math

from spindle.errors import ConfigError

CONTACTS_MAX = 1024
VERSION_MAX = 1 << 31


@dataclasses.dataclass(frozen=True)
class Settings:
    """Version and values; the names are those of the configuration. Raises ConfigError if a value is impossible."""

    version: int = 0
    suspect_timeout_s: float = 0.0
    contacts: tuple[str, ...] = ()
    form: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.version <= VERSION_MAX:
            raise ConfigError(f"version {self.version} of a group's settings: must be 0 to {VERSION_MAX}")
        if self.version and not (math.isfinite(self.suspect_timeout_s) and self.suspect_timeout_s > 0):
            raise ConfigError(f"[membership] suspect_timeout_s = {self.suspect_timeout_s} in a group's settings")
        if len(self.contacts) > CONTACTS_MAX:
            raise ConfigError(f"{len(self.contacts)} [network] contacts in a group's settings, limit {CONTACTS_MAX}")

    def differences(self, other: Settings) -> str:
        """For people: the values that differ from those of `other`; "" if at most the version does."""
        return "; ".join(f"{name} = {_text(mine)}, not {_text(theirs)}" for name, mine, theirs in (
            ("[membership] suspect_timeout_s", self.suspect_timeout_s, other.suspect_timeout_s),
            ("[network] contacts", self.contacts, other.contacts), ("[network] form", self.form, other.form),
        ) if mine != theirs)


UNSAID = Settings()


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
