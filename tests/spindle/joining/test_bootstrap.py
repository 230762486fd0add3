"""Goal: a node finds who is there and takes over nothing that isn't its own: stale or foreign sockets, directories.

Method: files and sockets in the test's own directory; another user's by changing their owner, which needs root.
"""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from spindle.config.settings import NodeConfig
from spindle.errors import AccessDenied, ConfigError, JoinFailed
from spindle.joining.bootstrap import (
    connect,
    listen,
    lowest_free_id,
    newcomer_lock,
    prepare_directory,
    scan,
    socket_path,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def config(runtime_dir: Path) -> NodeConfig:
    made = NodeConfig(runtime_dir=runtime_dir)
    prepare_directory(made)
    return made


def leftover(config: NodeConfig, node_id: int) -> Path:
    """The socket of a killed node."""
    listen(config, node_id).close()
    return socket_path(config, node_id)


def test_directory_is_private_unless_others_are_admitted(runtime_dir: Path) -> None:
    prepare_directory(NodeConfig(runtime_dir=runtime_dir))
    assert (runtime_dir / "domain-0").stat().st_mode & 0o777 == 0o700
    prepare_directory(NodeConfig(runtime_dir=runtime_dir, domain_id=1, allow_uids=(4711,)))
    assert (runtime_dir / "domain-1").stat().st_mode & 0o777 == 0o755


def test_directory_that_anybody_may_write_is_refused(runtime_dir: Path) -> None:
    (runtime_dir / "domain-0").mkdir()
    for mode in (0o777, 0o1777):  # in a sticky one, too, anybody could be the first to take the name of a socket
        (runtime_dir / "domain-0").chmod(mode)
        with pytest.raises(AccessDenied, match="chmod o-w"):
            prepare_directory(NodeConfig(runtime_dir=runtime_dir))
    (runtime_dir / "domain-0").chmod(0o700)
    runtime_dir.chmod(0o1777)  # as /tmp
    prepare_directory(NodeConfig(runtime_dir=runtime_dir))


def test_file_in_the_directory_s_place(runtime_dir: Path) -> None:
    (runtime_dir / "domain-0").write_text("")
    with pytest.raises(AccessDenied, match="choose another"):
        prepare_directory(NodeConfig(runtime_dir=runtime_dir))


@needs_root
def test_another_user_s_directory_is_refused(runtime_dir: Path) -> None:
    (runtime_dir / "domain-0").mkdir()
    os.chown(runtime_dir / "domain-0", 4711, 4711)
    with pytest.raises(AccessDenied, match="uid 4711"):
        prepare_directory(NodeConfig(runtime_dir=runtime_dir))


def test_too_long_path_is_told(runtime_dir: Path) -> None:
    with pytest.raises(ConfigError, match="107 bytes"):
        socket_path(NodeConfig(runtime_dir=runtime_dir / ("x" * 100)), 1)


def test_leftovers_are_removed_and_live_nodes_found(config: NodeConfig) -> None:
    stale = leftover(config, 3)
    (config.domain_dir / "node-5.sock.tmp").write_text("not ours to judge")
    live = listen(config, 2)
    found = scan(config)
    assert [one.node_id for one in found] == [2] and not stale.exists()
    assert (config.domain_dir / "node-5.sock.tmp").exists()
    assert lowest_free_id(found, set()) == 1
    assert lowest_free_id(found, {1}) == 3
    for one in found:
        one.close()
    live.close()


@needs_root
def test_another_user_s_leftover_is_never_touched(config: NodeConfig) -> None:
    path = leftover(config, 1)
    os.chown(path, 4711, 4711)
    assert scan(config) == [] and path.exists()
    with pytest.raises(AccessDenied, match="belongs to uid 4711"):
        listen(config, 1)
    assert path.exists()


def test_socket_is_private_unless_others_are_admitted(config: NodeConfig) -> None:
    sock = listen(config, 1)
    assert socket_path(config, 1).stat().st_mode & 0o777 == 0o600
    sock.close()


def test_one_newcomer_at_a_time(config: NodeConfig) -> None:
    async def body() -> None:
        async with newcomer_lock(config.domain_dir, 1.0):
            with pytest.raises(JoinFailed, match="join_timeout_s"):
                async with newcomer_lock(config.domain_dir, 0.05):
                    pass
        async with newcomer_lock(config.domain_dir, 1.0):
            pass

    asyncio.run(body())


@pytest.mark.parametrize("around", [0o700, 0o755, 0o2775])
def test_only_who_may_put_sockets_there_may_open_the_lock(config: NodeConfig, around: int) -> None:
    """Goal: whoever can open the lock can hold it, so only those can who may be nodes: the directory's user, and its
    group if that may write there. Method: directories with each of these rights; a lock that an umask or an earlier
    release left open."""
    lock = config.domain_dir / "bootstrap.lock"
    lock.touch(0o666)
    lock.chmod(0o666)
    config.domain_dir.chmod(around)

    async def body() -> None:
        async with newcomer_lock(config.domain_dir, 1.0):
            assert lock.stat().st_mode & 0o777 == (0o660 if around & 0o020 else 0o600)
            assert lock.stat().st_gid == config.domain_dir.stat().st_gid

    asyncio.run(body())
    lock.unlink()
    lock.symlink_to(config.domain_dir / "elsewhere")
    with pytest.raises(AccessDenied, match=r"bootstrap\.lock"):
        asyncio.run(body())


@needs_root
def test_the_lock_is_the_directory_s_user_s(config: NodeConfig) -> None:
    """Goal: a node that root runs leaves no lock that the directory's user can't take."""
    os.chown(config.domain_dir, 4711, 4711)

    async def body() -> None:
        async with newcomer_lock(config.domain_dir, 1.0):
            assert (config.domain_dir / "bootstrap.lock").stat().st_uid == 4711

    asyncio.run(body())


def test_a_group_may_share_the_directory(runtime_dir: Path) -> None:
    """Goal: that a group may put sockets there stays as the site has set it where other users may be nodes, and goes
    where none may."""
    (runtime_dir / "domain-0").mkdir()
    for users, expected in ((("1",), 0o775), ((), 0o700)):
        (runtime_dir / "domain-0").chmod(0o775)
        prepare_directory(NodeConfig(runtime_dir=runtime_dir, node_users=users))
        assert (runtime_dir / "domain-0").stat().st_mode & 0o777 == expected


def test_connect_to_nobody(config: NodeConfig) -> None:
    with pytest.raises(ConnectionRefusedError):
        connect(leftover(config, 1))
    with pytest.raises(FileNotFoundError):
        connect(config.domain_dir / "node-9.sock")


def test_full_backlog_is_not_a_leftover(config: NodeConfig) -> None:
    """A node that hangs and accepts nobody is alive: its socket must stay, and the newcomer says what is wrong."""
    path = socket_path(config, 1)
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen(0)
    waiting = []
    with pytest.raises(Exception, match="is the node hanging"):
        for _ in range(10):
            for one in scan(config):
                waiting.append(one)
    assert path.exists()
    for one in waiting:
        one.close()
    sock.close()
