"""The node of Spindle: membership, topics, daemon, client attachment and tools.

Nothing is imported here: `import dds` passes through this package and must stay quick. Take what you need from its
modules, for example `from spindle.client import attach`.
"""

from __future__ import annotations

__version__ = "0.1.0"
