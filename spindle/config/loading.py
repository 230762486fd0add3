"""Reading a node's configuration: from a TOML file, or text, to a `NodeConfig` that is valid.

Rules: what `NodeConfig` doesn't have is a `ConfigError` that names the key that was probably meant. Nothing is ignored.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spindle.config.keys import Key, checked
from spindle.config.settings import NodeConfig
from spindle.config.users import AccessRule
from spindle.errors import ConfigError


def keys() -> list[tuple[str, Key, Any]]:
    """All keys in the order of the file: (field name in NodeConfig, key, default)."""
    found = []
    for field in dataclasses.fields(NodeConfig):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        found.append((field.name, field.metadata["key"], default))
    return found


def load_config(path: str | os.PathLike[str] | None = None, *, below: Mapping[str, Any] | None = None,
                above: Mapping[str, Any] | None = None) -> NodeConfig:
    """Read a TOML file; None gives the defaults. Raises ConfigError for anything that is not exactly right.

    below  values, by the fields of NodeConfig, that count where the file says nothing
    above  values that count whatever the file says
    """
    below, above = dict(below or {}), dict(above or {})
    if path is None:
        return NodeConfig(**{**below, **above})
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: there is no such file. `spindle daemon --print-config` prints one to start from"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{path}: can't be read: {reason}") from error
    return parse_config(text, str(path), below, above)


def parse_config(text: str, source: str = "configuration", below: Mapping[str, Any] | None = None,
                 above: Mapping[str, Any] | None = None) -> NodeConfig:
    """Like `load_config`, from TOML text. `source` opens the messages, except those about `above`."""
    data = parse_toml(text, source)
    try:
        found = {**(below or {}), **settings_of(data)}
        if not above:
            return NodeConfig(**found)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    try:
        return NodeConfig(**{**found, **above})
    except ConfigError as error:
        if _refused(found) == str(error):
            raise ConfigError(f"{source}: {error}") from None
        raise


def _refused(values: Mapping[str, Any]) -> str:
    """Why NodeConfig doesn't take these; empty if it does."""
    try:
        NodeConfig(**values)
    except ConfigError as error:
        return str(error)
    return ""


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """TOML text to tables, with ConfigError instead of the parser's own error."""
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # type: ignore[no-redef, import-not-found, unused-ignore]
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))  # with which some editors of Windows begin a file
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from error


def settings_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """TOML tables to keyword arguments of NodeConfig, each value checked alone, also one that something stronger
    replaces later: it would count the day that this goes. Refuses what NodeConfig does not have."""
    table = {(key.section, key.name): (field, key) for field, key, _ in keys()}
    sections = list(dict.fromkeys(section for section, _ in table))
    values: dict[str, Any] = {}
    for section, content in data.items():
        if section not in sections:
            raise ConfigError(_unknown_section(section, content, sections, table))
        if not isinstance(content, dict):
            raise ConfigError(f"{section} = {content!r}: {section} is a table, write [{section}] and its keys below it")
        for name, value in content.items():
            if (section, name) not in table:
                raise ConfigError(f"[{section}] {name}: unknown key{_suggest_key(section, name, table)}")
            field, key = table[section, name]
            values[field] = _rules_of(value) if key.kind == "rules" else checked(key, value)
    return values


def _rules_of(value: Any) -> tuple[AccessRule, ...]:
    if not isinstance(value, list) or not all(isinstance(rule, dict) for rule in value):
        raise ConfigError(f"[access] rules = {value!r}: must be a list of tables, each with user, publish, subscribe")
    names = [field.name for field in dataclasses.fields(AccessRule)]
    for rule in value:
        for name in rule:
            if name not in names:
                raise ConfigError(f"[[access.rules]] {name}: unknown key{_did_you_mean(name, names)}")
    return tuple(AccessRule(**rule) for rule in value)


def _unknown_section(section: str, content: Any, sections: list[str], table: Mapping[tuple[str, str], Any]) -> str:
    at_home = [s for s, name in table if name == section]
    if at_home and not isinstance(content, dict):  # a key without its table is the commonest slip
        return f"{section}: unknown at the top level; it belongs into [{at_home[0]}]"
    return f"[{section}]: unknown section{_did_you_mean(section, sections)}"


def _suggest_key(section: str, name: str, table: Mapping[tuple[str, str], Any]) -> str:
    elsewhere = [s for s, n in table if n == name]
    if elsewhere:
        return f"; did you mean [{elsewhere[0]}] {name}?"
    return _did_you_mean(name, [n for s, n in table if s == section])


def _did_you_mean(name: str, known: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known are {', '.join(known)}"
