"""Goal: a node starts with exactly the settings that were meant, or not at all.

Method: every key is set to values inside, at and beyond its limits through both ways in (TOML text and the
constructor); every kind of slip must raise a ConfigError that names the key and the way out. The written forms must
be what the parser accepts and what the documents show.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle.config import reference as config_reference
from spindle.config.loading import keys, load_config, parse_config
from spindle.config.settings import (
    AccessRule,
    NodeConfig,
    default_runtime_dir,
    parse_size,
    size_text,
    split_address,
)
from spindle.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
NUMERIC = [(field, key) for field, key, _ in keys() if key.low is not None]


def test_defaults_work_and_an_empty_file_gives_them() -> None:
    assert parse_config("") == NodeConfig() == load_config(None)
    assert NodeConfig().busy_poll_us == 10
    assert NodeConfig().default_size_max == 16384
    assert NodeConfig().journal_dir is None
    assert NodeConfig().metrics_listen is None


def test_every_key_is_documented() -> None:
    for field, key, _ in keys():
        assert key.text.endswith("."), field
        assert key.range_text(), field
        if key.low is not None:
            assert key.high is not None and key.low <= key.high, field
    assert len({(key.section, key.name) for _, key, _ in keys()}) == len(keys())


@pytest.mark.parametrize(("field", "key"), NUMERIC, ids=lambda value: value if isinstance(value, str) else "")
def test_limits_are_inclusive_and_named(field, key) -> None:
    def made(value):
        # the two logs bound each other: move the partner along
        partner = {}
        if field in ("log_capacity", "log_hot", "default_size_max"):
            partner = {"log_hot": 4096, "log_capacity": 2**34, "default_size_max": 1}
            partner.pop(field)
        return getattr(NodeConfig(**{field: value}, **partner), field)

    assert made(key.low) == key.low
    assert made(key.high) == key.high
    if key.zero:
        assert made(0) == 0
    step = 1 if key.kind in ("int", "size") else 0.001
    for beyond in (key.low - step, key.high + step):
        if key.zero and beyond == 0:
            continue
        with pytest.raises(ConfigError) as caught:
            made(beyond)
        assert key.where in str(caught.value)
        assert key.range_text() in str(caught.value)


@pytest.mark.parametrize(("field", "key"), NUMERIC, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("value", [True, "many", None, [1], float("nan"), float("inf")])
def test_numbers_must_be_numbers(field, key, value) -> None:
    with pytest.raises(ConfigError, match="must be"):
        NodeConfig(**{field: value})


def test_changes_are_checked_too() -> None:
    with pytest.raises(ConfigError):
        dataclasses.replace(NodeConfig(), max_apps=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        NodeConfig().max_apps = 3  # type: ignore[misc]


def test_runtime_dir_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    monkeypatch.setenv("SPINDLE_RUNTIME_DIR", "/run/x")
    assert NodeConfig().runtime_dir == Path("/run/x")
    monkeypatch.delenv("SPINDLE_RUNTIME_DIR")
    assert NodeConfig().runtime_dir == Path("/run/user/7/spindle")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_runtime_dir() == Path(f"/tmp/spindle-{os.getuid()}")
    assert NodeConfig(domain_id=4).domain_dir.name == "domain-4"


def test_addresses() -> None:
    assert NodeConfig(metrics_listen="9464").metrics_listen == "127.0.0.1:9464"
    assert NodeConfig(metrics_listen=":9464").metrics_listen == "127.0.0.1:9464"
    assert parse_config("[metrics]\nlisten = 9464").metrics_listen == "127.0.0.1:9464"
    assert NodeConfig(metrics_listen="[::1]:9464").metrics_listen == "[::1]:9464"
    assert NodeConfig(metrics_listen="").metrics_listen is None
    assert split_address("0.0.0.0:80") == ("0.0.0.0", 80)
    assert split_address("host.lan.:80") == ("host.lan.", 80)
    assert split_address("bücher.example:80") == ("bücher.example", 80)
    for bad in ("::1", "h:", "h:-1", "h:１", "h:123456", "h", "host..lan:80", ".:80", f"{'x' * 64}:80", "\udcfc:80"):
        assert split_address(bad)[1] == -1, bad
    for twice in (["alpha", "bravo", "alpha:7402"], ["alpha:7400", "alpha:07400"]):  # a majority of what?
        with pytest.raises(ConfigError, match=r'\[network\] contacts: "alpha:740[02]" stands there twice'):
            parse_config(f'[node]\nid = 1\n[network]\nlisten = 7402\ncontacts = {json.dumps(twice)}')


@given(st.integers(1, 2**40))
def test_sizes_survive_being_written(size: int) -> None:
    assert parse_size(size_text(size).replace(" bytes", "").replace(" byte", "")) == size


def test_sizes() -> None:
    assert parse_size("1.5 KiB") == 1536
    assert parse_size("1 GB") == 10**9
    for bad in ("", "1 TB", "-1", "1.3 b", "KiB", "1e3"):
        assert parse_size(bad) is None, bad


def test_written_configuration_reads_back_equal(tmp_path: Path) -> None:
    full = NodeConfig(
        node_id=3,
        domain_id=9,
        runtime_dir=tmp_path / 'odd "name"',
        name="tail\\fin ü",
        batch_send=False,
        default_size_max=1000,
        journal_dir=tmp_path,
        journal_fsync="never",
        journal_group_commit_ms=0.5,
        allow_uids=(1, 2),
        allow_users=("root",),
        access_rules=(AccessRule(user="root", subscribe=("*",)), AccessRule(gid=0, publish=("a/*", "b"))),
        metrics_listen="0.0.0.0:1",
        log_level="debug",
    )
    assert parse_config(config_reference.toml_text(full)) == full
    assert parse_config(config_reference.toml_text()) == NodeConfig()


def test_documents_show_what_the_node_accepts() -> None:
    document = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert config_reference.rewritten(document) == document, "run python -m spindle.config.reference"
    assert (ROOT / "docs" / "spindle.toml").read_text(encoding="utf-8") == config_reference.toml_text()
    for field, key, _ in keys():
        assert f"| `{key.name}` |" in document, field
    # the example in the text is a configuration too
    example = document.split("```toml\n")[1].split("```")[0]
    assert parse_config(example).allow_users == ("display",)


def test_who_may_attach() -> None:
    me = os.geteuid()
    other = me + 4711
    assert NodeConfig().admits(me, [])
    assert not NodeConfig().admits(other, [])
    assert not NodeConfig().admits_others
    assert NodeConfig(allow_uids=(other,)).admits(other, [])
    assert NodeConfig(allow_uids=(other,)).admits_others
    assert NodeConfig(allow_gids=(77,)).admits(other, [5, 77])
    assert not NodeConfig(allow_gids=(77,)).admits(other, [5])
    assert not NodeConfig(allow_users=("nobody-of-that-name",)).admits(other, [])
    assert NodeConfig(allow_users=("root",)).admits(0, [])


def test_who_may_be_a_node() -> None:
    """Goal: the node's own user, root, and who is named as one; being admitted is no part of it."""
    me = os.geteuid()
    other = me + 4711
    admitted = NodeConfig(allow_uids=(other,), allow_gids=(0, 77), allow_users=("nobody",))
    assert admitted.is_node_user(me) and admitted.is_node_user(0)
    assert not admitted.is_node_user(other) and not admitted.is_node_user(65534)
    for users in ((str(other),), ("no-such-user", str(other))):
        named = NodeConfig(node_users=users)
        assert named.is_node_user(other) and named.admits_others
        assert not named.admits(other, []) and not named.is_node_user(other + 1)
    assert NodeConfig(node_users=("nobody",)).is_node_user(pwd.getpwnam("nobody").pw_uid)


def test_who_may_publish_what() -> None:
    me = os.geteuid()
    other = me + 4711
    rules = (
        AccessRule(uid=other, publish=("flight/*",), subscribe=("*",)),
        AccessRule(gid=77, publish=("log",)),
    )
    config = NodeConfig(access_rules=rules, allow_uids=(other,))
    assert config.may_publish(other, [], "flight/air")
    assert not config.may_publish(other, [], "log")
    assert config.may_publish(other, [77], "log"), "rules about one user add up"
    assert config.may_subscribe(other, [], "anything")
    assert not config.may_subscribe(other + 1, [], "anything"), "nobody's rule: nothing"
    assert config.may_publish(me, [], "anything"), "the node's own user needs no rule"
    narrowed = dataclasses.replace(config, access_rules=(AccessRule(uid=me, subscribe=("*",)),))
    assert not narrowed.may_publish(me, [], "anything"), "but a rule about him holds"
    assert NodeConfig(allow_uids=(other,)).may_publish(other, [], "anything"), "no rules: no narrowing"


def test_nothing_slow_is_imported() -> None:
    code = "import sys; import spindle.config.settings; print(' '.join(m for m in sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    ).stdout.split()
    assert not {"numpy", "asyncio", "tomllib", "tomli", "rich", "click", "google.protobuf", "difflib"} & set(loaded)


def test_whether_other_users_may_come() -> None:
    me = os.geteuid()
    for alone in (NodeConfig(), NodeConfig(allow_uids=(me, 0)), NodeConfig(access_rules=())):
        assert alone.is_for_its_user_alone
    for more in ({"allow_uids": (me, me + 1)}, {"allow_gids": (0,)}, {"allow_users": ("somebody",)},
                 {"node_users": ("somebody",)}):
        assert not NodeConfig(**more).is_for_its_user_alone  # type: ignore[arg-type]
