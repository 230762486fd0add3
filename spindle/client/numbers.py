"""Lists of numbers as bytes and back, for layers that encode types and don't know the core. Loads an extension module.
"""

from __future__ import annotations

from spindle_core.numbers import bytes_of, numbers_of

__all__ = ["bytes_of", "numbers_of"]
