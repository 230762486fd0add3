"""Goal: nodes agree on whether their RDMA devices reach each other. Method: directories as the kernel makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spindle.config.settings import NodeConfig
from spindle.errors import ConfigError
from spindle.joining.bootstrap import fabrics_of
from spindle.rdma import network as module
from spindle.rdma.network import RDMA_ATTEMPTS, ack_timeout, rdma_network


def device(root: Path, name: str, gids: dict[int, tuple[str, str, str]], state: str = "4: ACTIVE",
           layer: str = "Ethernet") -> None:
    port = root / "sys/class/infiniband" / name / "ports" / "1"
    for part in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (port / part).mkdir(parents=True)
    (port / "state").write_text(state + "\n")
    (port / "link_layer").write_text(layer + "\n")
    for index, (gid, kind, interface) in gids.items():
        (port / "gids" / str(index)).write_text(gid + "\n")
        (port / "gid_attrs" / "types" / str(index)).write_text(kind + "\n")
        (port / "gid_attrs" / "ndevs" / str(index)).write_text(interface + "\n")


LINK_LOCAL = ("fe80:0000:0000:0000:5054:00ff:fe12:3456", "RoCE v2", "eth0")
V4 = ("0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "eth0")
V4_OLD = ("0000:0000:0000:0000:0000:ffff:0b00:0001", "IB/RoCE v1", "eth0")
V6 = ("2001:0db8:0001:0002:0000:0000:0000:0001", "RoCE v2", "eth0")


@pytest.fixture(autouse=True)
def netmask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_netmask", lambda interface: "255.255.255.0" if interface == "eth0" else "")


def test_networks_are_those_of_the_addresses(tmp_path: Path) -> None:
    device(tmp_path, "a", {0: LINK_LOCAL, 1: V4_OLD, 2: V6, 10: V4})
    device(tmp_path, "b", {0: LINK_LOCAL, 1: V6})
    device(tmp_path, "c", {0: LINK_LOCAL})
    device(tmp_path, "ib", {0: ("fec0:0000:0000:0007:0002:c903:00a0:0001", "IB/RoCE v1", "")}, layer="InfiniBand")
    assert rdma_network("a", root=tmp_path) == "roce 10.0.0.0/24"
    assert rdma_network("b", root=tmp_path) == "roce 2001:db8:1:2::/64"
    assert rdma_network("c", root=tmp_path) == ""
    assert rdma_network("ib", root=tmp_path) == "infiniband fec0000000000007"


def test_the_first_active_device_counts(tmp_path: Path) -> None:
    device(tmp_path, "a", {0: V6}, state="1: DOWN")
    device(tmp_path, "b", {0: V4})
    assert rdma_network(root=tmp_path) == "roce 10.0.0.0/24"
    assert rdma_network("a", root=tmp_path) == rdma_network("none", root=tmp_path) == ""
    assert rdma_network(root=tmp_path / "none") == ""


def test_the_mask_is_the_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert module._netmask("lo") == "255.0.0.0" and module._netmask("none") == ""


def test_what_is_to_be_encrypted_does_not_go_over_rdma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "rdma_network", lambda name: "roce 10.0.0.0/24")
    config = NodeConfig(runtime_dir=tmp_path, listen="127.0.0.1:0", encrypt=True)
    assert fabrics_of(config) == (("shm", "tcp"), "")
    with pytest.raises(ConfigError, match="RDMA devices do not encrypt"):
        NodeConfig(runtime_dir=tmp_path, fabric="verbs", encrypt=True)


def test_a_network_may_pause_as_long_as_a_member() -> None:
    for timeout_s in (0.05, 1.0, 2.0, 10.0, 60.0):
        lasts_s = RDMA_ATTEMPTS * 4.096e-6 * 2 ** ack_timeout(timeout_s)
        assert timeout_s <= lasts_s <= max(0.5, 2 * timeout_s)
