"""Goal: the same facts of RDMA devices from pyverbs and from /sys, and none lost when one of them can't be had.

Method: a made-up /sys; programs that stand where an interpreter with pyverbs is asked; and where this host has a
device, as the guests of `make rdma-test`, the real two beside each other.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import pytest

from spindle.rdma import devices as rdma_devices
from spindle.rdma.devices import PROBE, SYSTEM_PYTHON, Device, Gid, Port, ask, chosen, discover, parsed, sysfs_devices

FILES = {
    "mlx5_0/fw_ver": "20.31.1014",
    "mlx5_0/ports/1/state": "4: ACTIVE",
    "mlx5_0/ports/1/link_layer": "Ethernet",
    "mlx5_0/ports/1/lid": "0x0",
    "mlx5_0/ports/1/rate": "100 Gb/sec (4X EDR)",
    "mlx5_0/ports/1/gids/0": "fe80:0000:0000:0000:ba59:9fff:fe12:3456",
    "mlx5_0/ports/1/gids/2": "0000:0000:0000:0000:0000:ffff:c0a8:0105",
    "mlx5_0/ports/1/gids/10": "0000:0000:0000:0000:0000:ffff:c0a8:0105",
    "mlx5_0/ports/1/gids/11": "0000:0000:0000:0000:0000:0000:0000:0000",
    "mlx5_0/ports/1/gid_attrs/types/0": "RoCE v2",
    "mlx5_0/ports/1/gid_attrs/types/2": "IB/RoCE v1",
    "mlx5_0/ports/1/gid_attrs/types/10": "RoCE v2",
    "mlx5_0/ports/1/gid_attrs/ndevs/10": "ens1f0",
    "mlx5_1/fw_ver": "16.1",
    "mlx5_1/ports/1/state": "1: DOWN",
    "mlx5_1/ports/1/link_layer": "InfiniBand",
    "mlx5_1/ports/1/lid": "0x1f",
    "mlx5_1/ports/1/gids/0": "fe80:0000:0000:0000:ba59:9fff:fe12:3457",
    "mlx5_1/ports/1/gid_attrs/types/0": "IB/RoCE v1",
    "broken/fw_ver": "",
    "broken/ports/1/gids/0": "nonsense",
}
ANSWER: dict[str, Any] = {
    "name": "mlx5_0", "firmware": "20.31.1014",
    "limits": {"max_qp": 100, "max_qp_wr": 200, "max_sge": 3, "max_cq": 4, "max_cqe": 5, "max_mr": 6, "max_mr_size": 7,
               "max_pd": 8, "max_qp_rd_atom": 9, "max_qp_init_rd_atom": 10},
    "ports": [{"number": 1, "state": "active", "layer": "Ethernet", "mtu": 2048, "mtu_max": 4096, "lid": 0,
               "rate": "100 Gb/sec", "gids": [{"index": 10, "address": "::ffff:192.168.1.5", "kind": "RoCE v2",
                                               "interface": "ens1f0"}]}],
}  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "sys/class/infiniband" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    (tmp_path / "sys/class/net/ens1f0").mkdir(parents=True)
    (tmp_path / "sys/class/net/ens1f0/mtu").write_text("1500\n")
    return tmp_path


def test_sysfs(root: Path) -> None:
    broken, roce, infiniband = sysfs_devices(root)
    port = roce.ports[0]
    assert (roce.name, roce.firmware, roce.limits) == ("mlx5_0", "20.31.1014", None)
    assert (port.number, port.state, port.layer, port.mtu, port.rate) == (1, "active", "Ethernet", 1024,
                                                                          "100 Gb/sec (4X EDR)")
    assert [(gid.index, gid.kind) for gid in port.gids] == [(0, "RoCE v2"), (2, "RoCE v1"), (10, "RoCE v2")]
    assert port.source == Gid(10, IPv6Address("::ffff:192.168.1.5"), "RoCE v2", "ens1f0")
    assert str(port.source) == "192.168.1.5" and port.source.ipv4 == IPv4Address("192.168.1.5")
    assert (infiniband.ports[0].lid, infiniband.ports[0].state) == (0x1F, "down") and not infiniband.active()
    assert infiniband.ports[0].source == infiniband.ports[0].gids[0] and infiniband.ports[0].gids[0].kind == "IB"
    assert broken.ports == (Port(1, "unknown", ""),) and broken.ports[0].source is None
    assert chosen((broken, roce, infiniband)) is roce and chosen((broken,)) is broken and chosen(()) is None
    assert chosen((roce, infiniband), "mlx5_1") is infiniband and chosen((roce,), "none") is None


def test_another_root_has_only_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_devices, "ask", lambda _: pytest.fail("asked"))
    found = discover(root)
    assert [device.name for device in found.devices] == ["broken", "mlx5_0", "mlx5_1"] and found.source == "/sys"


def program(path: Path, text: str) -> str:
    """An executable that stands for an interpreter."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_pyverbs_before_sysfs_and_what_it_does_not_know_from_there(root: Path, tmp_path: Path,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    answer = json.dumps({"devices": [ANSWER], "problems": ["mlx5_1: can't be opened"]})
    there = sysfs_devices(root)
    monkeypatch.setattr(rdma_devices, "sysfs_devices", lambda _: there)
    unfit = "libibverbs.so.1: version `IBVERBS_PRIVATE_59' not found"
    known = {
        "unfit": program(tmp_path / "unfit", f"cat <<'.'\n{json.dumps({'unfit': unfit})}\n."),
        "missing": program(tmp_path / "missing", """echo '{"missing": "No module named pyverbs"}'"""),
        "fit": program(tmp_path / "fit", f"cat <<'.'\n{answer}\n."),
        "dies": program(tmp_path / "dies", "echo 'Segmentation fault' >&2; exit 139"),
    }
    monkeypatch.setattr(rdma_devices, "interpreters", lambda: [*known.values(), "/no/such/python"])
    found = discover()
    assert found.source == f"pyverbs of {known['fit']}" and found.unfit == ((known["unfit"], unfit),)
    assert found.devices == (there[0], parsed(ANSWER), there[2]) and found.problems == ("mlx5_1: can't be opened",)
    assert found.devices[1].ports[0].mtu == 2048 and found.devices[1].limits is not None
    monkeypatch.setattr(rdma_devices, "interpreters", lambda: [known["unfit"], known["dies"]])
    found = discover()
    assert found.source == "/sys" and found.devices == there and len(found.unfit) == 1
    assert ask(known["dies"]) == {"missing": "Segmentation fault"} and "missing" in ask("/no/such/python")


@pytest.mark.parametrize(("module", "kind"), [
    ("raise ImportError(\"libibverbs.so.1: version `IBVERBS_PRIVATE_59' not found\")", "unfit"),
    ("import no_such_module", "unfit"),
    (None, "missing"),
])
def test_the_probe_tells_what_does_not_fit_from_what_is_missing(module: str | None, kind: str, tmp_path: Path) -> None:
    """Method: a package of that name in front of everything else."""
    if module is not None:
        (tmp_path / "pyverbs").mkdir()
        (tmp_path / "pyverbs/__init__.py").write_text(module + "\n")
    run = (f"import sys, runpy; sys.path.insert(0, {str(tmp_path)!r});"
           f" runpy.run_path({str(PROBE)!r}, run_name='__main__')")
    ran = subprocess.run([sys.executable, "-I", "-c", run], capture_output=True, text=True, check=True)
    answer = json.loads(ran.stdout)
    if kind == "missing" and "devices" in answer:
        pytest.skip("this interpreter has a pyverbs")
    assert list(answer) == [kind] and answer[kind]


def test_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_devices.importlib.util, "find_spec", lambda name: None)
    assert rdma_devices.interpreters() == [SYSTEM_PYTHON] * Path(SYSTEM_PYTHON).exists()
    monkeypatch.setattr(rdma_devices.importlib.util, "find_spec", lambda name: object())
    assert sys.executable in rdma_devices.interpreters() or Path(sys.executable).samefile(SYSTEM_PYTHON)


@pytest.mark.skipif(not sysfs_devices(), reason="this host has no RDMA device (make rdma-test has)")
def test_both_sources_of_this_host_say_the_same() -> None:
    found, files = discover(), sysfs_devices()
    if found.source == "/sys":
        pytest.skip("no pyverbs")
    assert not found.problems and [device.name for device in found.devices] == [device.name for device in files]

    # One knows what the other doesn't; a device in software says no firmware in /sys, and 0.0.0 to pyverbs.
    def common(device: Device) -> Device:
        return dataclasses.replace(device, firmware="", limits=None, ports=tuple(
            dataclasses.replace(port, rate="", mtu_max=0) for port in device.ports))

    for one, other in zip(found.devices, files, strict=True):
        assert one.limits is not None and one.limits.max_qp > 0 and one.limits.max_qp_wr > 0 and one.limits.max_mr > 0
        assert all(port.mtu_max >= port.mtu > 0 for port in one.ports)
        assert common(one) == common(other)
