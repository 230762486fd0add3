"""How the journals of a logged topic become one again after all who held it have gone.

    chain    the values: orders, lives of a topic, who held it, what a node says of its journal; which prefix two
             journals share, and which journal to go on from
    restorer the protocol of a restart, without input or output
    ledger   what a node keeps on disk beside a journal about its place in that
    disk     work on journal files: look, cut what conflicts, read the end or the rest
    desk     carries it out on a node: asks, answers, streams
    filling  one topic of one node, from becoming a member to being whole

Each module says its rules; the protocol as a whole is in `spindle.restart.restorer`.
"""
