"""`python -m spindle.cockpit`: the cockpit of a daemon, as its child."""

import sys

from spindle.cockpit.running import child_main

sys.exit(child_main())
