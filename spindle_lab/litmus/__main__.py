"""`make litmus`: the races around going to sleep, as often as one likes.

    python -m spindle_lab.litmus [--rounds 1000000000] [SHAPE...]    exit code 1 if a wake-up was lost

Each race takes a processor for each of its threads; where there are fewer, it runs a thousandth of the rounds, since
each of them waits for the scheduler, and says so.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time

from spindle_lab.litmus.rounds import SHAPES, Race

FEWER = 1000  # times, without a processor for each thread


def play(shape: str, rounds: int, seed: int = 1) -> Race:
    """Run one race; its outcomes."""
    race = Race(shape, rounds, seed)
    workers = [threading.Thread(target=race.work, args=(k,)) for k in range(race.workers)]
    for worker in workers:
        worker.start()
    race.sleep()
    for worker in workers:
        worker.join()
    return race


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m spindle_lab.litmus")
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"of {', '.join(SHAPES)}; all if none is named")
    parser.add_argument("--rounds", type=float, default=1e9, help="of each shape")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    arguments = parser.parse_args()
    if unknown := set(arguments.shapes) - set(SHAPES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(SHAPES)}")
    processors = len(os.sched_getaffinity(0))
    lost = 0
    print(f"seed {arguments.seed}, {processors} processors")
    print(f"{'shape':<18}{'rounds':>15}{'seen only':>14}{'rung only':>14}{'both':>14}{'LOST':>6}{'ns a round':>12}")
    for shape, (_, workers) in SHAPES.items():
        if arguments.shapes and shape not in arguments.shapes:
            continue
        rounds = int(arguments.rounds) // (1 if workers < processors else FEWER) or 1
        started = time.monotonic()
        race = play(shape, rounds, arguments.seed)
        took_ns = (time.monotonic() - started) * 1e9 / rounds
        (none, rung), (seen, both) = race.seen_rung
        assert none == race.lost
        print(f"{shape:<18}{rounds:>15,}{seen:>14,}{rung:>14,}{both:>14,}{race.lost:>6}{took_ns:>12.0f}"
              f"{'' if workers < processors else '  (fewer processors than threads)'}", flush=True)
        lost += race.lost
    print(f"{lost} wake-ups LOST" if lost else "no wake-up was lost")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
