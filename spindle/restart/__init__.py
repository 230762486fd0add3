"""How the journals of a logged topic become one again after all who held it have gone.

    chain        the values: orders, lives of a topic, who held it, what a node says of its journal; which prefix two
                 journals share, and which journal to go on from
    restorer     the protocol of a restart, without input or output
    ledger       what a node keeps on disk beside a journal about its place in that
    disk         work on journal files: look, cut what conflicts, read the end or the rest
    questions    carries it out on a node: asks, answers, writes down
    catching_up  one topic of one node, from becoming a member to being whole

Histories for members that come later travel the same way:

    history      what a volatile topic delivered, pinned for a newcomer
    giving       one end of it: from the log, or from the journal
    pieces       messages, chunks of bounded size, and back
    streams      how far a history may be ahead of who takes it
    archive      what the node has on disk of its logged topics

Each module says its rules; the protocol as a whole is in `spindle.restart.restorer`.
"""
