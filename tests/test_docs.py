"""Goal: the documents are true: their links lead somewhere, the tutorial runs, what they name exists.

Method: the documents are read as text. The tutorial's Python blocks run in order in one process, attached to a real
daemon, and once more on a terminal; what each prints must be the text block that follows it. Commands and options are
compared with what the command line itself says in --help, tests and errors that are named with the code.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import spindle.errors
from spindle.config.loading import keys as all_keys
from tests.spindle.daemons import daemons
from tests.support import readable

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "examples" / "README.md"])
NAMES = [str(path.relative_to(ROOT)) for path in DOCUMENTS]
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)

each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)


@cache
def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def prose(path: Path) -> str:
    return FENCE.sub("", read(path))


def anchors(path: Path) -> set[str]:
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


@each_document
def test_one_title(path: Path) -> None:
    titles = re.findall(r"^# .+$", prose(path), re.MULTILINE)
    assert len(titles) == 1
    assert read(path).startswith(titles[0])


@each_document
def test_fences_are_closed_and_named(path: Path) -> None:
    """An unclosed fence hides the rest of a page."""
    fences = re.findall(r"^```(\S*)", read(path), re.MULTILINE)
    assert len(fences) % 2 == 0
    assert not any(fences[1::2])


@each_document
def test_links_lead_somewhere(path: Path) -> None:
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert not dead


def test_every_document_is_listed() -> None:
    listed = set(re.findall(r"\]\(([\w.-]+\.md)\)", read(ROOT / "docs" / "README.md")))
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}


# --- commands


@cache
def help_of(command: tuple[str, ...]) -> str:
    """What `spindle COMMAND --help` prints; "" if there is no such command."""
    run = subprocess.run([sys.executable, "-m", "spindle.cli", *command, "--help"], cwd=ROOT, capture_output=True,
                         text=True, timeout=60)
    return run.stdout if run.returncode == 0 else ""


def spindle_calls(path: Path) -> list[str]:
    """Whatever is said in a code span or block to be typed, from the word `spindle` to the end of the command."""
    calls = []
    for block in FENCE.findall(read(path)):
        for line in block.splitlines():
            calls += re.findall(r"(?:^|[\s;|(/])(spindle [a-z][^|;&#>\n]*)", re.sub(r"\s#.*", "", line))
    calls += re.findall(r"`(?:\S*/)?(spindle [a-z][^`]*)`", prose(path))
    return calls


@pytest.mark.slow
@each_document
def test_commands_and_options_exist(path: Path) -> None:
    wrong = []
    for call in spindle_calls(path):
        words = call.split()[1:]
        if not re.fullmatch(r"[a-z]+", words[0]):
            continue  # `spindle: node 1 ready` and the like
        if not help_of((words[0],)):
            wrong.append(call)
            continue
        command: tuple[str, ...] = (words[0],)
        groups = ("bench", "journal", "keys", "paper")
        if len(words) > 1 and words[0] in groups and re.fullmatch(r"[a-z][a-z-]*", words[1]):
            command += (words[1],)
        text = help_of(command)
        options = [word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)]
        wrong += [f"{call}: {one}" for one in options if not re.search(rf"(?<![\w-]){one}(?![\w-])", text)]
    assert not wrong


def test_exit_codes_are_those_of_the_errors() -> None:
    """The table of docs/operations.md has each class's code."""
    table = set(map(int, re.findall(r"^\| (\d+) \|", read(ROOT / "docs" / "operations.md"), re.MULTILINE)))
    codes = {one.exit_code for one in vars(spindle.errors).values()
             if isinstance(one, type) and issubclass(one, spindle.errors.SpindleError)}
    assert codes <= table


@cache
def existing_tests() -> set[str]:
    return {name for one in (ROOT / "tests").rglob("*.py")
            for name in re.findall(r"def (test_\w+)\(", one.read_text(encoding="utf-8"))}


@each_document
def test_tests_that_are_named_exist(path: Path) -> None:
    """docs/reliability.md names some for each promise."""
    assert set(re.findall(r"`(test_\w+)`", read(path))) <= existing_tests()


@each_document
def test_configuration_keys_that_are_named_exist(path: Path) -> None:
    """Spans as `[journal] dir`."""
    have = {(key.section, key.name) for _, key, _ in all_keys()}
    named = set(re.findall(r"`\[(\w+)\] (\w+)", prose(path)))
    assert named <= have


@each_document
def test_source_files_that_are_named_exist(path: Path) -> None:
    """`spindle/transport/wire.py` and the like in code spans; modules may stand without their suffix."""
    spans = re.findall(r"`((?:spindle_core|spindle|dds|tests|examples|docs)/[\w./-]*)`", prose(path))
    missing = [one for one in spans
               if not (ROOT / one).exists() and not list((ROOT / one).parent.glob((ROOT / one).name + ".*"))]
    assert not missing


# --- the tutorial

STEP = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_tutorial_runs(runtime_dir: Path, tmp_path: Path) -> None:
    """Each block in its turn, in one namespace; a line that can't occur otherwise tells their outputs apart."""
    steps = STEP.findall(read(ROOT / "docs" / "tutorial.md"))
    assert len(steps) > 5
    mark = "---- end of block ----"
    program = tmp_path / "tutorial.py"
    program.write_text(f"\nprint({mark!r}, flush=True)\n".join(code for code, _ in steps))
    with daemons(runtime_dir, 1, ["--journal-dir", str(tmp_path / "journal")]):
        run = subprocess.run([sys.executable, str(program)], cwd=ROOT, capture_output=True, text=True, timeout=90,
                             env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    printed = run.stdout.split(mark + "\n")
    assert printed == [text for _, text in steps]


@pytest.mark.slow
def test_the_tutorial_can_be_pasted(runtime_dir: Path, tmp_path: Path) -> None:
    """Method: each block, and Enter, go to an interpreter on a terminal, which takes a line as soon as it is there: it
    needs an empty line behind an indented block, and none within. What a block prints is among what appears."""
    steps = STEP.findall(read(ROOT / "docs" / "tutorial.md"))
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb", "PYTHON_BASIC_REPL": "1"}
    environment.pop("PYTHONSTARTUP", None)
    with daemons(runtime_dir, 1, ["--journal-dir", str(tmp_path / "journal")]):
        session = subprocess.Popen([sys.executable, "-i", "-q"], cwd=tmp_path, env=environment,
                                   stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        try:
            for number, (code, text) in enumerate(steps):
                os.write(ours, f"{code}\nprint('end of', {number})\n".encode())
                shown = _shown(ours, f"\nend of {number}\n")
                assert "Error" not in shown and "Traceback" not in shown, shown
                place = 0
                for word in text.split():  # of a listener's thread, other output may stand between two words
                    place = shown.find(word, place)
                    assert place >= 0, f"no {word!r} in {shown}"
        finally:
            session.kill()
            session.wait()
            os.close(ours)


def _shown(terminal: int, until: str) -> str:
    """What appears on a terminal, up to a text that must come."""
    found = b""
    while until.encode() not in found.replace(b"\r\n", b"\n"):
        assert readable(terminal, 30), f"{until!r} doesn't come; there is {found.decode()}"
        found += os.read(terminal, 65536)
    return found.decode().replace("\r\n", "\n")


@pytest.mark.slow
@pytest.mark.parametrize("page", ["dds.md", "calls.md", "links.md", "from-cyclonedds.md", "from-ros2.md",
                                  "from-redis-nats.md", "from-derecho-corosync.md"])
def test_the_programs_of_a_page_run(runtime_dir: Path, tmp_path: Path, page: str) -> None:
    """Each is whole by itself, with a node in its process."""
    programs = STEP.findall(read(ROOT / "docs" / page))
    assert programs
    for code, text in programs:
        program = tmp_path / "program.py"
        program.write_text(code)
        run = subprocess.run([sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=90,
                             env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert (run.returncode, run.stdout, run.stderr) == (0, text, "")
