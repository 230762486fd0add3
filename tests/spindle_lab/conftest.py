"""Fixtures that the lab's tests share with those of the command line, of which its commands are a part."""

from tests.spindle.cli.conftest import cli

__all__ = ["cli"]
