"""Goal: a file that isn't right is refused with the way out. Method: slips and files of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from spindle.config.loading import load_config, parse_config
from spindle.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[core]\nbusy_poll = 50", ["[core] busy_poll", "unknown key", "did you mean busy_poll_us?"]),
        ("[topics]\nbusy_poll_us = 50", ["did you mean [core] busy_poll_us?"]),
        ("busy_poll_us = 50", ["belongs into [core]"]),
        ("[nodes]\nid = 1", ["[nodes]: unknown section; did you mean node?"]),  # a key of [access] is called so
        ("[cor]\nbusy_poll_us = 50", ["unknown section", "did you mean core?"]),
        ("[core]\nqqqq = 1", ["unknown key", "known are busy_poll_us"]),
        ("core = 3", ["core is a table"]),
        ("[core]\nbatch_send = 1", ["[core] batch_send = 1", "true or false"]),
        ("[core]\nbusy_poll_us = true", ["[core] busy_poll_us = true", "0 to 1000000 us"]),
        ("[journal]\nfsync = 'often'", ['"group" or "never"']),
        ("[journal]\ndir = ''", ["[journal] dir", "a directory"]),
        ("[node]\nruntime_dir = '~nobody-of-that-name/run'", ["home directory of ~nobody-of-that-name", "whole path"]),
        ("[journal]\nfree_min = '" + "9" * 400 + "'", ["[journal] free_min"]),
        ("[node]\nid = \"a\\nb\"", ["[node] id = 'a\\nb'"]),
        ("[network]\ncontacts = [\"a\\nb:1\"]", ["'a\\nb:1' must be"]),
        ("[access]\nusers = [\"a\\u0000\"]", ["[access] users", "list of names"]),
        ("[access]\nrules = [{user = \"a\\u0000\"}]", ["must be a name"]),
        ("[node]\nid = 65536", ["[node] id = 65536", "1 to 65535"]),
        ("[node]\nid = -1", ["[node] id = -1"]),
        ('[node]\nname = "a\\u0007"', ["printable"]),
        ("[topics]\nsize_max = '1 TiB'", ["1 byte to 64 MiB"]),
        ("[topics]\nlog_capacity = '64 KiB'", ["log_hot", "must not exceed log_capacity"]),
        ("[topics]\nsize_max = '5 MiB'", ["at least two messages", "make log_capacity 10 MiB or more"]),
        ("[metrics]\nlisten = 'localhost'", ["host:port"]),
        ("[metrics]\nlisten = 'localhost:70000'", ["0 to 65535"]),
        ("[access]\nallow_uids = ['root']", ["[access] allow_uids", "non-negative integers"]),
        ("[access]\nrules = ['root']", ["[access] rules", "list of tables"]),
        ("[access]\nrules = [{usr = 'root'}]", ["usr", "did you mean user?"]),
        ("[access]\nrules = [{user = 'root', uid = 0}]", ["exactly one of"]),
        ("[access]\nrules = [{publish = ['*']}]", ["exactly one of"]),
        ("[access]\nrules = [{user = 3}]", ["user = 3"]),
        ("[access]\nrules = [{uid = -1}]", ["uid = -1"]),
        ("[access]\nrules = [{user = 'root', publish = '*'}]", ["publish", "list of globs"]),
        ("[log]\nlevel = 'loud'", ['"debug" or "info" or "warning" or "error"']),
        ("[core\nx", ["not valid TOML", "line 1"]),
    ],
)
def test_slips_are_refused_with_the_way_out(text: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="node.toml")
    message = str(caught.value)
    assert message.startswith("node.toml: ")
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_a_byte_order_mark_is_none_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "of_windows.toml"
    path.write_text("[core]\r\nbusy_poll_us = 50\r\n", encoding="utf-8-sig", newline="")
    assert load_config(path).busy_poll_us == 50


def test_file_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file.*--print-config"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="directory"):
        load_config(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'[node]\nname = "\xe9"\n')
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("text", "above", "part"),
    [
        ("[node]\nruntime_dir = 3", {"runtime_dir": "/run/spindle"}, "[node] runtime_dir = 3: must be a directory"),
        ("[node]\ndomain = 300", {"domain_id": 4}, "[node] domain = 300: must be 0 to 232"),
        ("[log]\nlevel = 'loud'", {"log_level": "info"}, "[log] level"),
    ],
)
def test_a_value_is_refused_that_something_stronger_replaces(text: str, above: dict[str, object], part: str) -> None:
    """It would end the first start without the option."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "node.toml", above=above)
    assert str(caught.value).startswith(f"node.toml: {part}")


def test_what_only_fits_what_replaces_the_rest_is_taken() -> None:
    """A file and an option together may be right where the file alone isn't."""
    config = parse_config("[topics]\nlog_capacity = '128 KiB'", above={"log_hot": 65536, "default_size_max": 1024})
    assert config.log_capacity == 128 * 1024
