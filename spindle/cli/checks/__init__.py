"""What of a machine would hurt a node: one function a check, each with its verdict and what to do.

Why functions over a `Machine`: the checks read /proc and /sys below a root that tests replace by a made-up one, so
every verdict can be seen without having such a machine.

Rules: `fail` is what keeps a node from working, `warn` what makes it slow or fragile, `ok` the rest. Whatever isn't
ok comes with advice that can be followed. A check changes nothing and leaves nothing behind. One that doesn't matter to
this node, as those of RDMA without a device, returns None and isn't shown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from spindle.cli.checks import clocks, files, host, network, rdma
from spindle.cli.checks.base import FAIL, OK, WARN, Check, Machine

__all__ = ["FAIL", "OK", "SECTIONS", "WARN", "Check", "Machine", "run_checks", "worst"]

SECTIONS: Mapping[str, tuple[Callable[[Machine], Check | None], ...]] = {
    "machine": (
        host.check_python, host.check_core, host.check_kernel, host.check_memory_files, host.check_memory,
        host.check_shm_size, host.check_huge_pages, host.check_cores, host.check_waking,
        host.check_governor, host.check_open_files,
    ),
    "files": (files.check_runtime_dir, files.check_stale, files.check_journal, files.check_access),
    "clocks": (clocks.check_clock, clocks.check_monotonic, clocks.check_synchronised),
    "network": (
        network.check_address, network.check_keys, network.check_contacts, network.check_encryption, network.check_mtu,
    ),
    "rdma": (
        rdma.check_devices, rdma.check_facts, rdma.check_module, rdma.check_rights, rdma.check_ports,
        rdma.check_addresses, rdma.check_limits, rdma.check_opening, rdma.check_locked_memory,
    ),
}  # fmt: skip


def run_checks(machine: Machine) -> list[Check]:
    """All checks that matter, in order. One that itself fails is a warning and doesn't keep the others from running."""
    results = []
    for section, checks in SECTIONS.items():
        for check in checks:
            try:
                result = check(machine)
            except OSError as error:
                name = check.__name__.removeprefix("check_").replace("_", " ")
                result = Check(name, WARN, f"could not be checked: {error}", "look at the rights of that file")
            if result is not None:
                results.append(dataclasses.replace(result, section=section))
    return results


def worst(results: list[Check]) -> str:
    """The gravest verdict."""
    verdicts = {result.verdict for result in results}
    return FAIL if FAIL in verdicts else WARN if WARN in verdicts else OK
