"""Goal: the memory of unfinished samples is bounded, nobody starves, and what is urgent doesn't wait for what isn't.

Method: turns that are asked for and given back, in every order that matters, and in random ones.
"""

from __future__ import annotations

import asyncio
import random

from spindle.large.turns import Turn, Turns


def has(turn: Turn) -> bool:
    return turn.begins.done() and not turn.begins.cancelled()


def test_who_asked_first_is_first() -> None:
    async def body() -> None:
        turns = Turns(100)
        one, two, three, four = (turns.ask(size) for size in (60, 50, 10, 10))
        assert [has(turn) for turn in (one, two, three, four)] == [True, False, False, False], "three waits behind two"
        turns.end(one)
        assert [has(turn) for turn in (two, three, four)] == [True, True, True]
        assert turns.bytes_taken == 70
        for turn in (two, three, four, four, one):
            turns.end(turn)
        assert turns.bytes_taken == 0

    asyncio.run(body())


def test_one_larger_than_the_limit_has_it_alone() -> None:
    async def body() -> None:
        turns = Turns(100)
        small, large, other = turns.ask(1), turns.ask(1000), turns.ask(1)
        assert (has(small), has(large)) == (True, False)
        turns.end(small)
        assert (has(large), has(other)) == (True, False)

    asyncio.run(body())


def test_an_urgent_one_passes_by_the_others_and_the_limit_alone() -> None:
    async def body() -> None:
        turns = Turns(100)
        first, waits = turns.ask(100), turns.ask(100)
        urgent, second = turns.ask(100, urgent=True), turns.ask(100, urgent=True)
        assert [has(turn) for turn in (first, waits, urgent, second)] == [True, False, True, False]
        turns.end(urgent)
        assert (has(second), has(waits)) == (True, False)
        turns.hurry(waits)
        assert not has(waits)
        turns.end(second)
        assert has(waits)

    asyncio.run(body())


def test_one_that_waits_no_more_holds_nobody_up() -> None:
    async def body() -> None:
        turns = Turns(100)
        first, large, small = turns.ask(60), turns.ask(90), turns.ask(40)
        turns.end(large)
        assert large.begins.cancelled() and has(small) and has(first)

    asyncio.run(body())


def test_whatever_happens_the_memory_is_bounded_and_all_get_their_turn() -> None:
    async def body(rng: random.Random) -> None:
        turns, having, waiting = Turns(1000), [], []
        largest = 0
        for _ in range(400):
            what = rng.random()
            if what < 0.5:
                size = rng.choice((1, 10, 400, 1000, 3000))
                largest = max(largest, size)
                waiting.append(turns.ask(size, rng.random() < 0.2))
            elif what < 0.6 and waiting:
                turns.hurry(rng.choice(waiting))
            elif what < 0.65 and waiting:
                turns.end(waiting.pop(rng.randrange(len(waiting))))
            elif having:
                turns.end(having.pop(rng.randrange(len(having))))
            having += [turn for turn in waiting if has(turn)]
            waiting = [turn for turn in waiting if not has(turn)]
            assert turns.bytes_taken == sum(turn.size for turn in having) <= max(1000, largest) + largest
            assert having or not waiting
        while having:
            turns.end(having.pop(0))
            having += [turn for turn in waiting if has(turn)]
            waiting = [turn for turn in waiting if not has(turn)]
        assert not waiting

    for seed in range(20):
        asyncio.run(body(random.Random(seed)))
