"""Goal: a call comes back with its result or with an error that says what happened, whoever else calls meanwhile.

Method: clients and servers in this process, on nodes of their own; what must wait, waits at a gate of the test.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import dds
from dds import DDSException, DDSNodeLost, DDSSampleTooLarge, duration
from dds.rpc import (
    CallTimeout,
    Client,
    InvalidArguments,
    NoServer,
    OutcomeUnknown,
    RemoteError,
    RpcError,
    Server,
    ServerBusy,
    ServerGone,
    TooManyCalls,
    UnknownOperation,
    service,
)
from tests.dds.rpc.services import Pumps, Short, give_up_on
from tests.support import product_threads, wait_until


@pytest.fixture
def pumps(participant):
    one = Pumps()
    with Server(participant, one, workers=2):
        yield one
        one.gate.set()


@pytest.fixture
def client(participant, pumps):
    with Client(participant, Pumps) as one:
        yield one


def test_results_and_declared_errors_arrive_as_themselves(client) -> None:
    assert client.add(1, 2) == 3 and client.add(b=5, a=1) == 6 and client.add(1) == 2
    assert client.divide(1.0, 4.0) == 0.25 and client.typed.add(1, 1) == 2
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        client.divide(1.0, 0.0)
    with pytest.raises(Short) as short:
        client.drain(2.5)
    assert short.value == Short(2.5)


def test_other_errors_say_what_happened(client) -> None:
    with pytest.raises(RemoteError, match=r"RuntimeError: no pressure") as remote:
        client.fail("no pressure")
    assert (remote.value.type_name, remote.value.text) == ("RuntimeError", "no pressure")
    with pytest.raises(RpcError, match=r"wrong\(\) was carried out, but: result is 'no number', which is no int64"):
        client.wrong()
    with pytest.raises(InvalidArguments, match="a is 'one', which is no int64"):
        client.add("one")
    with pytest.raises(TypeError, match="too many"):
        client.add(1, 2, 3)
    with pytest.raises(AttributeError, match="rinse"):
        client.rinse()
    assert client.add(1, 2) == 3


def test_results_and_arguments_may_be_large(client) -> None:
    assert client.fill(3_000_000) == client.fill(1) * 3_000_000
    with pytest.raises(RemoteError, match="xxx"):
        client.fail("x" * 1_000_000)


def test_what_is_too_large_is_refused_at_either_end(limited) -> None:
    with Server(limited, Pumps()), Client(limited, Pumps) as client:
        assert len(client.fill(30_000)) == 30_000
        with pytest.raises(RpcError, match="result is too large"):
            client.fill(70_000)
        with pytest.raises(DDSSampleTooLarge, match="large_sample_max"):
            client.fail("x" * 70_000)
        assert client.add(1) == 2


def test_one_way_calls_come_in_their_order(client, pumps) -> None:
    for k in range(20):
        assert client.note(str(k)) is None
    wait_until(lambda: len(pumps.noted) == 20)
    with Client(client._core._reader.participant, Pumps, instance="nobody's", wait_for_server=0) as lonely:
        with pytest.raises(NoServer):
            lonely.note("x")


def test_two_programs_that_describe_it_differently(participant, pumps) -> None:
    """Goal: what both know alike works; the rest is refused with both forms named.

    Method: a client of another class.
    """
    @service(name="Pumps")
    class Other:
        def add(self, a: int, b: int) -> int: ...
        def fill(self, size: str) -> bytes: ...
        def rinse(self) -> None: ...

    with Client(participant, Other) as client:
        assert client.add(2, 2) == 4
        with pytest.raises(InvalidArguments, match=r"fill\(\) has other types.*size: int"):
            client.fill("big")
        with pytest.raises(UnknownOperation, match=r"no operation 'rinse'; the server has add, "):
            client.rinse()


def test_no_server_is_said_soon_and_one_that_comes_is_enough(participant) -> None:
    with Client(participant, Pumps, wait_for_server=duration(milliseconds=50)) as hurried:
        with pytest.raises(NoServer, match=r"no server .*add\(\) was not sent"):
            hurried.add(1)
        assert not hurried.wait_for_servers(timeout=0) and hurried.servers() == []
    with Client(participant, Pumps, wait_for_server=duration(seconds=20)) as patient:
        sync, later = patient.add.future(1), patient.add.future(2)
        with Server(participant, Pumps(), instance="late"):
            assert (sync.result(20), later.result(20)) == (2, 3) and patient.servers() == ["late"]
            assert patient.wait_for_servers()


def test_deadlines_of_a_client_and_of_a_call(participant, pumps) -> None:
    with Client(participant, Pumps, timeout=duration(milliseconds=30)) as client:
        with pytest.raises(CallTimeout, match=r"wait\(\) has had no reply"):
            client.wait()
        pumps.gate.set()
        assert client.wait.within(duration(seconds=20))() == "open"
        with pytest.raises(CallTimeout):
            client.nap.within(duration(milliseconds=10))(0.3)


def test_a_call_whose_caller_has_given_up_is_not_carried_out(participant) -> None:
    pumps = Pumps()
    with Server(participant, pumps), Client(participant, Pumps) as client:
        blocked = client.wait.future()
        wait_until(lambda: pumps.carried_out == 1)
        give_up_on(client, duration(milliseconds=20))
        pumps.gate.set()
        assert blocked.result(20) == "open" and client.divide(1.0, 1.0) == 1.0
        assert pumps.carried_out == 1


def test_a_slow_call_holds_up_nobody_else(participant, pumps) -> None:
    """Method: one worker of two waits; a coroutine sleeps; another service and other calls go on."""
    with Client(participant, Pumps) as one, Client(participant, Pumps) as two:
        waiting, napping = one.wait.future(), one.nap.future(0.2)
        for k in range(50):
            assert two.add(k) == k + 1 and one.add(k) == k + 1
        assert not waiting.done()
        assert napping.result(20) == "awake"
        pumps.gate.set()
        assert waiting.result(20) == "open"


def test_full_queues_say_so_and_other_clients_still_get_in(participant) -> None:
    pumps = Pumps()
    with Server(participant, pumps, queue_max=8, client_max=4), \
            Client(participant, Pumps) as greedy, Client(participant, Pumps) as modest:
        first = greedy.wait.future()
        wait_until(lambda: pumps.carried_out == 1)
        waiting = [greedy.add.future(k) for k in range(10)]
        refused = [one for one in waiting[4:] if isinstance(one.exception(20), ServerBusy)]
        assert len(refused) == 6 and "client_max" in str(refused[0].exception())
        served = modest.add.future(1)
        pumps.gate.set()
        assert first.result(20) == "open" and served.result(20) == 2
        assert [one.result(20) for one in waiting[:4]] == [1, 2, 3, 4]


def test_the_next_server_takes_what_a_full_one_refuses(participant) -> None:
    full, free = Pumps(), Pumps()
    with Server(participant, full, queue_max=1, client_max=1, instance="full"), Client(participant, Pumps) as client:
        blocked = [client.wait.future()]
        wait_until(lambda: full.carried_out == 1)
        blocked.append(client.wait.future())
        with Server(participant, free, instance="free"):
            assert client.wait_for_servers(2)
            assert [client.add(k) for k in range(10)] == list(range(1, 11))
            full.gate.set()
            assert [one.result(20) for one in blocked] == ["open", "open"]


def test_hundreds_in_flight_from_several_clients(two_nodes) -> None:
    """Goal: each reply comes to its own call. Method: three clients on two nodes, 300 calls of each at once."""
    one, two = two_nodes
    with Server(one, Pumps(), queue_max=2000, client_max=2000), Server(two, Pumps(), queue_max=2000, client_max=2000), \
            Client(one, Pumps) as first, Client(two, Pumps) as second, Client(two, Pumps) as third:
        clients = (first, second, third)
        assert all(client.wait_for_servers(2) for client in clients)
        calls = [[client.add.future(1000 * k, n) for n in range(300)] for k, client in enumerate(clients)]
        for k, made in enumerate(calls):
            assert [call.result(30) for call in made] == [1000 * k + n for n in range(300)]


def test_threads_share_a_client(client) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(client.add, range(200))) == list(range(1, 201))


def test_the_limit_of_calls_in_flight_is_named(participant, pumps) -> None:
    with Client(participant, Pumps, calls_max=3) as client:
        waiting = [client.wait.future() for _ in range(3)]
        with pytest.raises(TooManyCalls, match=r"3 calls .*calls_max"):
            client.add(1)
        pumps.gate.set()
        assert [one.result(20) for one in waiting] == ["open"] * 3 and client.add(1) == 2


def test_in_coroutines(client, pumps) -> None:
    async def calls() -> None:
        assert await client.add.aio(1, 2) == 3
        with pytest.raises(ZeroDivisionError):
            await client.divide.aio(1.0, 0.0)
        naps = await asyncio.gather(*(client.nap.aio(0.01) for _ in range(30)))
        assert naps == ["awake"] * 30
        waiting = asyncio.ensure_future(client.wait.aio())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await client.note.aio("done") is None

    asyncio.run(calls())
    wait_until(lambda: len(client._core._calls) == 0 and pumps.noted == ["done"])


def test_a_service_in_the_programs_own_loop(participant) -> None:
    async def run() -> None:
        with Server(participant, Pumps(), loop=asyncio.get_running_loop()), Client(participant, Pumps) as client:
            assert await asyncio.gather(client.nap.aio(0.01), client.nap.aio(0.0)) == ["awake"] * 2

    asyncio.run(run())


def test_closing_a_server_in_the_middle(participant) -> None:
    """Goal: what runs is finished, what waits is refused as not carried out, what comes later finds no server."""
    pumps = Pumps()
    with Client(participant, Pumps, wait_for_server=0) as client:
        server = Server(participant, pumps)
        assert client.wait_for_servers()
        running = client.wait.future()
        wait_until(lambda: pumps.carried_out == 1)
        waiting = client.add.future(1)
        wait_until(lambda: len(server._waiting) == 1)
        closing = threading.Thread(target=server.close)
        closing.start()
        assert isinstance(waiting.exception(20), ServerBusy) and "closing" in str(waiting.exception())
        pumps.gate.set()
        assert running.result(20) == "open"
        closing.join(20)
        wait_until(lambda: client.servers() == [])  # a call before it hears of that is given up: ServerGone
        with pytest.raises(NoServer):
            client.add(1)
        assert pumps.carried_out == 1
        server.close()


def test_a_server_that_ends_without_a_word(two_nodes) -> None:
    """Method: its participant is closed in the middle of a call."""
    one, two = two_nodes
    pumps = Pumps()
    Server(two, pumps)
    with Client(one, Pumps) as client:
        waiting = client.wait.future()
        wait_until(lambda: pumps.carried_out == 1)
        two.close()
        assert isinstance(waiting.exception(20), ServerGone)
        pumps.gate.set()


@service
class Steps:
    """Each step is a call of the service to itself."""

    def __init__(self) -> None:
        self.client: Client[Steps] | None = None

    def down(self, steps: int) -> int:
        if not steps:
            return 0
        assert self.client is not None
        return 1 + self.client.typed.down(steps - 1)


@pytest.mark.slow
def test_a_service_that_calls_itself(participant) -> None:
    """Goal: as far as it has workers it gets its answers; beyond, its callers hear of their deadline, and it goes on.
    Method: calls within calls, with three workers."""
    steps = Steps()
    with Server(participant, steps, workers=3), Client(
            participant, Steps, timeout=dds.duration(seconds=1.5)) as inner, Client(participant, Steps) as client:
        steps.client = inner
        assert client.down(2) == 2
        with pytest.raises((CallTimeout, RemoteError), match=r"CallTimeout|has had no reply"):
            client.down(3)
        wait_until(lambda: client.down.within(dds.duration(seconds=10))(0) == 0)
        assert client.down(2) == 2


def test_a_forked_child_is_told_at_once(client) -> None:
    """Goal: no call of a child waits for a thread of its parent. Method: fork while another thread has the client's
    lock, as it may."""
    with client._core._lock:
        if (child := os.fork()) == 0:
            code = 1
            try:
                signal.alarm(20)
                for call in (lambda: client.add(1, 2), lambda: client.add.future(1, 2), client.servers,
                             client.wait_for_servers):
                    with pytest.raises(DDSNodeLost, match=r"client of 'Pumps' was made before fork\(\)"):
                        call()
                code = 0
            finally:
                os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert client.add(1, 2) == 3


def test_closing_a_client_in_the_middle(participant, pumps) -> None:
    client = Client(participant, Pumps)
    waiting = client.wait.future()
    client.close()
    assert isinstance(waiting.exception(1), OutcomeUnknown)
    with pytest.raises(DDSException, match="closed"):
        client.add(1)
    client.close()


def test_what_is_forgotten_leaves_nothing(participant, pumps) -> None:
    before = product_threads(("dds client",))
    client = Client(participant, Pumps)
    assert client.add(1) == 2
    del client
    gc.collect()
    wait_until(lambda: not product_threads(("dds client",)) - before)


def test_a_call_keeps_its_client(participant, pumps) -> None:
    before = product_threads(("dds client",))
    assert Client(participant, Pumps).add(1) == 2
    assert Client(participant, Pumps).add.within(duration(seconds=5))(1) == 2
    done = Client(participant, Pumps).add.future(1)
    assert done.result(5) == 2
    operation = Client(participant, Pumps).add
    assert operation(1) == 2
    with pytest.raises(NoServer):
        Client(participant, Pumps, instance="nobody", wait_for_server=duration(milliseconds=1)).add(1)
    del operation
    gc.collect()
    wait_until(lambda: not product_threads(("dds client",)) - before)


def test_only_servers_with_the_name(participant) -> None:
    with Server(participant, Pumps(), instance="left"), Server(participant, Pumps(), instance="right") as right, \
            Client(participant, Pumps, instance="right") as client:
        assert client.wait_for_servers() and client.servers() == ["right"]
        right.close()
        wait_until(lambda: client.servers() == [])


def test_wrong_arguments_of_servers_and_clients(participant) -> None:
    with pytest.raises(TypeError, match="no service"):
        Server(participant, object())
    with pytest.raises(TypeError, match="no service"):
        Client(participant, int)
    with pytest.raises(ValueError, match="workers"):
        Server(participant, Pumps(), workers=0)
    with pytest.raises(ValueError, match="timeout"):
        Client(participant, Pumps, timeout=0)
    with pytest.raises(ValueError, match="name of a service"):
        Client(participant, Pumps, name="x" * 201)
    with pytest.raises(TypeError, match="an object of the service's class, not the class itself"):
        Server(participant, Pumps)


def test_times_are_whole_numbers_of_nanoseconds(participant) -> None:
    """Half a nanosecond would be over before a call is sent. One without an end is one, too."""
    with Server(participant, Pumps()) as server, Client(participant, Pumps) as client:
        for wrong in (0.5, "1"):
            for call in (client.add.within, lambda time: client.wait_for_servers(1, time), server.wait,
                         lambda time: Client(participant, Pumps, timeout=time),
                         lambda time: Client(participant, Pumps, wait_for_server=time)):
                with pytest.raises(TypeError, match=f"a whole number of nanoseconds, not {wrong!r}"):
                    call(wrong)
        for wrong in (0, -1):
            with pytest.raises(ValueError, match="timeout must be positive"):
                client.add.within(wrong)
        with pytest.raises(TypeError, match="not None"):
            client.add.within(None)
        with pytest.warns(UserWarning, match="timeout of 5 is 5 ns"):
            client.add.within(5)
        for endless in (dds.duration(infinite=True), None):
            assert client.wait_for_servers(1, endless)
        assert client.add.within(dds.duration(infinite=True))(1) == 2
        threading.Timer(0.05, server.close).start()
        assert server.wait(dds.duration(infinite=True))


# ---- ordered services


@service(ordered=True)
class Tally:
    """Every server has one of these."""

    def __init__(self) -> None:
        self.history: list[str] = []

    def put(self, text: str) -> int:
        self.history.append(text)
        return len(self.history)

    def fail(self) -> None:
        raise RuntimeError("alike everywhere")


def test_ordered_calls_are_carried_out_alike_everywhere(two_nodes) -> None:
    one, two = two_nodes
    replicas = [Tally(), Tally(), Tally()]
    with Server(one, replicas[0]), Server(two, replicas[1]), Server(two, replicas[2], queue_max=2), \
            Client(one, Tally) as first, Client(two, Tally) as second:
        assert first.wait_for_servers(3) and second.wait_for_servers(3)
        calls = [(client.put.future(f"{name} {k}")) for k in range(100)
                 for name, client in (("first", first), ("second", second))]
        assert sorted(call.result(30) for call in calls) == list(range(1, 201))
        with pytest.raises(RemoteError, match="alike"):
            first.fail()
        wait_until(lambda: all(len(one.history) == 200 for one in replicas))
        assert replicas[0].history == replicas[1].history == replicas[2].history


def test_an_ordered_server_that_is_behind_carries_out_what_waits_in_the_same_order(participant) -> None:
    """Clients have no turns there: those would depend on when a server reads."""
    gate = threading.Event()

    @service(name="Tally", ordered=True)
    class Slow(Tally):
        def put(self, text: str) -> int:
            assert gate.wait(20)
            return super().put(text)

    with Server(participant, slow := Slow()) as server, Server(participant, quick := Tally()), \
            Client(participant, Tally) as first, Client(participant, Tally) as second:
        assert first.wait_for_servers(2) and second.wait_for_servers(2)
        calls = [first.put.future(f"a{k}") for k in range(20)]
        assert [call.result(20) for call in calls] == list(range(1, 21))  # by the quick one
        assert second.put("b") == 21
        wait_until(lambda: len(server._waiting) == 20)
        gate.set()
        wait_until(lambda: len(slow.history) == 21)
        assert slow.history == quick.history == [*(f"a{k}" for k in range(20)), "b"]


def test_an_ordered_service_has_no_coroutines_and_one_worker(participant) -> None:
    @service(ordered=True)
    class Bad:
        async def get(self) -> int:
            return 1

    with pytest.raises(TypeError, match="one after the other"):
        Server(participant, Bad())
    with pytest.raises(TypeError, match="one worker"):
        Server(participant, Tally(), workers=2)
    with pytest.raises(TypeError, match="ordered"):
        service(logged=True)(Bad)


def test_an_ordered_service_is_no_other_with_the_same_name(participant) -> None:
    @service(name="Tally", ordered=True, logged=True)
    class Logged:
        def put(self, text: str) -> int: ...

    with Client(participant, Tally), pytest.raises(DDSException, match="another definition"):
        Client(participant, Logged)
    assert dds.rpc.Client is Client
