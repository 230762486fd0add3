"""`spindle bench --fabric verbs` on a guest, with few messages: that of the core and the stream beside it; with `more`,
those of applications, of latency and of an idle group.

What is asserted are counts, which don't depend on how slow an emulated processor is: nothing lost, one order, and at
least five times fewer posts for each message with the switches on than with all of them off.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

FEWER = 5.0
PATIENT = ("--timeout", "180")


def bench(*arguments: str) -> dict[str, Any]:
    """A benchmark's result. Raises SystemExit with what it said if it fails, or if anything was lost."""
    command = [sys.executable, "-m", "spindle_lab.bench", *arguments, "--fabric", "verbs", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{' '.join(arguments)}: exit code {ran.returncode}\n{ran.stdout}{ran.stderr}")
    result = json.loads(ran.stdout)
    assert result.get("order_identical", True) and not result.get("lost") and not result.get("corrupt"), result
    print(f"{' '.join(arguments)}: done", flush=True)
    return result


def counts() -> None:
    found = {}
    for switches, count in (("baseline", 150), ("spindle", 1500)):
        result = bench("multicast", "--switches", switches, "--size", "64", "--window", "64", "--count", str(count),
                       *PATIENT)
        found[switches] = result["verbs"]
        print(f"{switches}: {', '.join(f'{name} {value}' for name, value in result['verbs'].items())}", flush=True)
    for name in ("posts_per_message", "work_requests_per_message"):
        ratio = found["baseline"][name] / found["spindle"][name]
        print(f"{name}: {ratio:.1f} times fewer", flush=True)
        assert ratio >= FEWER, found
    assert bench("limit")["bytes_per_s"] > 0


def more() -> None:
    bench("latency", "--rate", "20", "--count", "40", *PATIENT)
    for own in ((), ("--daemon",)):
        bench("multicast", "--api", "dds", *own, "--nodes", "2", "--count", "300", "--window", "16", *PATIENT)
    assert bench("idle", "--nodes", "2", "--seconds", "2")["pushes"] == 0


if __name__ == "__main__":
    more() if sys.argv[1:] == ["more"] else counts()
