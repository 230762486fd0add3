"""Goal: the doctor says what RDMA lacks, from the card to the right to use it, and is silent where none is meant.

Method: made-up /sys and /dev of a RoCE card and of an InfiniBand card. Opening a real device is tested on guests that
have one (`make rdma-test`), and on the real machine where there is one.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import resource

import pytest

from spindle.cli.checks import rdma
from spindle.cli.checks.base import FAIL, OK, WARN, Machine
from spindle.config.settings import NodeConfig
from spindle.rdma.devices import SYSTEM_PYTHON, Device, DeviceList, Limits
from tests.spindle.cli.checks.support import expect, put

PORT = "/sys/class/infiniband/{}/ports/1/{}"
LINK_LOCAL = "fe80:0000:0000:0000:5054:00ff:fe12:3456"
NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
IPV4 = "0000:0000:0000:0000:0000:ffff:c000:0201"


def add_device(machine: Machine, name: str, layer: str = "Ethernet", state: str = "4: ACTIVE") -> None:
    for file, text in (("state", state), ("link_layer", layer), ("rate", "100 Gb/sec (4X EDR)"), ("lid", "0x7"),
                       ("gids/0", NO_GID)):
        put(machine, PORT.format(name, file), text)


def add_gid(machine: Machine, name: str, index: int, gid: str, kind: str, interface: str = "eth1") -> None:
    for file, text in ((f"gids/{index}", gid), (f"gid_attrs/types/{index}", kind),
                       (f"gid_attrs/ndevs/{index}", interface)):
        put(machine, PORT.format(name, file), text)


def having(machine: Machine, **settings: object) -> Machine:
    return dataclasses.replace(machine, config=NodeConfig(**settings))  # type: ignore[arg-type]


@pytest.fixture
def roce(machine: Machine) -> Machine:
    """A sound RoCE card."""
    add_device(machine, "mlx5_0")
    add_gid(machine, "mlx5_0", 0, LINK_LOCAL, "IB/RoCE v1")
    add_gid(machine, "mlx5_0", 1, LINK_LOCAL, "RoCE v2")
    add_gid(machine, "mlx5_0", 3, IPV4, "RoCE v2")
    put(machine, "/sys/class/net/eth1/mtu", "9000")
    put(machine, "/dev/infiniband/uverbs0", "")
    return machine


def test_without_a_device(machine: Machine) -> None:
    expect(rdma.check_devices(machine), OK, "over TCP")
    expect(rdma.check_devices(having(machine, fabric="verbs")), FAIL, "rdma link")
    expect(rdma.check_devices(having(machine, fabric="tcp")), OK, "not used")
    expect(rdma.check_devices(having(machine, rdma_device="mlx5_7")), WARN, "no device mlx5_7; there is none")
    for check in (rdma.check_facts, rdma.check_module, rdma.check_rights, rdma.check_ports, rdma.check_addresses,
                  rdma.check_limits, rdma.check_opening, rdma.check_locked_memory):
        assert check(machine) is None, "one line is enough"


def test_a_sound_card(roce: Machine) -> None:
    expect(rdma.check_devices(roce), OK, "mlx5_0")
    expect(rdma.check_facts(roce), OK, "from /sys", "python3-pyverbs")
    expect(rdma.check_rights(roce), OK, "uverbs0")
    expect(rdma.check_ports(roce), OK, "active, Ethernet, 100 Gb/sec", "packets of 4096 bytes (eth1 with MTU 9000)")
    expect(rdma.check_addresses(roce), OK, "RoCE v2, GID 3: 192.0.2.1 on eth1")
    assert rdma.check_opening(roce) is None, "nothing of the real machine is opened for a made-up one"
    assert rdma.check_ports(having(roce, fabric="tcp")) is None


def test_the_device_with_an_active_port_goes_first(roce: Machine) -> None:
    add_device(roce, "aaa_0", state="1: DOWN")
    expect(rdma.check_devices(roce), OK, "aaa_0, mlx5_0; the node takes mlx5_0")
    expect(rdma.check_ports(having(roce, rdma_device="aaa_0")), WARN, "port 1 down", "ip link")
    expect(rdma.check_ports(having(roce, rdma_device="aaa_0", fabric="verbs")), FAIL)


@pytest.mark.parametrize(("mtu", "packet"), [(1500, 1024), (4200, 4096), (2300, 2048), (1000, 512), (280, 256)])
def test_packets_follow_the_frames_of_the_interface(roce: Machine, mtu: int, packet: int) -> None:
    put(roce, "/sys/class/net/eth1/mtu", str(mtu))
    expect(rdma.check_ports(roce), OK if packet == 4096 else WARN, f"packets of {packet} bytes")


def test_addresses(machine: Machine) -> None:
    add_device(machine, "rxe0")
    expect(rdma.check_addresses(machine), WARN, "no RoCE v2 GID (types: none)", "IP address")
    add_gid(machine, "rxe0", 1, LINK_LOCAL, "IB/RoCE v1")
    expect(rdma.check_addresses(machine), WARN, "types: RoCE v1")
    add_gid(machine, "rxe0", 2, LINK_LOCAL, "RoCE v2")
    expect(rdma.check_addresses(machine), WARN, "GID 2: fe80::5054:ff:fe12:3456", "IPv4 address on eth1")


def test_infiniband(machine: Machine) -> None:
    add_device(machine, "ib0", layer="InfiniBand")
    add_gid(machine, "ib0", 1, LINK_LOCAL, "IB/RoCE v1", "")
    expect(rdma.check_addresses(machine), OK, "1 GIDs; LID 0x7")
    expect(rdma.check_ports(machine), OK, "InfiniBand")
    add_device(machine, "ib0", layer="InfiniBand", state="2: INIT")
    expect(rdma.check_ports(machine), WARN, "init", "subnet manager")


LIMITS = Limits(max_qp=1000, max_qp_wr=4096, max_sge=8, max_cq=64, max_cqe=4096, max_mr=500, max_mr_size=1 << 40,
                max_pd=10, max_qp_rd_atom=16, max_qp_init_rd_atom=16)


def test_limits(roce: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: they are known through pyverbs only, and held against what connections of two views need."""
    assert rdma.check_limits(roce) is None

    def has(**changed: int) -> None:
        device = Device("mlx5_0", "", (), dataclasses.replace(LIMITS, **changed))
        monkeypatch.setattr(rdma, "found", lambda _: DeviceList((device,), "pyverbs of /usr/bin/python3"))

    has()
    expect(rdma.check_limits(roce), OK, "1,000 queue pairs of 4,096", "16 reads at once")
    has(max_qp=20)
    expect(rdma.check_limits(roce), OK)
    many = having(roce, node_id=1, listen="127.0.0.1:7402", contacts=[f"host{k}" for k in range(16)])
    expect(rdma.check_limits(many), WARN, "wanted: 30", "rdma_device")
    has(max_qp_wr=64)
    expect(rdma.check_limits(roce), WARN)


def test_where_facts_are_from(roce: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a pyverbs that doesn't fit is named with how to get one that does, whoever answered in its place."""
    device = Device("mlx5_0", "", ())

    def is_found(*found: object) -> None:
        monkeypatch.setattr(rdma, "found", lambda _: DeviceList((device,), *found))  # type: ignore[arg-type]

    is_found("pyverbs of /usr/bin/python3")
    expect(rdma.check_facts(roce), OK, "pyverbs of /usr/bin/python3")
    why = "libibverbs.so.1: version `IBVERBS_PRIVATE_59' not found"
    is_found("pyverbs of /usr/bin/python3", (("/venv/bin/python", why),))
    expect(rdma.check_facts(roce), WARN, why, "/venv/bin/python -m pip uninstall pyverbs", "python3-pyverbs")
    is_found("/sys", ((SYSTEM_PYTHON, why),))
    expect(rdma.check_facts(roce), WARN, "facts from /sys", "of one release")
    is_found("pyverbs of /usr/bin/python3", (), ("mlx5_0: Failed to open device mlx5_0",))
    expect(rdma.check_facts(roce), WARN, "could not open mlx5_0", "/dev/infiniband")
    expect(rdma.check_facts(having(roce, fabric="verbs")), FAIL)


def test_rights(roce: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma.os, "access", lambda *_: False)
    expect(rdma.check_rights(roce), WARN, "may not use /dev/infiniband/uverbs0", "rdma-core")
    (roce.root / "dev/infiniband/uverbs0").unlink()
    expect(rdma.check_rights(roce), WARN, "ib_uverbs", "--device")


def test_module(roce: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma, "VERBS", "spindle_core.errors")
    expect(rdma.check_module(roce), OK, "built")
    monkeypatch.setattr(rdma, "VERBS", "spindle_core.no_such_module")
    expect(rdma.check_module(roce), WARN, "built without", "libibverbs-dev")
    monkeypatch.setattr(rdma, "VERBS", "spindle_core.fabric")

    def missing(_: str) -> None:
        raise ImportError("libibverbs.so.1: cannot open shared object file")

    monkeypatch.setattr(rdma.importlib, "import_module", missing)
    expect(rdma.check_module(roce), WARN, "libibverbs.so.1", "ibverbs-providers")


@pytest.mark.skipif(importlib.util.find_spec(rdma.VERBS) is None, reason="built without verbs")
def test_opening_says_what_the_node_would(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: a device that only the made-up /sys has; the library says that there is none."""
    real = Machine(machine.domain_dir, config=NodeConfig(rdma_device="no_such_0"))
    monkeypatch.setattr(rdma, "found", lambda _: DeviceList((Device("no_such_0", "", ()),), "/sys"))
    found = rdma.check_opening(real)
    assert found is not None and found.verdict == WARN and found.detail and found.advice


def test_locked_memory(roce: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the limit is held against what topics of the configured size pin, at all nodes that are to come."""

    def limit(size: int) -> None:
        monkeypatch.setattr(rdma.resource, "getrlimit", lambda _: (size, size))

    limit(resource.RLIM_INFINITY)
    expect(rdma.check_locked_memory(roce), OK, "unlimited")
    nodes, each = rdma.pinned_bytes(roce)
    assert nodes == 2 and 2 * 400_000 < each < 2 * 600_000, "two rings of half a MiB"
    limit(64 << 10)
    expect(rdma.check_locked_memory(roce), WARN, "limit 64 KiB, enough for 0 topics", "LimitMEMLOCK=infinity")
    expect(rdma.check_locked_memory(having(roce, fabric="verbs")), FAIL)
    limit(3 * each)
    expect(rdma.check_locked_memory(roce), WARN, "enough for 3 topics")
    limit(10 * each)
    expect(rdma.check_locked_memory(roce), OK, "enough for 10 topics")
    many = having(roce, node_id=1, listen="127.0.0.1:7402", contacts=[f"host{k}" for k in range(16)])
    assert rdma.pinned_bytes(many) == (16, 8 * each)
