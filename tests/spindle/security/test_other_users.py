"""Goal: a user who may attach is an application and nothing else, and keeps no node from starting.

Method: real daemons of this user, and programs that really are another user's, who is admitted to a few topics.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from spindle.client import attach
from spindle.config.settings import NodeConfig
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.proto.opening_pb2 import CONTACT, PEER, Opening, OpeningReply
from spindle.transport.opening import MAGIC, PROTOCOL
from spindle.transport.wire import encode
from tests.spindle.daemons import Daemon, daemons
from tests.spindle.users import STRANGER_UID, needs_root, run_as
from tests.support import wait_until

pytestmark = needs_root

SETTINGS = f"""
[access]
allow_uids = [{STRANGER_UID}]
rules = [{{ uid = {STRANGER_UID}, publish = ["public/*"], subscribe = ["public/*"] }}]
"""


@pytest.fixture
def arguments(runtime_dir: Path, tmp_path: Path) -> list[str]:
    runtime_dir.parent.chmod(0o755)
    file = runtime_dir / "spindle.toml"
    file.write_text(SETTINGS + f'[journal]\ndir = "{tmp_path}"\n')
    return ["--config", str(file)]


def opening(role: int, node_id: int, protocol: int = PROTOCOL) -> str:
    """The first frame of somebody who says that he is a node, in hexadecimal digits."""
    return encode(Opening(
        magic=MAGIC, role=role, protocol=protocol, domain_id=0, node_id=node_id, incarnation=5,
        settings=NodeConfig().agreed_settings).SerializeToString()).hex()


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


IMPOSTOR = """
    # Says again and again that it is a node, in both roles, until its input ends; prints each different answer once.
    import select
    path, seen = sys.argv[1], set()
    while not select.select([sys.stdin], [], [], 0)[0]:
        for said in sys.argv[2:]:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(20)
            sock.connect(path)
            sock.sendall(bytes.fromhex(said))
            answer = b""
            while more := sock.recv(65536):
                answer += more
            if (said, answer) not in seen:
                seen.add((said, answer))
                print(answer.hex(), flush=True)
            sock.close()
"""


@pytest.mark.slow
def test_an_application_that_says_it_is_a_node_learns_and_changes_nothing(
    runtime_dir: Path, arguments: list[str]
) -> None:
    """Goal: S42: a user who may attach is refused as a peer and as one who looks for the group, and is told nothing of
    it; an honest node of the same id joins meanwhile, and what the secret topic holds is what its writer wrote.

    Method: two daemons and a program of the admitted user that opens as node 3, in every role and version, without end;
    meanwhile daemon 3 starts and reads the logged topic from its beginning."""
    secret = TopicSpec("secret", level=Level.LOGGED)
    with daemons(runtime_dir, 2, arguments), attach(node_id=1) as session:
        session.declare_topic(secret)
        with contextlib.closing(session.open_writer("secret")) as writer:
            writer.inbox.write(b"from its writer")
            assert writer.inbox.wait_acknowledged(10)
        said = [opening(PEER, 3), opening(CONTACT, 3), opening(PEER, 1), opening(PEER, 9, PROTOCOL + 1)]
        path = str(runtime_dir / "domain-0" / "node-1.sock")
        with running(run_as(STRANGER_UID, IMPOSTOR, path, *said, imports="import select")) as impostor:
            assert impostor.stdout is not None
            for _ in said:
                answer = bytes.fromhex(impostor.stdout.readline())
                reply = OpeningReply.FromString(answer[8:])
                assert reply.kind == "AccessDenied" and f"user {STRANGER_UID}" in reply.message
                assert "[access] nodes" in reply.message
                assert not (reply.group_id or reply.incarnation or reply.standing)
                assert len(answer) == 8 + reply.ByteSize(), "nothing follows the refusal"
            honest = Daemon(3, *arguments, runtime_dir=runtime_dir)
            try:
                honest.wait_ready()
                assert impostor.poll() is None
                with attach(node_id=3) as there:
                    assert there.view().node_ids == (1, 2, 3)
                    with contextlib.closing(
                        there.open_reader("secret", keep_all=True, from_history=True)) as reader:
                        got: list[bytes] = []
                        wait_until(lambda: got.extend(reader.log.take(10)) or got)
                        assert got == [b"from its writer"]
            finally:
                honest.stop()


@pytest.mark.slow
def test_a_user_named_as_a_node_s_may_be_one(runtime_dir: Path) -> None:
    """Goal: [access] nodes admits a user as a node, by name or number, and then not as less than that."""
    runtime_dir.parent.chmod(0o755)
    with daemons(runtime_dir, 1, ["--set", f'access.nodes=["{STRANGER_UID}"]']):
        path = str(runtime_dir / "domain-0" / "node-1.sock")
        program = """
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(20)
            sock.connect(sys.argv[1])
            sock.sendall(bytes.fromhex(sys.argv[2]))
            print(sock.recv(65536).hex())
        """
        answer = subprocess.run(run_as(STRANGER_UID, program, path, opening(CONTACT, 3)),
                                capture_output=True, text=True, timeout=30, check=True)
        reply = OpeningReply.FromString(bytes.fromhex(answer.stdout)[8:])
        assert not reply.kind and reply.node_id == 1 and reply.group_id


@pytest.mark.slow
def test_nobody_else_can_hold_the_lock_of_newcomers(runtime_dir: Path, arguments: list[str]) -> None:
    """Goal: S45: a user who may attach can't keep nodes from starting by locking what he may open. Method: his program
    takes every lock that it gets on every file of the directories, and a second daemon starts."""
    with daemons(runtime_dir, 1, arguments):
        program = """
            held = []
            for directory in sys.argv[1:]:
                for name in [".", *os.listdir(directory)]:
                    for flags in (os.O_RDONLY, os.O_RDWR, os.O_PATH):
                        try:
                            fd = os.open(os.path.join(directory, name), flags | os.O_NONBLOCK)
                            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                            held.append(name)
                        except OSError:
                            pass
            print(json.dumps(held), flush=True)
            sys.stdin.read()
        """
        places = [str(runtime_dir), str(runtime_dir / "domain-0")]
        with running(run_as(STRANGER_UID, program, *places, imports="import json")) as locking:
            assert locking.stdout is not None
            held = json.loads(locking.stdout.readline())
            assert held and "bootstrap.lock" not in held
            second = Daemon(2, *arguments, "--set", "membership.join_timeout_s=5", runtime_dir=runtime_dir)
            try:
                second.wait_ready()
                assert locking.poll() is None
            finally:
                second.stop()
