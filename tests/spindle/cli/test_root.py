"""Goal: help teaches and is instant, every mistake is one line with the way out, and every end has its exit code.

Method: the commands are called in this process and their output compared; what is about start-up (time, imports) and
signals runs as a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from spindle import errors
from spindle.cli import root
from spindle.cli.daemon import daemon
from spindle.config.loading import keys
from tests.spindle.cli.support import ROOT, Cli, spawn
from tests.spindle.stand_in import StandInNode

NEVER = {"rich", "numpy", "google.protobuf", "asyncio", "uvloop", "mcap", "prometheus_client", "dds"}


def commands() -> list[list[str]]:
    """Every command with its subcommands, as words."""
    found = []
    context = click.Context(root.cli)
    for name in root.ENTRIES:
        found.append([name])
        command = root.cli.get_command(context, name)
        if isinstance(command, click.Group):
            found += [[name, sub] for sub in command.list_commands(context)]
    return found


def test_help_lists_every_command(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = cli("--help")
    assert max(map(len, result.out.splitlines())) <= 80
    assert result.code == 0 and result.err == ""
    for name in root.ENTRIES:
        assert re.search(rf"^  {name} ", result.out, re.MULTILINE), name
    assert cli().out == cli("-h").out or cli().code == root.EXIT_USAGE


@pytest.mark.parametrize("words", [words for words in commands() if words != ["demo"]], ids=" ".join)
def test_every_command_explains_itself(cli: Cli, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """On a terminal of 80 columns, too."""
    monkeypatch.setenv("COLUMNS", "80")
    result = cli(*words, "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: spindle {' '.join(words)}")
    if words[0] != "bench" and len(words) == 1:
        assert f"spindle {words[0]}" in result.out.partition("\n")[2], "no example"
    for line in result.out.splitlines():
        assert len(line) <= 80, line


def test_short_help_agrees_with_the_commands() -> None:
    context = click.Context(root.cli)
    for name in root.ENTRIES:
        command = root.cli.get_command(context, name)
        assert command is not None and command.name == name
        assert command.help, name


def test_without_the_lab_its_commands_are_not_listed_and_say_where_they_are(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == root.LAB else found(name))
    help_text = cli("--help").out
    for name, entry in root.ENTRIES.items():
        listed = re.search(rf"^  {name} ", help_text, re.MULTILINE) is not None
        assert listed is not entry.place.startswith(root.LAB), name
    for name in ("sim", "bench", "paper"):
        result = cli(name, "--help")
        assert result.code == root.EXIT_USAGE and result.out == ""
        assert "pip install ./spindle_lab" in result.err
    assert cli("completion", "bash").code == 0


def test_help_imports_nothing_slow() -> None:
    code = (
        "import sys\nfrom spindle.cli import root\nroot.run(['--help'])\n"
        "print(' '.join(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert not NEVER & set(done.stderr.split())


@pytest.mark.parametrize("module", ["spindle.cli.pub", "spindle.cli.sub", "spindle.cli.daemon", "spindle.cli.topics"])
def test_commands_that_run_often_import_nothing_slow(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print(' '.join(sys.modules))"],
        cwd=ROOT, capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert not NEVER & set(done.stdout.split())


def test_version(cli: Cli) -> None:
    assert re.fullmatch(r"spindle \d+\.\d+.*\n", cli("--version").out)


@pytest.mark.parametrize(
    ("args", "code", "parts"),
    [
        (["daemn"], 2, ["no command 'daemn'", "did you mean `spindle daemon`?"]),
        (["qqq"], 2, ["see `spindle --help`"]),
        (["topics", "--nope"], 2, ["--nope", "`spindle topics --help`"]),
        (["sub"], 2, ["TOPIC"]),
        (["pub", "t", "--rate", "0"], 2, ["--rate"]),
        (["pub", "t", "--size-max", "big"], 2, ["'big' is not a size"]),
        (["pub", "t", "--bytes", "--hex"], 2, ["choose one"]),
        (["status"], 3, ["no node of domain 0", "spindle daemon"]),
        (["topics", "-d", "5"], 3, ["no node of domain 5"]),
        (["top"], 3, ["spindle daemon"]),
        (["top", "--node", "4", "--once"], 3, ["spindle daemon"]),
        (["sub", "t", "--domain", "-1"], 2, ["--domain"]),
        (["status", "--domain", "233"], 2, ["--domain", "0<=x<=232"]),
        (["daemon", "--domain", "233"], 2, ["[node] domain = 233", "0 to 232"]),
        (["daemon", "--config", "/nonexistent.toml"], 2, ["/nonexistent.toml", "--print-config"]),
        (["daemon", "--set", "busy_poll_us=1"], 2, ["SECTION.KEY=VALUE"]),
        (["daemon", "--set", "core.busy_poll=1"], 2, ["did you mean busy_poll_us?"]),
        (["daemon", "--set", "core.busy_poll_us=-1"], 2, ["0 to 1000000"]),
        (["daemon", "--node", "70000"], 2, ["[node] id = 70000", "1 to 65535"]),
        (["journal", "info", "/nonexistent"], 10, ["/nonexistent"]),
        (["status", "--nodes", "\udcfc"], 2, ["node '\\udcfc'", "host:port"]),
        (["status", "--nodes", "host1,host..lan"], 2, ["node 'host..lan'", "host:port"]),
        (["daemon", "--metrics", "host..lan:80"], 2, ["[metrics] listen", "host..lan"]),
        (["daemon", "--set", 'network.contacts=["host..lan"]'], 2, ["[network] contacts", "host..lan"]),
    ],
)
def test_mistakes_are_one_line_with_the_way_out(cli: Cli, args: list[str], code: int, parts: list[str]) -> None:
    result = cli(*args)
    assert result.code == code, result
    assert result.out == ""
    assert result.err.startswith("spindle: ")
    assert len(result.err.splitlines()) <= (2 if code == 2 else 1), "one line, and where usage is explained"
    for part in parts:
        assert part in result.err


def test_tracebacks_only_with_debug(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Traceback" not in cli("status").err
    shown = cli("status", "--debug")
    assert shown.code == 3 and "Traceback" in shown.err and "NoDaemon" in shown.err
    monkeypatch.setenv("SPINDLE_DEBUG", "1")
    assert "Traceback" in cli("status").err
    monkeypatch.delenv("SPINDLE_DEBUG")
    assert "Traceback" not in cli("pub", "t", "--", "--debug").err, "behind -- it is a message"


def test_unexpected_errors_are_named_as_defects(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("odd")

    monkeypatch.setattr("spindle.cli.common.Target.attach", broken)
    result = cli("status")
    assert result.code == root.EXIT_INTERNAL
    assert "internal error: RuntimeError: odd" in result.err and "Traceback" not in result.err


def test_a_module_that_can_not_be_loaded_for_lack_of_descriptors_is_no_defect(
        cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: object) -> None:
        raise ImportError("reader.so: cannot open shared object file: Too many open files")

    monkeypatch.setattr("spindle.cli.common.Target.attach", short)
    result = cli("status")
    assert result.code == 15 and "ulimit -n" in result.err and "internal error" not in result.err


def test_bytes_that_are_no_text_are_a_mistake_of_who_calls(stand_in: StandInNode, cli: Cli, runtime_dir: Path) -> None:
    for words in (["typeof", "\udcfc"], ["pub", "\udcfc", "x"]):
        result = cli(*words, "--runtime-dir", str(runtime_dir))
        assert result.code == root.EXIT_USAGE, result
        assert "'\\udcfc' is no text in UTF-8" in result.err and "internal" not in result.err


def test_target_comes_from_the_environment(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPINDLE_DOMAIN", "11")
    monkeypatch.setenv("SPINDLE_NODE_ID", "3")
    monkeypatch.setenv("SPINDLE_RUNTIME_DIR", str(tmp_path))
    result = cli("status")
    assert "node 3 of domain 11" in result.err and str(tmp_path) in result.err
    printed = cli("daemon", "--print-config", "--domain", "12").out
    assert "\ndomain = 12\n" in printed and "\nid = 3\n" in printed and f'"{tmp_path}"' in printed


def test_nodes_elsewhere_come_from_the_environment_as_in_programs(cli: Cli, monkeypatch: pytest.MonkeyPatch,
                                                                  tmp_path: Path) -> None:
    """Goal: what the environment says of nodes elsewhere goes before what it says of this host, whether a variable or
    a file names them; an option about this host goes before both. Method: who nobody reaches is named."""
    elsewhere = "127.0.0.1:1"
    monkeypatch.setenv("SPINDLE_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("SPINDLE_NODES", elsewhere)
    assert elsewhere in cli("status").err
    file = tmp_path / "client.toml"
    file.write_text(f'nodes = ["{elsewhere}"]\n')
    monkeypatch.delenv("SPINDLE_NODES")
    monkeypatch.setenv("SPINDLE_CLIENT_CONFIG", str(file))
    for variable in ({}, {"SPINDLE_NODE_ID": "3"}):
        for name, value in variable.items():
            monkeypatch.setenv(name, value)
        assert elsewhere in cli("status").err
    for option in (["--node", "4"], ["--runtime-dir", str(tmp_path)]):
        assert elsewhere not in cli("status", *option).err
    file.write_text("nodes = 5\n")
    wrong = cli("status")
    assert wrong.code == root.EXIT_USAGE and "client.toml: nodes = 5: must be a list" in wrong.err


def test_options_win_over_set_and_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "n.toml").write_text("[core]\nbusy_poll_us = 1\n[node]\nname = 'file'\n[log]\nlevel = 'error'\n")
    words = ["--set", "core.busy_poll_us=2", "--set", "node.name=two words", "--set", 'topics.size_max="1 MiB"']
    printed = cli("daemon", "--print-config", "-c", tmp_path / "n.toml", *words, "--busy-poll-us", 3).out
    assert "\nbusy_poll_us = 3\n" in printed
    assert '\nname = "two words"\n' in printed
    assert '\nlevel = "error"\n' in printed
    assert '\nsize_max = "1 MiB"\n' in printed


def test_the_daemons_help_says_the_defaults() -> None:
    """Of options that are keys of the file."""
    defaults = {field: default for field, _, default in keys()}
    shown = {}
    for one in daemon.params:
        if isinstance(one, click.Option) and (said := re.search(r"\[default: (\w+)\]", one.help or "")):
            shown[one.name] = said[1]
    assert shown and shown == {name: str(defaults[name]) for name in shown}


def test_a_file_on_the_command_line_wins_over_the_environment(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """For the daemon and the doctor. What it doesn't say, the environment does; a file that the environment names is
    weaker than the variable for one key."""
    here, there = tmp_path / "here", tmp_path / "there"
    file = tmp_path / "n.toml"
    file.write_text(f"[node]\nruntime_dir = '{here}'\ndomain = 7\n"
                    "[network]\nlisten = '127.0.0.1:7402'\ncontacts = ['127.0.0.1:7402']\n")
    monkeypatch.setenv("SPINDLE_RUNTIME_DIR", str(there))
    monkeypatch.setenv("SPINDLE_DOMAIN", "3")
    monkeypatch.setenv("SPINDLE_NODE_ID", "9")
    printed = cli("daemon", "--print-config", "--config", file).out
    assert f'"{here}"' in printed and "\ndomain = 7\n" in printed and "\nid = 9\n" in printed
    assert str(here) in cli("doctor", "-c", file).out
    printed = cli("daemon", "--print-config", "--config", file, "--domain", 0, "--runtime-dir", there, "-n", 4).out
    assert f'"{there}"' in printed and "\ndomain = 0\n" in printed and "\nid = 4\n" in printed
    assert str(there) in cli("doctor", "-c", file, "--runtime-dir", there).out
    monkeypatch.setenv("SPINDLE_CONFIG", str(file))
    printed = cli("daemon", "--print-config").out
    assert f'"{there}"' in printed and "\ndomain = 3\n" in printed and "contacts = [" in printed
    assert str(there) in cli("doctor").out


def test_a_mistake_in_the_file_names_it_and_one_in_an_option_does_not(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "n.toml"
    file.write_text("[core]\nbusy_poll_us = -1\n")
    assert cli("daemon", "-c", file, "--domain", 3).err.startswith(f"spindle: {file}: [core] busy_poll_us")
    file.write_text("[core]\nbusy_poll_us = 1\n")
    assert cli("daemon", "-c", file, "--busy-poll-us", -3).err.startswith("spindle: [core] busy_poll_us")


def test_exit_codes_are_documented() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    raised = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "exit_code")}
    own = {value for name, value in vars(root).items() if name.startswith("EXIT_")}
    assert raised | own | {0} == documented


def test_a_reader_that_leaves_ends_the_command_quietly() -> None:
    with spawn("daemon", "--print-config", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.wait(30)
        assert process.returncode in (0, root.EXIT_BROKEN_PIPE)
        assert process.stderr.read() == b""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_as_dev_null(closed: str, tmp_path: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m spindle.cli keys secret {tmp_path}/secret && " \
              f"{shlex.quote(sys.executable)} -m spindle.cli nosuch"
    done = subprocess.run(["sh", "-c", f"{{ {command}; }} {closed}"], capture_output=True, timeout=60, cwd=ROOT)
    assert done.returncode == root.EXIT_USAGE, done
    assert (tmp_path / "secret").read_bytes().strip().isalnum()
    assert b"no command" in done.stderr or "2>&-" in closed
    assert b"secret" in done.stdout or ">&-" in closed.split()
    assert b"Traceback" not in done.stderr and b"internal error" not in done.stderr


@pytest.mark.parametrize("encoding,shown", [("ascii", rb"caf\xe9 \u4e2d"), ("latin-1", b"caf\xe9 " + rb"\u4e2d"),
                                            ("utf-8", "café 中".encode())])
def test_what_the_output_has_no_letters_for_is_escaped(encoding: str, shown: bytes) -> None:
    """Method: a command prints a name that the encoding of its locale lacks, as tables are printed."""
    code = "from spindle.cli import root\nroot._invoke = lambda args: print('caf\\xe9 \\u4e2d')\nroot.main([])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60,
                          env={**os.environ, "PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stdout, done.stderr) == (0, shown + b"\n", b"")


def test_interrupt_has_its_exit_code(tmp_path: Path) -> None:
    fifo = tmp_path / "slow.toml"
    os.mkfifo(fifo)
    with spawn("daemon", "--print-config", "--config", fifo) as process:
        writer = os.open(fifo, os.O_WRONLY)  # returns when the command has opened it: it is past its imports
        process.send_signal(signal.SIGINT)
        process.wait(30)
        os.close(writer)
        assert process.returncode == root.EXIT_INTERRUPTED
        assert process.stderr is not None and b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize("what", ["import click; click.echo('text')", "import sys; sys.stdout.write('text')",
                                  "from spindle.cli.common import put; put(b'text')"])
def test_an_output_that_is_full_is_named(what: str) -> None:
    """Method: a command that prints to /dev/full, at once, in the buffer that is written at the end, or samples."""
    code = f"from spindle.cli import root\ndef go(args):\n    {what}\nroot._invoke = go\nroot.main([])"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
                              env={name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"})
    assert (done.returncode, done.stderr) == (1, "spindle: standard output: No space left on device\n")


@pytest.mark.parametrize("command", ["status", "daemon"])
def test_a_wrong_value_of_the_environment_is_named_as_such(cli: Cli, monkeypatch: pytest.MonkeyPatch,
                                                           command: str) -> None:
    """It was said of an option that nobody had typed."""
    monkeypatch.setenv("SPINDLE_NODE_ID", "two")
    assert cli(command).err.startswith("spindle: $SPINDLE_NODE_ID: Invalid value for '-n' / '--node'")
    assert cli(command, "--node", "three").err.startswith("spindle: Invalid value for '-n' / '--node'")
