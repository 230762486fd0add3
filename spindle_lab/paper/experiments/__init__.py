"""The paper's evaluation: one class for each figure or claim, in the paper's order; then what goes past it."""

from __future__ import annotations

from spindle_lab.paper.experiments.application import CopiedMessages, Levels, Upcalls
from spindle_lab.paper.experiments.base import Experiment
from spindle_lab.paper.experiments.batching import Batching, Sizes, Steps
from spindle_lab.paper.experiments.beyond import Acknowledgements, Beyond, Claims, Pieces, UsedParts, Windows
from spindle_lab.paper.experiments.fabric import Copies, WriteLatency
from spindle_lab.paper.experiments.final import Final, Unlock
from spindle_lab.paper.experiments.nulls import Delays, Nulls
from spindle_lab.paper.experiments.once import Once
from spindle_lab.paper.experiments.per_message import PerMessage
from spindle_lab.paper.experiments.profile import Profile
from spindle_lab.paper.experiments.topics import ManyActive, OneActive
from spindle_lab.paper.experiments.window import BatchSizes, Window

EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for one in (
        WriteLatency(), Batching(), Sizes(), Steps(), Window(), BatchSizes(), OneActive(), Delays(), Nulls(), Unlock(),
        ManyActive(), Copies(), CopiedMessages(), Final(), Levels(), Upcalls(), PerMessage(),
        Beyond(), Profile(), Acknowledgements(), Pieces(), Windows(), UsedParts(), Claims(), Once(),
    )
}
