"""`make mutants`: breaks the protocol in one place at a time, and demands that the suite notices.

    python tools/mutants.py [--jobs N] [--resume] [--list] [--check CHECK] [NAME...]   NAME: the start of mutants' names

Why: a test that passes shows little; one that fails for each of these mistakes shows that it looks. The mistakes are
those that systems of this kind were really found to have, each one line, in mutants.toml.

Method: the tree is copied to build/mutants/tree-N for each worker, with its compiled modules. There each mutant
replaces one line; if that is Cython's, its module is compiled anew. Then its checks run, cheapest first, until one
fails: the mutant is killed. One that hangs is killed by the time limit. One that passes all of its checks has
survived, and the exit code is 1. First of all every check runs on the tree as it is, where it must pass; that gives
the time limits, too.

What is found is noted in build/mutants/log.jsonl, which spares time:
- A check that has passed on the very same code isn't run on it again. All files count that git lists, but documents,
  the catalogue and this program.
- The test, or seed, that killed a mutant before is tried first, and alone, whatever the code was like then.
- With --resume, a mutant that was killed in the same code, by the same checks, is not tried again. So a run that was
  interrupted goes on.

A check that this machine can't run (no guests with RDMA, say) ends with 77; a mutant that has no other one is left out,
and named.

Rules: the line to be replaced must stand exactly once in its file; a mutant whose line is gone is an error, not a
success. Nothing outside build/mutants is written.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef]

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "mutants"
CATALOGUE = ROOT / "tools" / "mutants.toml"
LIMIT_FACTOR, LIMIT_EXTRA_S = 4, 60  # time limit of a check: so many times what the right code takes, and so much more
BASELINE_LIMIT_S = 900
NOT_HERE = 77  # with this a check ends that this machine can't run
PACKAGES = ("dds", "spindle", "spindle_core", "spindle_lab")
COMPILED = (".pyx", ".pxd", ".pxi", ".h")
NO_CODE = re.compile(r".*\.md|docs/.*|tools/mutants\..*")  # files that no check depends on

CANNOT = "can't be run on this machine"

Task = TypeVar("Task")


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One mistake. `old` stands once in `file`; `new` takes its place. `checks` are names of the catalogue's checks."""

    name: str
    file: str
    old: str
    new: str
    why: str
    checks: tuple[str, ...]


@dataclasses.dataclass
class Outcome:
    """What became of a mutant. `killed_by` is empty if nothing noticed, `error` if it could not be tried."""

    mutant: Mutant
    line: int = 0
    killed_by: str = ""  # check: what failed in it
    error: str = ""
    took_s: float = 0.0


class Catalogue:
    """mutants.toml: [checks] name = command line, and [[mutant]] tables."""

    def __init__(self, path: Path) -> None:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        self.checks: dict[str, list[str]] = {
            name: shlex.split(line.replace("{python}", shlex.quote(sys.executable)))
            for name, line in data["checks"].items()
        }
        self.mutants = [Mutant(**{**one, "checks": tuple(one["checks"])}) for one in data["mutant"]]
        names = [one.name for one in self.mutants]
        assert len(set(names)) == len(names), "two mutants of one name"
        for one in self.mutants:
            assert set(one.checks) <= set(self.checks) and one.checks, f"{one.name}: unknown check"

    def entry(self, mutant: Mutant) -> str:
        """Digest of the mutant and of what is to kill it."""
        parts = [mutant.file, mutant.old, mutant.new, *(shlex.join(self.checks[name]) for name in mutant.checks)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def chosen(self, wanted: Iterable[str]) -> list[Mutant]:
        found = [one for one in self.mutants if not wanted or any(one.name.startswith(word) for word in wanted)]
        if not found:
            sys.exit(f"no mutant is called {' or '.join(wanted)}; --list shows them")
        return found


class Log:
    """What was found before: JSON, a line for each check that passed and each mutant that was tried. One writer."""

    def __init__(self, path: Path, state: str) -> None:
        self.state, self._path, self._lock = state, path, threading.Lock()
        self._passed: dict[str, float] = {}
        self._killed: dict[str, dict[str, Any]] = {}
        self._killers: dict[str, str] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                self._take(json.loads(line))
            except ValueError:  # who wrote it was killed
                continue

    def _take(self, entry: dict[str, Any]) -> None:
        now = entry["state"] == self.state
        if "check" in entry:
            if now:
                self._passed[entry["check"]] = entry["took_s"]
        elif entry["killed_by"]:
            self._killers[entry["name"]] = entry["killed_by"]
            if now:
                self._killed[entry["entry"]] = entry

    def _add(self, **entry: Any) -> None:
        with self._lock:
            self._take({"state": self.state, **entry})
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"state": self.state, **entry}) + "\n")

    def add_passed(self, command: list[str], took_s: float) -> None:
        self._add(check=shlex.join(command), took_s=round(took_s, 1))

    def add(self, outcome: Outcome, entry: str) -> None:
        self._add(entry=entry, name=outcome.mutant.name, line=outcome.line, killed_by=outcome.killed_by,
                  error=outcome.error, took_s=round(outcome.took_s, 1))

    def passed_s(self, command: list[str]) -> float | None:
        """Seconds that this check took when it passed on this code; None if it hasn't."""
        return self._passed.get(shlex.join(command))

    def killed(self, mutant: Mutant, entry: str) -> Outcome | None:
        """What killed the mutant in this code."""
        found = self._killed.get(entry)
        return Outcome(mutant, found["line"], found["killed_by"], "", found["took_s"]) if found else None

    def killer(self, name: str) -> tuple[str, str]:
        """What killed the mutant of this name when that was last tried: check, and what failed in it."""
        check, _, complaint = self._killers.get(name, "").partition(": ")
        return check, complaint


def listed_files() -> list[str]:
    """What the tree consists of: all that git knows or would take, in order."""
    listing = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                             capture_output=True, check=True).stdout.decode()
    return sorted({name for name in listing.split("\0") if name and (ROOT / name).is_file()})


def state_of_code() -> str:
    """Digest of all that a check may depend on, the interpreter included."""
    digest = hashlib.sha256(sys.version.encode())
    for name in listed_files():
        if not NO_CODE.fullmatch(name):
            digest.update(f"{name}\0".encode() + hashlib.sha256((ROOT / name).read_bytes()).digest())
    return digest.hexdigest()[:16]


def alone(command: list[str], complaint: str) -> list[str] | None:
    """The check's command for that test or seed only which complained; None if it can't be told."""
    if seed := re.match(r"seed (\d+):", complaint):
        if "--seeds" in command:
            at = command.index("--seeds")
            return [*command[:at], "--first", seed[1], "--seeds", "1", *command[at + 2 :]]
    elif complaint.startswith("tests/") and "pytest" in command:
        return [*(word for word in command if not word.startswith("tests/")), complaint]
    return None


def line_of(mutant: Mutant, text: str) -> int:
    """Number of the line that is changed. ValueError unless it stands there once."""
    count = text.count(mutant.old)
    if count != 1:
        raise ValueError(f"the text to be replaced stands {count} times in {mutant.file}")
    return text[: text.index(mutant.old)].count("\n") + 1


class Worker:
    """A copy of the tree in which mutants are tried, one after the other."""

    def __init__(self, number: int) -> None:
        self.tree = WORK / f"tree-{number}"
        self.stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        self._changed = self.tree / ".changed"  # names the file that is changed now; left behind by who is interrupted

    def prepare(self) -> None:
        """Makes the copy equal to the tree, its compiled modules included. What is equal keeps its times."""
        wanted = set(listed_files())
        self.tree.mkdir(parents=True, exist_ok=True)
        for name in wanted:
            source, target = ROOT / name, self.tree / name
            if not target.exists() or target.read_bytes() != source.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        self._take_compiled()
        for path in [*self.tree.rglob("*.py"), *self.tree.rglob("*.p[yx][xdi]")]:
            place = path.relative_to(self.tree)
            if place.parts[0] != "build" and str(place) not in wanted:
                path.unlink()
        if self._changed.exists():  # its source is good again by now, but older than what was compiled of the mutant
            (self.tree / self._changed.read_text()).touch()
            self._changed.unlink()
        for path in self.tree.rglob("*.so"):  # of a module that is gone, or has another name
            if path.relative_to(self.tree).parts[0] != "build":
                stem = path.with_name(path.name.split(".")[0])
                if not stem.with_suffix(".pyx").exists():
                    path.unlink()
        self.build()
        # Bytecode of the right code, by which mutants' processes start sooner. They write none themselves.
        subprocess.run([sys.executable, "-m", "compileall", "-q", *PACKAGES, "tests"], cwd=self.tree, check=False)

    def _take_compiled(self) -> None:
        """A new copy begins with what is compiled in the tree, with its times: only what differs is compiled anew."""
        if (self.tree / "build").exists():
            return
        for source in (ROOT / "build").glob("*"):
            if source.name.startswith(("cython", "lib", "temp")):
                shutil.copytree(source, self.tree / "build" / source.name)
        for package in PACKAGES:
            for source in (ROOT / package).rglob("*.so"):
                shutil.copy2(source, self.tree / source.relative_to(ROOT))

    def build(self) -> None:
        run = subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=self.tree,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                             env={**os.environ, "SPINDLE_JOBS": "1", **ccache(self.tree)})
        if run.returncode:
            raise ValueError(f"does not compile:\n{run.stdout[-2000:]}")

    def check(self, command: list[str], limit_s: float, *, right: bool = False) -> tuple[str, float]:
        """Runs one check; what it complains of, empty if nothing, and its seconds. right: of the tree as it is."""
        started = time.monotonic()
        shutil.rmtree(self.tree / ".hypothesis", ignore_errors=True)  # what an earlier mutant was found by
        environment = {**os.environ, "PYTHONPATH": str(self.tree), "PYTEST_PLUGINS": "tools.first_failure",
                       "PYTHONDONTWRITEBYTECODE": "" if right else "1"}
        process = self._process = subprocess.Popen(
            command, cwd=self.tree, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True)
        if self.stopped:
            self.stop()
        try:
            output = process.communicate(timeout=limit_s)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"hangs (longer than {limit_s:.0f} s)", time.monotonic() - started
        finally:
            self._process = None
        return first_complaint(process.returncode, output), time.monotonic() - started

    def stop(self) -> None:
        """Ends the check that runs, from another thread or a signal; whatever it says counts for nothing."""
        self.stopped = True
        if process := self._process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def try_out(self, mutant: Mutant, commands: Iterable[tuple[str, list[str]]], limits_s: dict[str, float]) -> Outcome:
        """Runs the commands, each with the name of its check, on the mutant until one complains."""
        outcome, started = Outcome(mutant), time.monotonic()
        path = self.tree / mutant.file
        kept = [(one, one.read_bytes(), one.stat()) for one in self._made_of(path)]
        try:
            text = path.read_text(encoding="utf-8")
            outcome.line = line_of(mutant, text)
            self._changed.write_text(mutant.file)
            path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
            if path.suffix in COMPILED:
                self.build()
            for name, command in commands:
                complaint, _ = self.check(command, limits_s[name])
                if complaint:
                    outcome.killed_by = f"{name}: {complaint}"
                    break
        except ValueError as error:
            outcome.error = str(error)
        finally:
            for one, data, was in kept:
                now = one.stat() if one.exists() else None
                if now is None or (now.st_mtime_ns, now.st_size) != (was.st_mtime_ns, was.st_size):
                    one.write_bytes(data)
                    os.utime(one, ns=(was.st_atime_ns, was.st_mtime_ns))
            self._changed.unlink(missing_ok=True)
        outcome.took_s = time.monotonic() - started
        return outcome

    def _including(self, part: Path) -> Path:
        """The module that a .pxi is a part of."""
        for module in self.tree.glob(f"{part.relative_to(self.tree).parts[0]}/**/*.pyx"):
            if f'include "{os.path.relpath(part, module.parent)}"' in module.read_text():
                return module
        raise ValueError(f"no module includes {part}")

    def _made_of(self, path: Path) -> list[Path]:
        """The file, and what compiling it makes: put back with their times, they need not be compiled again."""
        if path.suffix not in COMPILED:
            return [path]
        module = self._including(path) if path.suffix == ".pxi" else path
        stem = str(module.relative_to(self.tree).with_suffix("")) if module.suffix == ".pyx" else "**/*"  # of many
        made = [path, *self.tree.glob(f"{stem}.*.so"), *self.tree.glob(f"build/cython/{stem}.c"),
                *self.tree.glob(f"build/lib*/{stem}.*.so"), *self.tree.glob(f"build/temp*/**/{stem}.o")]
        return list(dict.fromkeys(made))


def ccache(tree: Path) -> dict[str, str]:
    """Variables by which compilers that went this way before are not asked again, where there is a ccache."""
    compilers = Path("/usr/lib/ccache")
    if not compilers.is_dir():
        return {}
    return {"PATH": f"{compilers}:{os.environ['PATH']}", "CCACHE_BASEDIR": str(tree), "CCACHE_NOHASHDIR": "1"}


def first_complaint(code: int, output: str) -> str:
    """The line of a failed check's output that says what failed."""
    if code == 0:
        return ""
    if code == NOT_HERE:
        return CANNOT
    if code in (4, 5) and ("no tests ran" in output or "not found:" in output):
        return ""  # nothing was checked, so nothing was noticed
    for pattern in (r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", r"^(seed \d+: .*)$", r"^E  +(\S.*)$"):
        if found := re.search(pattern, output, re.MULTILINE):
            return found[1].strip()[:240]
    lines = [line for line in output.splitlines() if line.strip()]
    return (lines[-1].strip() if lines else f"ends with code {code}")[:240]


def at_once(workers: list[Worker], tasks: Iterable[Task], run: Callable[[Worker, Task], None]) -> None:
    """Each worker takes the next task, until there are none or it is stopped. An exception ends that, and is raised."""
    waiting: SimpleQueue[Task] = SimpleQueue()
    for task in tasks:
        waiting.put(task)

    def work(worker: Worker) -> None:
        with contextlib.suppress(Empty):
            while not worker.stopped:
                run(worker, waiting.get_nowait())

    with ThreadPoolExecutor(len(workers)) as pool:
        for future in [pool.submit(work, worker) for worker in workers]:
            future.result()


def time_limits(workers: list[Worker], checks: dict[str, list[str]], log: Log) -> dict[str, float]:
    """Runs the checks on the right code, unless they have passed on it before. Exits if one fails. The limit of one
    that can't be run here is 0."""
    took_s = {name: log.passed_s(command) for name, command in checks.items()}

    def run(worker: Worker, name: str) -> None:
        complaint, seconds = worker.check(checks[name], BASELINE_LIMIT_S, right=True)
        if worker.stopped:
            return
        if complaint == CANNOT:
            took_s[name] = 0.0
            print(f"  {name:<22} can't be run on this machine", flush=True)
            return
        if complaint:
            for one in workers:
                one.stop()
            raise SystemExit(f"check {name!r} fails without any mutant: {complaint}")
        took_s[name] = seconds
        log.add_passed(checks[name], seconds)
        print(f"  {name:<22} passes in {seconds:6.1f} s", flush=True)

    new = [name for name, seconds in took_s.items() if seconds is None]
    print(f"the checks on the tree as it is: {len(checks) - len(new)} are known to pass, {len(new)} are run")
    at_once(workers, new, run)
    return {name: LIMIT_FACTOR * seconds + LIMIT_EXTRA_S if seconds else 0.0
            for name, seconds in took_s.items() if seconds is not None}


def row(outcome: Outcome) -> str:
    mutant = outcome.mutant
    verdict = outcome.killed_by or (f"ERROR {outcome.error}" if outcome.error else "SURVIVED")
    return (f"{mutant.name:<36} {mutant.file.removeprefix('spindle')}:{outcome.line or '?'}\n"
            f"    {mutant.why}\n    {outcome.took_s:5.1f} s  {verdict}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/mutants.py")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--list", action="store_true", help="show the catalogue, try nothing")
    parser.add_argument("--check", help="only this check, whatever the mutants say")
    parser.add_argument("--resume", action="store_true", help="leave out what was killed in the same code before")
    arguments = parser.parse_args()
    catalogue = Catalogue(CATALOGUE)
    mutants = catalogue.chosen(arguments.names)
    if arguments.check:
        mutants = [dataclasses.replace(one, checks=(arguments.check,)) for one in mutants]
    if arguments.list:
        for one in mutants:
            print(f"{one.name:<36} {one.file}\n    {one.why}\n    - {one.old.strip()}\n    + {one.new.strip()}")
        print(f"{len(mutants)} mutants")
        return 0
    started = time.monotonic()
    WORK.mkdir(parents=True, exist_ok=True)
    lock = (WORK / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"another run uses {WORK.relative_to(ROOT)}")
    log = Log(WORK / "log.jsonl", state_of_code())
    outcomes = [found for one in mutants if arguments.resume and (found := log.killed(one, catalogue.entry(one)))]
    known = {one.mutant.name for one in outcomes}
    left = [one for one in mutants if one.name not in known]
    workers = [Worker(number) for number in range(max(1, min(arguments.jobs, len(left))))]

    def stop(*_: object) -> None:
        for worker in workers:
            worker.stop()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    print(f"{len(mutants)} mutants, of which {len(known)} are known to be killed; {len(workers)} at once; copying and "
          f"compiling in {WORK.relative_to(ROOT)}", flush=True)
    if left:
        at_once(workers, workers, lambda _, worker: worker.prepare())
    if state_of_code() != log.state:
        sys.exit("the tree was changed while it was copied: start again")
    checks = {name: line for name, line in catalogue.checks.items() if any(name in one.checks for one in left)}
    limits_s = time_limits(workers, checks, log)

    def run(worker: Worker, mutant: Mutant) -> None:
        commands = [(name, checks[name]) for name in mutant.checks if limits_s[name]]
        check, complaint = log.killer(mutant.name)
        if check in dict(commands) and (first := alone(checks[check], complaint)):
            commands.insert(0, (check, first))
        outcome = worker.try_out(mutant, commands, limits_s)
        if not worker.stopped:
            outcomes.append(outcome)
            log.add(outcome, catalogue.entry(mutant))
            print(row(outcome), flush=True)

    left_out = [one for one in left if not any(limits_s.get(name, 1.0) for name in one.checks)]
    if len(limits_s) == len(checks):
        at_once(workers, [one for one in left if one not in left_out], run)
    lost = [one for one in outcomes if not one.killed_by]
    print(f"\n{len(outcomes) - len(lost)} of {len(mutants)} mutants killed in {time.monotonic() - started:.0f} s")
    for outcome in lost:
        print(f"NOT KILLED: {outcome.mutant.name}: {outcome.error or outcome.mutant.why}")
    for mutant in left_out:
        print(f"left out, since this machine can't run what would notice it: {mutant.name}")
    missing = len(mutants) - len(outcomes) - len(left_out)
    if missing:
        print(f"{missing} were not tried; --resume goes on")
    return 1 if lost or missing else 0


if __name__ == "__main__":
    sys.exit(main())
