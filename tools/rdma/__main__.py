"""`make rdma-test`: the verbs fabric over a real kernel RDMA stack, on guests that have one in software.

Steps run on guests; what they print is shown as it comes, what they keep goes to build/rdma. A step fails if a command
fails, does not end in time, or runs no test. A machine that can't have guests skips all of it and says
why; with --strict that is a failure, too.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import secrets
import shlex
import shutil
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from carried import read_for, write_archive
from guests import Guest, Task, run_guests
from image import NotHere, install_missing, make_image

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "rdma"
BOOT_S = 60.0  # until a guest's command runs
TIMED_OUT = 124
NOT_HERE_CODE = 77  # of a command that needs guests, where there are none


# Of which guests take what they import with them.
FABRIC = ("tests/spindle_core/fabric/test_verbs.py", "tests/spindle_core/fabric/test_verbs_pairs.py",
          "tests/spindle_core/fabric/test_verbs_stranger.py")
REGIONS = "tests/spindle_core/fabric/regions/test_verbs.py"
LINKS = ("tests/spindle_core/links/test_verbs.py", "tests/spindle/pool/test_over_verbs.py",
         "tests/spindle/large/test_over_verbs.py")
CORE = ("tests/spindle_core/test_over_verbs.py", "tests/spindle/node/test_over_verbs.py")
TESTS = (*FABRIC, REGIONS, *LINKS, *CORE)
PYVERBS = tuple(f"pyverbs.{part}" for part in ("addr", "cq", "device", "enums", "mr", "pd", "qp", "wr"))
SYSTEM_PYTHON = "/usr/bin/python3"
TESTS_DOCTOR = ("tests/spindle/rdma/test_devices.py", "tests/spindle/cli/checks/test_rdma_device.py")
MODULES = (
    "spindle.cli.doctor", "spindle.cli.checks", "spindle.node.node", "spindle.service.daemon",
    "spindle.transport.network", "spindle.security.tls", "spindle.service.metrics", "spindle.cli.daemon",
    "spindle.demo.verifier", "spindle.demo.flight", "spindle.demo.processes", "spindle_lab.bench.cli",
    "spindle_lab.bench.multicast", "spindle_lab.bench.worker", "spindle_lab.bench.core_node",
    "spindle_lab.bench.app_node", "spindle_lab.bench.core_loops", "spindle_core.fabric.verbs",
    "spindle_core.fabric.mixed", "spindle_core.fabric.verbs_pairs", "spindle_core.fabric.regions.verbs",
    "spindle.links", "spindle.client.embedding", "spindle.pool.pooling", "spindle.large.blocks", "dds",
    "tests.spindle.ports", "tests.spindle.large.group",
)


@dataclass(frozen=True)
class Step:
    """`commands`: one per guest. `judge` returns what is wrong, or "". `kill`: as in run_guests. Steps of one guest
    with one `share` run one after the other on the same guest; those of different ones beside each other."""

    name: str
    what: str
    commands: tuple[str, ...]
    timeout_s: float
    judge: Callable[[str, list[Guest]], str]
    kill: tuple[int, str] | None = None
    share: str = ""


def python(program: str) -> str:
    return f"{shlex.quote(str(Path(sys.executable).parent / program))}"


def pytest_command(name: str, *what: str) -> str:
    """Without the fixtures that look for what a test has left behind: they take seconds, and a guest goes whole."""
    return (f"{python('pytest')} -q --noconftest -p no:cacheprovider --durations=5 --junit-xml=/exchange/{name}.xml"
            f" {' '.join(what)}")


def judge_tests(name: str, guests: list[Guest]) -> str:
    """All guests' tests have run and passed."""
    for guest in guests:
        try:
            suite = next(ElementTree.parse(guest.exchange / f"{name}.xml").getroot().iter("testsuite"))
        except (OSError, ElementTree.ParseError, StopIteration):
            return f"guest {guest.node}: no results"
        counts = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
        print(f"  {name}: {counts['tests']} tests, {counts['failures'] + counts['errors']} failed,"
              f" {counts['skipped']} skipped")
        if guest.status(name) != 0 or counts["failures"] or counts["errors"]:
            return f"guest {guest.node}: tests failed"
        if counts["tests"] <= counts["skipped"]:
            return f"guest {guest.node}: no test has run"
    return ""


def judge_status(name: str, guests: list[Guest]) -> str:
    """The programs say themselves what is wrong."""
    failed = [str(guest.node) for guest in guests if guest.status(name) != 0]
    return f"guest {', '.join(failed)}: failed" if failed else ""


def judge_group(name: str, guests: list[Guest]) -> str:
    """All saw the same before the last one's power was cut, and those that are left the same after it."""
    for guest in guests:
        survives = guest.node < len(guests) - 1
        if not guest.says("fabric verbs"):
            return f"guest {guest.node}: not over verbs, or not so far"
        if survives and (guest.status(name) != 0 or not guest.says("done")):
            return f"guest {guest.node}: has not survived"
        landed = [int(line.split()[3]) for line in guest.lines if line.startswith("large sample ")]
        if len(landed) != (0, 2, 1)[guest.node] or (guest.node == 1 and not landed[-1]):
            return f"guest {guest.node}: large samples did not come, or not over RDMA"
        if not survives and not guest.killed:
            return f"guest {guest.node}: was not cut off"
    orders = [[line for line in guest.lines if line.startswith("order ")] for guest in guests]
    if len({lines[0] for lines in orders}) != 1 or len({lines[1] for lines in orders[:-1]}) != 1:
        return "they do not agree on the order"
    return ""


def judge_views(name: str, guests: list[Guest]) -> str:
    """Those that stay have kept their queue pairs, and agree with all on the order."""
    for guest in guests[:-1]:
        if guest.status(name) != 0 or not guest.says("kept") or not guest.says("done"):
            return f"guest {guest.node}: failed"
    if not guests[-1].killed or not guests[-1].says("left"):
        return f"guest {guests[-1].node}: has not left, or was not cut off"
    for topic in ("first 2", "second 3", "third 3", "third 2"):
        said = [line for guest in guests for line in guest.lines if line.startswith(f"order {topic} ")]
        if len(said) != int(topic[-1]) or len(set(said)) != 1:
            return f"they do not agree on the order of {topic.split()[0]}"
    return ""


def judge_flight(name: str, guests: list[Guest]) -> str:
    """The same on all: what was delivered, in which order, and the alerts."""
    fabric = "tcp" if name == "encrypted" else "verbs"
    for guest in guests:
        if guest.status(name) != 0 or not guest.says(f"fabric {fabric}"):
            return f"guest {guest.node}: failed, or not over {fabric}"
        if name == "encrypted" and not guest.says("kernel encrypts"):
            return f"guest {guest.node}: not encrypted"
    if len({line for guest in guests for line in guest.lines if line.startswith("flight ")}) != 1:
        return "they do not agree on what was delivered"
    return ""


STEPS = (
    Step(
        "fabric", "conformance within a process and between several, accounting, faults, a program over pyverbs",
        (pytest_command("fabric", *FABRIC),),
        420, judge_tests, share="a",
    ),
    Step(
        "core", "one order across views over verbs, whose connections nodes keep; posts for each message",
        (pytest_command("core", *CORE),),
        180, judge_tests, share="b",
    ),
    Step(
        "regions", "memory that outlives views: requests, chains, messages, ends",
        (pytest_command("regions", REGIONS),),
        240, judge_tests, share="b",
    ),
    Step(
        "links", "what devices count while links are opened, read and send messages; links and large samples of nodes",
        (pytest_command("links", "-rP", *LINKS),),
        180, judge_tests, share="b",
    ),
    Step(
        "doctor", "devices through pyverbs and from /sys; what the doctor says of them",
        (pytest_command("doctor", "-rP", *TESTS_DOCTOR),),
        120, judge_tests, share="b",
    ),
    Step(
        "bench", "spindle bench over verbs; at least five times fewer posts for each message with the switches on",
        (f"{python('python')} tools/rdma/bench.py",),
        240, judge_status, share="b",
    ),
    Step(
        "bench-more", "spindle bench over verbs: applications, latency, an idle group",
        (f"{python('python')} tools/rdma/bench.py more",),
        400, judge_status, share="b",
    ),
    Step(
        "group", "three nodes on three guests, large samples; the power of one is cut, the others go on",
        (f"{python('python')} tools/rdma/group.py",) * 3,
        180, judge_group, kill=(2, "cut my power"),
    ),
    Step(
        "views", "three nodes on three guests, one of which comes, leaves, comes, crashes: the kernels' queue pairs",
        (f"{python('python')} tools/rdma/views.py",) * 3,
        240, judge_views, kill=(2, "cut my power"),
    ),
    Step(
        "flight", "the demonstration on three guests: daemons under TLS, publishers on two, what came on each",
        (f"PYTHONPATH=. {python('python')} tools/rdma/flight.py {secrets.token_hex(32)} verbs",) * 3,
        540, judge_flight,
    ),
    Step(
        "encrypted", "daemons on two guests over TCP, which the kernel encrypts, by its own counts",
        (f"PYTHONPATH=. {python('python')} tools/rdma/flight.py {secrets.token_hex(32)} tcp encrypted",) * 2,
        300, judge_flight,
    ),
)


def with_files(image: tuple[Path, Path]) -> tuple[Path, Path]:
    """The image with what guests read for the steps of this tree."""
    kernel, initial = image
    KEPT.mkdir(parents=True, exist_ok=True)
    carried, whole = KEPT / "carried.cpio", KEPT / "initial.cpio"
    write_archive(carried, read_for(ROOT, MODULES, (*TESTS, *TESTS_DOCTOR))
                  | read_for(ROOT, PYVERBS, interpreter=SYSTEM_PYTHON))
    with whole.open("wb") as file:
        for part in (initial, carried):
            file.write(part.read_bytes())
    carried.unlink()
    return kernel, whole


@dataclass(frozen=True)
class Outcome:
    """`wrong`: what is, or ""; `late`: because it was not over in time."""

    step: Step
    wrong: str
    late: bool
    seconds: float


def run_together(image: tuple[Path, Path], steps: list[Step]) -> list[Outcome]:
    """Steps of one guest each on the same one, or a step of several guests."""
    for step in steps:
        print(f"{step.name}: {step.what}", flush=True)
    name = "+".join(step.name for step in steps)
    shutil.rmtree(KEPT / name, ignore_errors=True)
    tasks = [[Task(step.name, command, step.timeout_s) for step, command in zip(steps, commands, strict=True)]
             for commands in zip(*(step.commands for step in steps), strict=True)]
    begun = time.monotonic()
    guests = run_guests(image, KEPT / name, ROOT, tasks, BOOT_S + sum(step.timeout_s for step in steps), label=name,
                        kill=steps[0].kill)
    whole = time.monotonic() - begun
    found = []
    for step in steps:
        seconds = max((ended[1] for guest in guests if (ended := guest.ended(step.name))), default=whole)
        wrong = step.judge(step.name, guests)
        late = [guest.node for guest in guests if not guest.killed and guest.status(step.name) in (None, TIMED_OUT)]
        if wrong and late:
            wrong = f"not over after {step.timeout_s:g} s on guest {', '.join(map(str, late))}; {wrong}"
        found.append(Outcome(step, wrong, bool(wrong and late), seconds if len(steps) > 1 else whole))
    return found


def run_steps(image: tuple[Path, Path], steps: list[Step]) -> list[Outcome]:
    """Those of one guest beside each other, as they keep one processor busy each, then those of several."""
    shares: dict[str, list[Step]] = {}
    for step in steps:
        if step.share:
            shares.setdefault(step.share, []).append(step)
    with ThreadPoolExecutor(max(1, len(shares))) as pool:
        outcome = [one for found in pool.map(partial(run_together, image), shares.values()) for one in found]
    for step in steps:
        if not step.share:
            outcome += run_together(image, [step])
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="make rdma-test", description=__doc__)
    parser.add_argument("steps", nargs="*", help=f"which (default: all): {', '.join(step.name for step in STEPS)}")
    parser.add_argument("--strict", action="store_true", help="fail where guests can't be had")
    parser.add_argument("--lenient", action="store_true",
                        help="a step that is not over in time is told, but no failure: for machines that are busy")
    parser.add_argument("--guests", type=int, metavar="N",
                        help="instead of steps: run the command behind -- on N guests")
    parser.add_argument("--timeout", type=float, default=600, help="of that command, in seconds")
    parser.add_argument("--install", action="store_true",
                        help="only install what is missing, where that can be done")
    own = sys.argv[1:]
    command: list[str] = []
    if "--" in own:
        own, command = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    unknown = set(options.steps) - {step.name for step in STEPS}
    if unknown:
        parser.error(f"no step {', '.join(sorted(unknown))}")
    begun = time.monotonic()
    if options.install:
        with contextlib.suppress(NotHere):  # said by the run itself
            install_missing()
        return 0
    try:
        install_missing()
        if find_spec("spindle_core.fabric.verbs") is None:
            print("rdma-test FAILED: the core was built without libibverbs, which is here by now: run `make setup`")
            return 1
        image = with_files(make_image())
    except NotHere as reason:
        print(f"rdma-test {'FAILED' if options.strict else 'skipped'}: no guests on this machine. {reason}")
        return 1 if options.strict else NOT_HERE_CODE if options.guests else 0
    made_s = time.monotonic() - begun
    if options.guests:
        task = Task("command", shlex.join(command), options.timeout)
        guests = run_guests(image, KEPT / "command", ROOT, [[task]] * options.guests, BOOT_S + options.timeout)
        return max(125 if (status := guest.status("command")) is None else status for guest in guests)
    outcome = run_steps(image, [step for step in STEPS if not options.steps or step.name in options.steps])
    print("\nrdma-test")
    for one in outcome:
        verdict = "passed" if not one.wrong else "LATE" if one.late else "FAILED"
        print(f"  {verdict:<6}  {one.step.name:<10} {one.seconds:5.0f} s  {one.wrong}")
    late = sum(1 for one in outcome if one.late)
    failed = sum(1 for one in outcome if one.wrong) - late
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{len(outcome) - failed - late} passed, {failed} failed, {late} not over in time;"
          f" {time.monotonic() - begun:.0f} s in all, {made_s:.0f} for the image;"
          f" {used.ru_utime + used.ru_stime:.0f} s of processor time")
    return 1 if failed or (late and not options.lenient) else 0


if __name__ == "__main__":
    sys.exit(main())
