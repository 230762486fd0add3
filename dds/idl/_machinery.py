"""What encodes one member, of the library, under the name by which programs for cyclonedds-python import it."""

from cyclonedds_idl._machinery import *  # noqa: F403
