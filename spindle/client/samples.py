"""What a reader's log says of each message, for layers that derive their own sample info from it.

Why here: layers above the client don't know the core. Imported by whoever opens a reader, not by the package, because
it loads an extension module.
"""

from __future__ import annotations

from spindle_core.message import MessageInfo, message_type

__all__ = ["MessageInfo", "message_type"]
