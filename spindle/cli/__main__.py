"""`python -m spindle.cli`, the same as `spindle`."""

from __future__ import annotations

from spindle.cli.root import main

if __name__ == "__main__":
    main()
