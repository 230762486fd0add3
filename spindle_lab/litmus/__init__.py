"""Litmus tests of the wake-ups: what must never be seen, looked for a thousand million times (`make litmus`).

    rounds.pyx   the races, on the production functions
    __main__.py  the command
"""
