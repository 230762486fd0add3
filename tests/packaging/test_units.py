"""The units for systemd, and what is installed with them.

Goal: systemd understands every line, the two units stay alike, and what they say fits what the daemon does. Method:
`systemd-analyze` where it is there; the files read as text.
"""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from spindle import errors
from spindle.service.daemon import LEAVE_TIMEOUT_S

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
UNITS = ("spindle.service", "spindle@.service")


def settings(name: str) -> dict[str, str]:
    """The [Service] section; of a repeated key the last value."""
    unit = configparser.RawConfigParser(strict=False, delimiters="=", comment_prefixes="#", interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(PACKAGING / name)
    return dict(unit["Service"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_understands_the_unit(name: str, tmp_path: Path) -> None:
    text = (PACKAGING / name).read_text()
    unit = tmp_path / name
    unit.write_text(text.replace("/opt/spindle/bin/spindle", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    verify = subprocess.run(command, capture_output=True, text=True, timeout=60)
    about_it = [line for line in verify.stderr.splitlines() if "spindle" in line]  # others of the machine may be wrong
    assert not about_it, verify.stderr


def test_the_units_differ_in_names_only() -> None:
    def lines(name: str) -> list[str]:
        return [line for line in (PACKAGING / name).read_text().splitlines() if not line.startswith("#")]

    one, many = (lines(name) for name in UNITS)
    different = [(a, b) for a, b in zip(one, many, strict=True) if a != b]
    assert different == [
        ("Description=Spindle node", "Description=Spindle node of %i"),
        ("ExecStart=/opt/spindle/bin/spindle daemon --config /etc/spindle/spindle.toml",
         "ExecStart=/opt/spindle/bin/spindle daemon --config /etc/spindle/%i.toml"),
        ("StateDirectory=spindle", "StateDirectory=spindle/%i"),
    ]  # fmt: skip


def test_what_the_unit_says_fits_the_daemon() -> None:
    unit = settings("spindle.service")
    never_again = {int(code) for code in unit["RestartPreventExitStatus"].split()}
    assert never_again == {errors.ConfigError.exit_code, errors.AccessDenied.exit_code}
    assert float(unit["TimeoutStopSec"]) > 2 * LEAVE_TIMEOUT_S
    assert unit["Type"] == "notify" and int(unit["WatchdogSec"]) > 0
    assert unit["LimitMEMLOCK"] == "infinity"
    assert unit["Environment"] == f"SPINDLE_RUNTIME_DIR=/run/{unit['RuntimeDirectory']}"
    user = re.search(r"^u (\w+) - ", (PACKAGING / "sysusers.conf").read_text(), re.MULTILINE)
    assert user is not None and user[1] == unit["User"]
