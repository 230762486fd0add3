"""What a configuration key is, and the checks of its values, by kind.

Why apart from the keys: a kind (a size, a time, an address) is checked in one way wherever it stands, and the keys in
`spindle.config.settings` read as a table.

Rules: a check returns the value in its Python form or raises ConfigError with the key, the value and what is allowed.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spindle.errors import ConfigError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

DEFAULT_PORT = 7402  # of a contact without one

SIZE_UNITS = {"b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": KIB, "mib": MIB, "gib": GIB}


@dataclasses.dataclass(frozen=True)
class Key:
    """What is known about one key besides its default: stands as metadata["key"] at the field.

    `kind` is one of int, size (bytes), float, bool, str, choice, path, file, ints, strs, address, addresses, rules.
    """

    section: str  # the TOML table, "core"
    name: str  # the key in that table, "busy_poll_us"
    kind: str
    text: str  # one or two sentences for the reference
    unit: str = ""
    low: float | None = None  # least allowed value, inclusive
    high: float | None = None  # greatest allowed value, inclusive
    choices: tuple[str, ...] = ()
    zero: str = ""  # what 0 means, where 0 is allowed besides low..high
    example: str = ""  # TOML text shown, commented out, where the default is "not set"

    @property
    def where(self) -> str:
        """How messages call the key: `[core] busy_poll_us`."""
        return f"[{self.section}] {self.name}"

    def range_text(self) -> str:
        """The allowed values in words, as messages and the reference show them."""
        if self.kind == "bool":
            return "true or false"
        if self.choices:
            return " or ".join(f'"{c}"' for c in self.choices)
        if self.low is None or self.high is None:
            return {
                "path": "a directory",
                "file": "a file",
                "ints": "a list of non-negative integers",
                "strs": "a list of names",
                "address": '"host:port"',
                "addresses": 'a list of "host:port" or "host"',
                "rules": "a list of tables",
            }.get(self.kind, "any text")
        show = size_text if self.kind == "size" else number_text
        unit = "" if self.kind == "size" or not self.unit else f" {self.unit}"
        zero = f"0 ({self.zero}) or " if self.zero and self.low > 0 else ""
        return f"{zero}{show(self.low)} to {show(self.high)}{unit}"


def checked(key: Key, value: Any) -> Any:
    """The value in its Python form, or ConfigError."""
    return _CHECKS[key.kind](key, value)


def refusal(key: Key, value: Any) -> ConfigError:
    return ConfigError(f"{key.where} = {shown(value)}: must be {key.range_text()}")


def shown(value: Any) -> str:
    """A value as its file has it, on one line of a terminal."""
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    if not text.isprintable():
        return repr(text)
    return f'"{text}"' if isinstance(value, str) else text


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_int(key: Key, value: Any) -> int:
    if not is_int(value):
        raise refusal(key, value)
    if key.zero and value == 0:
        return 0
    assert key.low is not None and key.high is not None
    if not key.low <= value <= key.high:
        raise refusal(key, value)
    return int(value)


def _check_size(key: Key, value: Any) -> int:
    return _check_int(key, parse_size(value) if isinstance(value, str) and parse_size(value) is not None else value)


def _check_float(key: Key, value: Any) -> float:
    assert key.low is not None and key.high is not None
    # written so that nan is refused too
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not key.low <= value <= key.high:
        raise refusal(key, value)
    return float(value)


def _check_bool(key: Key, value: Any) -> bool:
    if not isinstance(value, bool):
        raise refusal(key, value)
    return value


def _check_str(key: Key, value: Any) -> str:
    if not isinstance(value, str) or len(value) > 128 or not value.isprintable():
        raise ConfigError(f"{key.where} = {value!r}: must be printable text of at most 128 characters")
    return value


def _check_choice(key: Key, value: Any) -> str:
    if value not in key.choices:
        raise refusal(key, value)
    return str(value)


def _check_path(key: Key, value: Any) -> Path | None:
    if value is None and key.example and (key.name in ("dir", "recordings") or key.kind == "file"):
        return None
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value) or "\0" in str(os.fspath(value)):
        raise refusal(key, value)
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise ConfigError(f"{key.where} = {shown(str(value))}: this host knows no home directory of "
                          f"{Path(value).parts[0]}; write the whole path") from None


def _check_ints(key: Key, value: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or not all(is_int(v) and 0 <= v < 2**32 - 1 for v in value):
        raise refusal(key, value)
    return tuple(value)


def _check_strs(key: Key, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) and v and v.isprintable() for v in value):
        raise refusal(key, value)
    return tuple(value)


def _check_address(key: Key, value: Any) -> str | None:
    if value is None or value == "":
        return None
    if is_int(value):
        value = f":{value}"
    host, port = split_address(value) if isinstance(value, str) else ("", -1)
    if not 0 <= port <= 65535:
        raise ConfigError(f'{key.where} = {shown(str(value))}: must be "host:port": a name or address, and a port of '
                          "0 to 65535")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_addresses(key: Key, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
        raise refusal(key, value)
    found = tuple(with_port(key, one) for one in value)
    if twice := next((one for place, one in enumerate(found) if one in found[:place]), None):
        raise ConfigError(f'{key.where}: "{twice}" stands there twice; each host counts once')
    return found


def with_port(key: Key, address: str) -> str:
    """"host:port" of an address that may lack its port; ConfigError if it is none."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+)(?::([0-9]{1,5}))?", address)
    port = int(match[2] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port <= 65535 or split_address(f"{match[1]}:{port}")[1] < 0:
        raise ConfigError(f'{key.where}: {shown(address)} must be "host:port" or "host", an IPv6 address in brackets')
    return f"{match[1]}:{port}"


_CHECKS: dict[str, Callable[[Key, Any], Any]] = {
    "int": _check_int,
    "size": _check_size,
    "float": _check_float,
    "bool": _check_bool,
    "str": _check_str,
    "choice": _check_choice,
    "path": _check_path,
    "file": _check_path,
    "ints": _check_ints,
    "strs": _check_strs,
    "address": _check_address,
    "addresses": _check_addresses,
}


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of "host:port", "[v6]:port", ":port" or "port"; the port is -1 if there is none that can be read."""
    host, colon, port = address.rpartition(":")
    if not colon:
        host, port = "", address
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:  # an IPv6 address without brackets: which colon starts the port can't be told
        return host, -1
    if not port.isascii() or not port.isdigit() or len(port) > 5 or not _may_be_host(host):
        return host, -1
    return host or "127.0.0.1", int(port)


def is_literal(host: str) -> bool:
    """True of an address, which stands for itself."""
    import ipaddress

    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _may_be_host(name: str) -> bool:
    """Whether `name` can be asked for: of a name with an empty part (host..lan) or too long a one the resolver makes a
    UnicodeError, which no caller expects."""
    if name.isascii():
        *parts, last = name.split(".")
        return all(0 < len(part) < 64 for part in parts) and len(last) < 64
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


def parse_size(text: str) -> int | None:
    """Bytes in "8 MiB", "64KiB", "1.5 MB" or "4096"; None if it isn't a size."""
    match = re.fullmatch(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([kmg]i?b|b)?\s*", text, re.IGNORECASE)
    if not match:
        return None
    size = float(match[1]) * SIZE_UNITS[(match[2] or "b").lower()]
    return int(size) if size == int(size) else None


def size_text(size: float) -> str:
    """A size for people: 16384 is "16 KiB", 1000 is "1000 bytes"."""
    size = int(size)
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return "1 byte" if size == 1 else f"{size} bytes"


def number_text(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
