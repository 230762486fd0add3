"""`make mutants`: breaks the protocol in one place at a time, and demands that the suite notices.

    python tools/mutants.py [--jobs N] [--list] [--check CHECK] [NAME...]     NAME: of a mutant, or the start of names

Why: a test that passes shows little; one that fails for each of these mistakes shows that it looks. The mistakes are
those that systems of this kind were really found to have, each one line, in mutants.toml.

Method: the tree is copied to build/mutants/<worker>, with its compiled modules. There each mutant replaces one line;
if that is Cython's, its module is compiled anew. Then its checks run, cheapest first, until one fails: the mutant is
killed. One that hangs is killed by the time limit. One that passes all of its checks has survived, and the exit code
is 1. First of all every check runs on the tree as it is, where it must pass; that gives the time limits, too.

Rules: the line to be replaced must stand exactly once in its file; a mutant whose line is gone is an error, not a
success. Nothing outside build/mutants is written.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from queue import Empty, SimpleQueue

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef]

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "mutants"
CATALOGUE = ROOT / "tools" / "mutants.toml"
LIMIT_FACTOR, LIMIT_EXTRA_S = 4, 60  # time limit of a check: so many times what the right code takes, and so much more
BASELINE_LIMIT_S = 900
COMPILED = (".pyx", ".pxd", ".h")


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
    killed_by: str = ""
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

    def chosen(self, wanted: Iterable[str]) -> list[Mutant]:
        found = [one for one in self.mutants if not wanted or any(one.name.startswith(word) for word in wanted)]
        if not found:
            sys.exit(f"no mutant is called {' or '.join(wanted)}; --list shows them")
        return found


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
        self._changed = self.tree / ".changed"  # names the file that is changed now; left behind by who is interrupted

    def prepare(self) -> None:
        """Makes the copy equal to the tree, its compiled modules included. What is equal keeps its times."""
        listing = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                                 capture_output=True, check=True).stdout.decode()
        wanted = {name for name in listing.split("\0") if name and (ROOT / name).is_file()}
        self.tree.mkdir(parents=True, exist_ok=True)
        for name in wanted:
            source, target = ROOT / name, self.tree / name
            if not target.exists() or target.read_bytes() != source.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        self._take_compiled()
        for path in [*self.tree.rglob("*.py"), *self.tree.rglob("*.pyx"), *self.tree.rglob("*.pxd")]:
            name = path.relative_to(self.tree)
            if name.parts[0] != "build" and str(name) not in wanted:
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

    def _take_compiled(self) -> None:
        """A new copy begins with what is compiled in the tree, with its times: only what differs is compiled anew."""
        if (self.tree / "build").exists():
            return
        for source in (ROOT / "build").glob("*"):
            if source.name.startswith(("cython", "lib", "temp")):
                shutil.copytree(source, self.tree / "build" / source.name)
        for package in ("spindle_core", "spindle_lab"):
            for source in (ROOT / package).rglob("*.so"):
                shutil.copy2(source, self.tree / source.relative_to(ROOT))

    def build(self) -> None:
        run = subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=self.tree,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                             env={**os.environ, "SPINDLE_JOBS": "1", **ccache(self.tree)})
        if run.returncode:
            raise ValueError(f"does not compile:\n{run.stdout[-2000:]}")

    def check(self, command: list[str], limit_s: float) -> tuple[str, float]:
        """Runs one check; what it complains of, empty if nothing, and its seconds."""
        started = time.monotonic()
        shutil.rmtree(self.tree / ".hypothesis", ignore_errors=True)  # what an earlier mutant was found by
        environment = {**os.environ, "PYTHONPATH": str(self.tree), "PYTHONDONTWRITEBYTECODE": "1",
                       "PYTEST_PLUGINS": "tools.first_failure"}
        process = subprocess.Popen(command, cwd=self.tree, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            output = process.communicate(timeout=limit_s)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"hangs (longer than {limit_s:.0f} s)", time.monotonic() - started
        return first_complaint(process.returncode, output), time.monotonic() - started

    def try_out(self, mutant: Mutant, checks: dict[str, list[str]], limits_s: dict[str, float]) -> Outcome:
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
            for name in mutant.checks:
                complaint, _ = self.check(checks[name], limits_s[name])
                if complaint:
                    outcome.killed_by = f"{name}: {complaint}"
                    break
        except ValueError as error:
            outcome.error = str(error)
        finally:
            for one, data, stat in kept:
                one.write_bytes(data)
                os.utime(one, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            if path.suffix in (".pxd", ".h"):
                path.touch()  # newer than the many modules that were made of the mutant
                self.build()
            self._changed.unlink(missing_ok=True)
        outcome.took_s = time.monotonic() - started
        return outcome

    def _made_of(self, path: Path) -> list[Path]:
        """The file, and what compiling it makes: put back with their times, they need not be compiled again."""
        if path.suffix not in COMPILED:
            return [path]
        stem = path.relative_to(self.tree).with_suffix("")
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
    if code == 5 and "no tests ran" in output:
        return ""  # nothing was checked, so nothing was noticed
    for pattern in (r"^(?:FAILED|ERROR) (\S+)", r"^(seed \d+: .*)$", r"^E  +(\S.*)$"):
        if found := re.search(pattern, output, re.MULTILINE):
            return found[1].strip()[:160]
    lines = [line for line in output.splitlines() if line.strip()]
    return (lines[-1].strip() if lines else f"ends with code {code}")[:160]


def baseline(worker: Worker, checks: dict[str, list[str]], names: list[str]) -> dict[str, float]:
    """Runs each check on the right code; time limits. Exits if one fails."""
    limits_s = {}
    for name in names:
        complaint, took_s = worker.check(checks[name], BASELINE_LIMIT_S)
        if complaint:
            sys.exit(f"check {name!r} fails without any mutant: {complaint}")
        limits_s[name] = LIMIT_FACTOR * took_s + LIMIT_EXTRA_S
        print(f"  {name:<14} passes in {took_s:6.1f} s", flush=True)
    return limits_s


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
    workers = [Worker(number) for number in range(max(1, min(arguments.jobs, len(mutants))))]
    print(f"{len(mutants)} mutants, {len(workers)} at once; copying and compiling in {WORK.relative_to(ROOT)}")
    for worker in workers:
        worker.prepare()
    used = [name for name in catalogue.checks if any(name in one.checks for one in mutants)]
    print("the checks on the tree as it is:")
    limits_s = baseline(workers[0], catalogue.checks, used)
    print()
    waiting: SimpleQueue[Mutant] = SimpleQueue()
    for one in mutants:
        waiting.put(one)
    outcomes: list[Outcome] = []

    def work(worker: Worker) -> None:
        while True:
            try:
                mutant = waiting.get_nowait()
            except Empty:
                return
            outcome = worker.try_out(mutant, catalogue.checks, limits_s)
            outcomes.append(outcome)
            print(row(outcome), flush=True)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lost = [one for one in outcomes if not one.killed_by]
    print(f"\n{len(outcomes) - len(lost)} of {len(outcomes)} mutants killed in {time.monotonic() - started:.0f} s")
    for one in lost:
        print(f"NOT KILLED: {one.mutant.name}: {one.error or one.mutant.why}")
    return 1 if lost or len(outcomes) < len(mutants) else 0


if __name__ == "__main__":
    sys.exit(main())
