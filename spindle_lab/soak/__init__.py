"""Daemons under programs that come, die and go, for an hour: what do they keep of them?

    python -m spindle_lab.soak --seconds 3600          (or `make soak SECONDS=3600`)

Programs come in waves. Each attaches, declares topics of all four levels, writes, reads, and ends in one of four ways:
it closes what it opened, closes its session only, ends without a word, or is killed in the middle of writing. When all
of a wave are gone, and the daemons have noticed, each daemon's memory, descriptors and mappings are noted. After the
first minutes none of them may grow any more.

    program   the life of one program
    gauge     what a process holds, and whether that grows
    run       daemons, waves, verdict
"""
