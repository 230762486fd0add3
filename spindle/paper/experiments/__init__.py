"""The paper's evaluation: one class for each figure or claim, in the paper's order."""

from __future__ import annotations

from spindle.paper.experiments.base import Experiment
from spindle.paper.experiments.batching import Batching, Sizes, Steps

EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for one in (
        Batching(), Sizes(), Steps(),
    )
}
