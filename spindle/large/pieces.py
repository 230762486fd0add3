"""What goes over a data connection for large samples: questions one way, pieces of samples the other.

A question names a sample and from which byte on it is wanted. The answer is all of it from there on, in pieces, as they
come to be there. Who asks for several gets them one after the other, in the order asked, but one that has nothing to be
sent at the moment holds up none.

Where the bytes can go over RDMA, who asks says so with the card of its landing (blocks.py), gets an address, says that
it is ready, and then how many blocks it has taken out. Until it is ready, and when that way breaks, the bytes come over
the data connection.
"""

from __future__ import annotations

import struct

BALLOT = 1  # of these connections, which are of no view; that of links is 0
WANT, WANT_FIRST, FIRST, UNWANT = 1, 2, 3, 4  # questions; FIRST: this one goes before all others now
LANDING, READY, TAKEN = 5, 6, 7  # of blocks; LANDING: `size` bytes of a card follow; TAKEN: `number` blocks
DATA, LACKING = 1, 2  # answers; the bytes of LACKING say why it can't be had, in UTF-8
ADDRESS, LANDED = 3, 4  # the bytes of ADDRESS: none where it has no such way; LANDED: they lie in the next block
DELIVERED = 1  # of a history: who doesn't have it will not get it any more
QUESTION = struct.Struct("<IIQQQQ")  # what, DELIVERED or 0, number, id, size, from which byte on
PIECE = struct.Struct("<IIQQ")  # what, bytes that follow, number, at which byte
PIECE_MAX = 1 << 20
WHY_MAX = 4096  # bytes
CARD_MAX = 512  # bytes, of an address too
WANTED_MAX = 1024  # questions of one connection that are open
