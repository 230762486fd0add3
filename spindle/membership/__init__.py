"""Views and their changes, without input or output: the same code runs in a node and under a test or simulator.

table     what the machine needs of the shared rows: control columns and guarded areas
messages  what machines say to each other, and what a machine asks its driver to do
plan      from pending wishes to the one next view
machine   the steps from a proposal to the installed view
codec     views, trims and messages as bytes
"""

from __future__ import annotations
