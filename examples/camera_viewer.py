"""Looks at a camera's frames where they lie: where the bright bar is, and how old the frame is.

    python examples/camera_viewer.py --count 10
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from camera import frames
from programs import run

import dds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=0, help="frames to look at; 0 = for ever")
    parser.add_argument("--last", type=int, default=-1, help="number of the frame after which to end; -1 = none")
    options = parser.parse_args()
    participant = dds.DomainParticipant()
    reader = dds.DataReader(participant, frames(participant))
    for seen, frame in enumerate(reader.take_iter(timeout=dds.duration(seconds=60)), 1):
        # An array over memory that all programs of the host share, and none of them can change.
        columns = frame.pixels[:, :, 0].mean(axis=0)
        bar = int(np.argmax(columns > 128))
        age_ms = (time.time_ns() - int(frame.exposed_ns)) / 1e6
        size = frame.pixels.nbytes
        print(f"frame {frame.number}  bar at {bar}  {size} bytes in place  {age_ms:.1f} ms old", flush=True)
        if seen == options.count or frame.number == options.last:
            return 0
    if options.count or options.last >= 0:
        raise TimeoutError("no frame came for a minute: does a camera run?")
    return 0


if __name__ == "__main__":
    run(main)
