"""`python -m spindle_lab.soak`: says each minute what the daemons hold, and in the end whether that has grown (exit
code 1)."""

from __future__ import annotations

import argparse
import random
import sys

from spindle_lab.soak.run import WARM_S, soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m spindle_lab.soak", description="What daemons keep of programs.")
    parser.add_argument("--seconds", type=float, default=3600.0, metavar="S", help="in all (default: %(default)g)")
    parser.add_argument("--warm", type=float, default=WARM_S, metavar="S",
                        help="that do not count, at most a third of all (default: %(default)g)")
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="daemons (default: %(default)d)")
    parser.add_argument("--seed", type=int, metavar="N", help="of what the programs do")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    result = soak(options.seconds, nodes=options.nodes, warm_s=min(options.warm, options.seconds / 3), seed=seed,
                  say=lambda text: print(text, flush=True))
    print(f"{result.seconds:.0f} s, {result.programs} programs: "
          + ", ".join(f"{count} {what}" for what, count in sorted(result.ends.items())))
    for node_id, grown in result.grown.items():
        print(f"node {node_id}: " + ", ".join(map(str, grown)))
    for text in result.wrong:
        print(f"wrong: {text}")
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
