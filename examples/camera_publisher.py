"""A camera: frames with a bright bar that goes from left to right, filled in the memory that they are sent from.

    python examples/camera_publisher.py --count 100
"""

from __future__ import annotations

import argparse
import time

from camera import WIDTH, frames
from programs import run

import dds

BAR = 160  # pixels


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="frames")
    parser.add_argument("--rate", type=float, default=20.0, help="frames a second")
    parser.add_argument("--viewers", type=int, default=1, help="to wait for")
    options = parser.parse_args()
    if options.count < 0 or not 0.001 <= options.rate <= 1e6:
        parser.error("--count is a number of frames, --rate 0.001 to 1e6 frames a second")
    participant = dds.DomainParticipant()
    writer = dds.DataWriter(participant, frames(participant))
    while len(writer.get_matched_subscriptions()) < options.viewers:
        time.sleep(0.05)
    for number in range(options.count):
        with writer.loan() as frame:
            frame["number"], frame["exposed_ns"] = number, time.time_ns()
            pixels = frame["pixels"]
            pixels[...] = 40
            left = number * BAR % WIDTH
            pixels[:, left:left + BAR] = 250
        time.sleep(1 / options.rate)
    writer.wait_for_acks(dds.duration(seconds=10))
    print(options.count, "frames")
    return 0


if __name__ == "__main__":
    run(main)
