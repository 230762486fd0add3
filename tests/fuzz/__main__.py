"""`make fuzz`: runs the fuzzer on every target, or keeps what it found.

    python -m tests.fuzz [--seconds 60] [--jobs N] [TARGET...]   fuzz; exit code 1 if anything was found
    python -m tests.fuzz --keep [TARGET...]                      merge what reached something new into the corpus
    python -m tests.fuzz --one TARGET -- FLAGS                   one target in this process, libFuzzer's own flags

Why a process for each target: libFuzzer never returns, and an input that crashes the interpreter must not end the
others. Rules: all that a run leaves is below build/fuzz, where the next run goes on; only --keep changes the corpus.
A finding is printed with the file that holds the input, and is repeated by `--one TARGET -- that file`.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue

WORK = Path("build/fuzz")
HANG_S = 20  # for one input
MEMORY_MIB = 2048
FIGURES = re.compile(r"^#(\d+)\s+\S+\s+(?:cov: (\d+) ft: \d+ )?corp: (\d+)/", re.MULTILINE)
MODULES = ("tests.fuzz.connections", "tests.fuzz.control", "tests.fuzz.disk", "tests.fuzz.memory", "tests.fuzz.samples",
           "tests.fuzz.external", "tests.fuzz.live")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=float, default=60, help="for all targets together")
    parser.add_argument("--jobs", type=int, default=0, help="at once; 0: one for each processor")
    parser.add_argument("--keep", action="store_true", help="merge what was found into the corpus, run nothing")
    parser.add_argument("--one", metavar="TARGET", help="fuzz in this process")
    arguments, flags = parser.parse_known_args()
    if arguments.one:
        return run_one(arguments.one, [*arguments.targets, *flags])
    names = known_names()
    if unknown := set(arguments.targets) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(names)}")
    names = arguments.targets or names
    if arguments.keep:
        return keep(names)
    return run_all(names, arguments.seconds, arguments.jobs or processors())


def processors() -> int:
    import os

    return len(os.sched_getaffinity(0))


def load() -> None:
    import importlib

    for module in MODULES:
        importlib.import_module(module)


def known_names() -> list[str]:
    from tests.fuzz.target import TARGETS

    load()
    return sorted(TARGETS)


def run_one(name: str, flags: list[str]) -> int:
    """Never returns while it fuzzes: libFuzzer ends the process."""
    import atheris

    from tests.fuzz.mutate import changed

    with atheris.instrument_imports(include=["spindle", "dds", "tomllib", "cyclonedds_idl"]):
        load()
        from tests.fuzz.target import TARGETS

        target = TARGETS[name]
        for seed in target.seeds():  # whatever is imported late is imported now, and instrumented
            target.run(seed)

    def mutate(data: bytes, size_max: int, seed: int) -> bytes:
        made = changed(target, data, seed) if seed % 2 else None
        return made if made is not None and len(made) <= size_max else atheris.Mutate(data, size_max)

    own = {} if target.message is None else {"custom_mutator": mutate}
    atheris.Setup([str(again(name)), *flags], target.run, **own)
    atheris.Fuzz()
    return 0


def again(name: str) -> Path:
    """A program that is this process once more: libFuzzer merges by calling itself, as a shell would."""
    path = (WORK / name / "again").resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    command = shlex.join([sys.executable, "-m", "tests.fuzz", "--one", name, "--"])
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)
    return path


def run_all(names: list[str], seconds: float, jobs: int) -> int:
    """Fuzzes each target for its share of the time."""
    share_s = max(1, round(seconds * jobs / len(names)))
    waiting: SimpleQueue[str] = SimpleQueue()
    for name in names:
        waiting.put(name)
    rows: dict[str, str] = {}
    failed: dict[str, str] = {}

    def work() -> None:
        while True:
            try:
                name = waiting.get_nowait()
            except Empty:
                return
            rows[name], finding = fuzz(name, share_s)
            print(rows[name], flush=True)
            if finding:
                failed[name] = finding

    print(f"{len(names)} targets, {share_s} s each, {jobs} at once\n")
    print(f"{'target':<16}{'inputs':>12}{'a second':>10}{'edges':>8}{'corpus':>8}  found")
    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, finding in failed.items():
        print(f"\n--- {name}\n{finding}")
    print(f"\n{len(failed)} of {len(names)} targets failed" if failed else "\nnothing found")
    return 1 if failed else 0


def fuzz(name: str, seconds: int) -> tuple[str, str]:
    """One row of the table, and the finding if there is one."""
    from tests.fuzz.target import TARGETS

    target = TARGETS[name]
    place = WORK / name
    corpus = place / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate([*target.seeds(), *target.corpus()]):
        (corpus / f"seed-{number:04}").write_bytes(data)
    started = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--one", name, "--", str(corpus), f"-max_total_time={seconds}",
         f"-max_len={target.size_max}", f"-timeout={HANG_S}", f"-rss_limit_mb={MEMORY_MIB}", "-use_value_profile=1",
         f"-artifact_prefix={place}/", "-print_final_stats=1",
         *(["-keep_seed=1", "-len_control=0"] if target.compiled else [])],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    took_s = time.monotonic() - started
    figures = FIGURES.findall(run.stdout)
    inputs, edges, kept = (int(figure or 0) for figure in figures[-1]) if figures else (0, 0, 0)
    rate = inputs / took_s if took_s else 0
    found = "" if run.returncode == 0 else "FAILED"
    row = f"{name:<16}{inputs:>12,}{rate:>10,.0f}{edges:>8}{kept:>8}  {found or 'nothing'}"
    if not found:
        return row, ""
    lines = [line for line in run.stdout.splitlines() if not line.startswith(("#", "INFO:", "stat::"))]
    return row, "\n".join(lines)[-6000:]


def keep(names: list[str]) -> int:
    """The smallest set of inputs that reaches what all inputs reach, found by libFuzzer's merge."""
    from tests.fuzz.target import TARGETS

    for name in names:
        target = TARGETS[name]
        with tempfile.TemporaryDirectory() as base:
            merged, old = Path(base) / "merged", Path(base) / "old"
            merged.mkdir()
            old.mkdir()
            for number, data in enumerate([*target.corpus(), *target.seeds()]):
                (old / f"{number:04}").write_bytes(data)
            run = subprocess.run(
                [sys.executable, "-m", "tests.fuzz", "--one", name, "--", "-merge=1", f"-max_len={target.size_max}",
                 f"-timeout={HANG_S}", str(merged), str(old), str(WORK / name / "corpus")],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
            if run.returncode:
                print(f"{name}: merging failed\n{run.stdout[-3000:]}")
                return 1
            found = [path.read_bytes() for path in merged.iterdir()]
        own = set(target.seeds())
        # What was kept by hand for what it once broke stays, whether or not it reaches anything that is new.
        target.keep([one for one in [*found, *target.corpus()] if one not in own])
        print(f"{name}: {len(target.corpus())} inputs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
