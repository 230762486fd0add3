"""What a reader's log says of each message, and where its key is found, for layers that derive their own from it.

Why here: layers above the client don't know the core. Not imported by the package, because it loads extension modules.
"""

from __future__ import annotations

from spindle_core.keyed import Keyed, KeyedInfo, KeyPlaces, KeyTable
from spindle_core.message import MessageInfo, message_type

__all__ = ["KeyPlaces", "KeyTable", "Keyed", "KeyedInfo", "MessageInfo", "message_type"]
