from collections.abc import Sequence

from spindle_lab.paper.parameters import Network

def fly(network: Network, writes: Sequence[tuple[float, int, int, int]]) -> list[tuple[float, int]]: ...
