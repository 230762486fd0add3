"""`python -m spindle.demo`: the same as `spindle demo`."""

from spindle.demo import main

raise SystemExit(main())
