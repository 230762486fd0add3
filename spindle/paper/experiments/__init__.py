"""The paper's evaluation: one class for each figure or claim, in the paper's order; then what goes past it."""

from __future__ import annotations

from spindle.paper.experiments.application import CopiedMessages, Levels, Upcalls
from spindle.paper.experiments.base import Experiment
from spindle.paper.experiments.batching import Batching, Sizes, Steps
from spindle.paper.experiments.beyond import Acknowledgements, Beyond, Claims, Pieces, UsedParts, Windows
from spindle.paper.experiments.fabric import Copies, WriteLatency
from spindle.paper.experiments.final import Final, Unlock
from spindle.paper.experiments.nulls import Delays, Nulls
from spindle.paper.experiments.once import Once
from spindle.paper.experiments.per_message import PerMessage
from spindle.paper.experiments.profile import Profile
from spindle.paper.experiments.topics import ManyActive, OneActive
from spindle.paper.experiments.window import BatchSizes, Window

EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for one in (
        WriteLatency(), Batching(), Sizes(), Steps(), Window(), BatchSizes(), OneActive(), Delays(), Nulls(), Unlock(),
        ManyActive(), Copies(), CopiedMessages(), Final(), Levels(), Upcalls(), PerMessage(),
        Beyond(), Profile(), Acknowledgements(), Pieces(), Windows(), UsedParts(), Claims(), Once(),
    )
}
