"""Buffers of the library, under the name by which programs for cyclonedds-python import them."""

from cyclonedds_idl._support import *  # noqa: F403
