"""Goal: calls between programs, through daemons and on hosts without a node; whoever is killed, the caller hears of it
within seconds and never hangs.

Method: real daemons, servers as programs of their own that are killed with kill -9 in the middle of a call.
"""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack

import pytest

from dds import DDSException, DDSNodeLost, DomainParticipant, duration
from dds.rpc import Client, OutcomeUnknown, Server, ServerGone
from tests.dds.rpc.services import Pumps, give_up_on, serving
from tests.support import halt, wait_until

LONG = duration(seconds=60)


def test_a_server_that_is_killed_in_the_middle(group, runtime_dir) -> None:
    """Goal: its calls end, those of the other server go on, and new ones go there."""
    with serving(1, str(runtime_dir)) as first, serving(2, str(runtime_dir)) as second, \
            DomainParticipant(node_id=3) as participant, Client(participant, Pumps, timeout=LONG) as client:
        assert client.wait_for_servers(2)
        pids = {client.who() for _ in range(4)}
        assert pids == {first.pid, second.pid}
        calls = [client.pause.future(), client.pause.future()]
        assert first.stdout is not None and first.stdout.readline() == "pausing\n"
        assert second.stdout is not None and second.stdout.readline() == "pausing\n"
        start = time.monotonic()
        first.kill()
        wait_until(lambda: any(call.done() for call in calls))
        assert time.monotonic() - start < 8
        gone, waits = sorted(calls, key=lambda call: not call.done())
        assert isinstance(gone.exception(), ServerGone) and not waits.done()
        assert {client.who() for _ in range(3)} == {second.pid} and client.servers() == ["at 2"]


@pytest.mark.slow
def test_the_node_of_a_server_dies(group, runtime_dir) -> None:
    with serving(2, str(runtime_dir)) as server, DomainParticipant(node_id=1) as participant, \
            Client(participant, Pumps, timeout=LONG) as client:
        call = client.pause.future()
        assert server.stdout is not None and server.stdout.readline() == "pausing\n"
        group[1].kill()
        assert isinstance(call.exception(20), ServerGone)
        assert server.wait(20) == 0  # its program hears of it, too


@pytest.mark.slow
def test_the_node_of_a_client_dies(group, runtime_dir) -> None:
    """Goal: calls in flight end at once; with reattach=True the client goes on at another node, else it says why."""
    with serving(3, str(runtime_dir)), DomainParticipant(runtime_dir=runtime_dir, reattach=True) as hopeful, \
            DomainParticipant(node_id=1) as other:
        node_id = hopeful.get_node_status().node_id
        assert node_id == 1
        with Client(hopeful, Pumps, timeout=LONG, wait_for_server=LONG) as client, Client(other, Pumps) as lost:
            assert lost.add(1) == 2
            calls = [client.pause.future(), lost.pause.future()]
            wait_until(lambda: client.add(1) == 2)
            group[0].kill()
            assert all(isinstance(call.exception(20), OutcomeUnknown) for call in calls)
            assert client.add(5) == 6 and hopeful.get_node_status().node_id != 1
            with pytest.raises((DDSNodeLost, DDSException)):
                lost.add(1)


@pytest.mark.slow
def test_on_hosts_without_a_node(site) -> None:
    """Goal: a client and a server elsewhere; when the client's node dies, its session turns to the next one, and the
    call that was in flight still gets its result."""
    everywhere = ",".join(host.address for host in reversed(site))
    pumps = Pumps()
    with serving(-1, everywhere), DomainParticipant.remote([host.address for host in site]) as far, \
            DomainParticipant(runtime_dir=site[1].directory) as near, Server(near, pumps, instance="near"):
        with Client(far, Pumps, timeout=LONG) as client, Client(near, Pumps, instance="at -1", timeout=LONG) as other:
            assert client.wait_for_servers(2) and other.wait_for_servers()
            assert [client.add(k) for k in range(20)] == list(range(1, 21)) and other.add(1) == 2
        # The other client keeps a reader of the replies at the node that the session turns to, so none is missed.
        with Client(near, Pumps), Client(far, Pumps, instance="near", timeout=LONG) as client:
            assert client.wait_for_servers() and client.add(1) == 2
            carried_out = pumps.carried_out
            call = client.wait.future()
            wait_until(lambda: pumps.carried_out == carried_out + 1)
            assert far.session.node_id == 1
            site[0].running.kill()
            wait_until(lambda: far.session.node_id != 1, 30)
            pumps.gate.set()
            assert call.result(30) == "open" and client.add.within(LONG)(3) == 4


@pytest.mark.slow
def test_a_server_that_hung_leaves_the_calls_whose_callers_have_given_up(group, runtime_dir) -> None:
    with serving(1, str(runtime_dir)) as server, DomainParticipant(node_id=2) as participant, \
            Client(participant, Pumps, timeout=LONG) as client:
        assert client.add(1) == 2
        halt(server.pid)
        give_up_on(client, duration(milliseconds=100))
        server.send_signal(signal.SIGCONT)
        assert client.count() == 1


@pytest.mark.slow
def test_programs_that_hang_hold_nobody_up(group, runtime_dir) -> None:
    """Goal: neither a stopped server nor a stopped client keeps others from calling. Method: more bytes of replies than
    the logs hold go past a server that is stopped; then it goes on and hears the rest."""
    with ExitStack() as stack:
        stopped = stack.enter_context(serving(1, str(runtime_dir)))
        stack.enter_context(serving(2, str(runtime_dir)))
        participant = stack.enter_context(DomainParticipant(node_id=3))
        client = stack.enter_context(Client(participant, Pumps, instance="at 2", timeout=LONG))
        hanging = stack.enter_context(Client(participant, Pumps, instance="at 1", timeout=LONG))
        assert client.wait_for_servers() and hanging.wait_for_servers() and hanging.add(1) == 2
        halt(stopped.pid)
        waits = hanging.add.future(1)
        for _ in range(20):
            calls = [client.fail.future("x" * 15_000) for _ in range(50)]
            assert all(call.exception(60) is not None for call in calls)
        assert not waits.done()
        stopped.send_signal(signal.SIGCONT)
        assert isinstance(waits.exception(30), OutcomeUnknown) and "stopped for so long" in str(waits.exception())
        wait_until(lambda: hanging.add(1) == 2)


@pytest.mark.slow
def test_hundreds_of_clients(group, runtime_dir) -> None:
    with serving(1, str(runtime_dir)), DomainParticipant(node_id=2) as participant, ExitStack() as stack:
        clients = [stack.enter_context(Client(participant, Pumps, timeout=LONG)) for _ in range(100)]
        calls = [client.add.future(k, n) for n in range(5) for k, client in enumerate(clients)]
        assert [call.result(60) for call in calls] == [k + n for n in range(5) for k in range(100)]
