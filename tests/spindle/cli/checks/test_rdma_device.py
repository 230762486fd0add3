"""Goal: on a host that has an RDMA device, the doctor says so, with facts through pyverbs, and opens it as a node does.

Needs a device: `make rdma-test` runs it on a guest that has one in software.
"""

from __future__ import annotations

import json
import resource

import pytest
from click.testing import CliRunner

from spindle.cli.checks.base import OK
from spindle.cli.doctor import doctor
from spindle.rdma.devices import sysfs_devices

pytestmark = pytest.mark.skipif(not any(device.active() for device in sysfs_devices()),
                                reason="this host has no RDMA device (make rdma-test has)")


def test_the_doctor_on_a_device() -> None:
    said = CliRunner().invoke(doctor, ["--json"])
    checks = {one["name"]: one for one in json.loads(said.stdout)["checks"] if one["section"] == "rdma"}
    print("\n".join(f"{one['verdict']} {name}: {one['detail']}" for name, one in checks.items()))
    for name in ("rdma", "rdma facts", "rdma module", "rdma rights", "rdma limits", "rdma addresses", "rdma use"):
        assert checks[name]["verdict"] == OK, checks[name]
    assert "pyverbs of" in checks["rdma facts"]["detail"] and "packets of" in checks["rdma port"]["detail"]
    assert "queue pairs" in checks["rdma limits"]["detail"]
    assert checks["rdma addresses"]["detail"].split(": ")[1].split()[0] in checks["rdma use"]["detail"]
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY:
        assert checks["locked memory"]["verdict"] == OK
