"""Fuzzing: every decoder of bytes that come from somebody else, each as one function of bytes.

Why functions: the same target is run by `make fuzz` for as long as one likes, guided by coverage (atheris, which is
libFuzzer), and by the suite over its corpus in a moment (`test_targets.py`). What a fuzzer ever found stays in the
corpus and so stays found.

    target.py       what a target is, and the table of all
    mutate.py       changes protobuf messages as messages
    control.py      control connections and views: no input or output, one call
    live.py         the same against a running node, its attachment, and a client
    external.py     applications on hosts without a node, and what their node says to them
    disk.py         journals, and what is kept beside them
    memory.py       rows of peers, inboxes of applications
    connections.py  by which peers on other hosts write rows, and ask for regions
    samples.py      what applications say to each other: samples, Qos
    corpus/         inputs that reach something new, one line of hex each, by target
    __main__.py     `make fuzz`: the fuzzer, and keeping what it found

Rules: a target returns for every input, or the input is a failure: any exception is, and so is a hang, or a gigabyte.
What a decoder may refuse with is caught by its target, by class; nothing wider.
"""
