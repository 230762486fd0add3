"""The configurations for 3 and for 16 hosts.

Goal: they are what a node accepts, agree with each other and with the unit, and claim nothing that isn't so. Method:
read them as the daemon does.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from spindle.config.loading import load_config
from spindle.config.settings import NodeConfig, split_address
from tests.packaging.test_units import settings

EXAMPLES = Path(__file__).resolve().parents[2] / "packaging/examples"
THREE = ("alpha", "bravo", "charlie")


def check_fits_the_unit(config: NodeConfig) -> None:
    unit = settings("spindle.service")
    assert unit["Environment"] == f"SPINDLE_RUNTIME_DIR={config.runtime_dir}"
    assert str(config.journal_dir) == f"/var/lib/{unit['StateDirectory']}"
    assert config.admits_others, "or no program of another user could attach"


def check_network(config: NodeConfig, hosts: int) -> None:
    assert config.listen is not None
    host, port = split_address(config.listen)
    assert host == "0.0.0.0" and {split_address(one)[1] for one in config.contacts} == {port}
    assert len(set(config.contacts)) == hosts
    assert config.form == "majority" and config.fabric == "auto" and not config.plain
    for file in (config.certificate, config.certificate_key, config.authority):
        assert file is not None and file.parent == Path("/etc/spindle")


def test_three_hosts() -> None:
    found = [load_config(EXAMPLES / "3-hosts" / f"{name}.toml") for name in THREE]
    assert {path.stem for path in (EXAMPLES / "3-hosts").iterdir()} == set(THREE)
    for number, (name, config) in enumerate(zip(THREE, found, strict=True), 1):
        assert config.node_id == number
        assert config.contacts[number - 1] == f"{name}.example:7402"
        assert config.certificate == Path(f"/etc/spindle/node-{number}.crt")
        check_network(config, 3)
        check_fits_the_unit(config)

        same = dataclasses.replace(config, node_id=1, certificate=found[0].certificate,
                                   certificate_key=found[0].certificate_key)
        assert same == found[0], "they differ in the number alone"


def test_sixteen_hosts() -> None:
    text = (EXAMPLES / "16-hosts/spindle.toml").read_text()
    (line_that_differs,) = re.findall(r"^id = 1 .*$", text, re.MULTILINE)
    config = load_config(EXAMPLES / "16-hosts/spindle.toml")
    assert config.node_id == 1
    check_network(config, 16)
    check_fits_the_unit(config)
    assert config.open_timeout_s > config.suspect_timeout_s
    top, same, _ = text.partition("# From here on the file is the same everywhere.")
    assert same and [line for line in top.splitlines() if line[:1] not in ("#", "")] == ["[node]", line_that_differs]


def test_the_text_shows_them() -> None:
    text = (EXAMPLES.parents[1] / "docs/operations.md").read_text()
    for name in ("packaging/examples/3-hosts", "packaging/examples/16-hosts/spindle.toml"):
        assert name in text
