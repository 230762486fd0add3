#!/usr/bin/env python3
"""Makes flight_table.csv.gz from the full recording: `python examples/data/make_table.py RECORDING.jsonl.gz`.

The rules (what a cell holds, what is left out) are those of ../flight_data.py; README.md beside this file says them.
The same recording gives the same bytes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from flight_data import RATE_HZ, TABLE_PATH, implausible_frames, read_frames, rows_at_rate, write_table


def main() -> int:
    parser = argparse.ArgumentParser(description="Makes the compact flight table from the full recording.")
    parser.add_argument("recording", type=Path, help="full_flight_short.jsonl of the package traffic; may be .gz")
    parser.add_argument("--output", type=Path, default=TABLE_PATH, help="default: %(default)s")
    parser.add_argument("--rate", type=int, default=RATE_HZ, metavar="HZ", help="rows a second (default: %(default)s)")
    arguments = parser.parse_args()
    frames = list(read_frames(arguments.recording))
    rejected = implausible_frames(frames)
    for i in sorted(rejected):
        kind = f"format {frames[i].get('df')}, register {frames[i].get('bds', '-')}"
        print(f"left out: frame {i} at {frames[i]['timestamp'] - frames[0]['timestamp']:.1f} s ({kind})")
    kept = (frame for i, frame in enumerate(frames) if i not in rejected)
    count = write_table(arguments.output, rows_at_rate(kept, arguments.rate))
    size = arguments.output.stat().st_size
    print(f"{arguments.output}: {count} rows from {len(frames) - len(rejected)} of {len(frames)} frames, {size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
