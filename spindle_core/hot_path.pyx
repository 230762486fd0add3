"""The hot path, from a claimed slot to the delivery logs of all members, as one extension module.

The predicate thread runs nothing else. All of it is nogil C in one unit, so that the compiler sees through from a pass
to the last store; between two extension modules every call goes through a pointer. Its parts are files of their own:
what each promises stands at its beginning, and what other modules may call in hot_path.pxd.
"""

include "activity.pxi"
include "sst.pxi"
include "smc.pxi"
include "lasts_memory.pxi"
include "lasts_ranked.pxi"
include "lasts.pxi"
include "lasts_over.pxi"
include "timing.pxi"
include "log.pxi"
include "large.pxi"
include "predicates/send.pxi"
include "predicates/receive.pxi"
include "predicates/null_send.pxi"
include "predicates/deliver.pxi"
include "predicates/persist.pxi"
include "step.pxi"
include "effects.pxi"
include "thread.pxi"
include "claims.pxi"
include "attending.pxi"
