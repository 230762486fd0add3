"""`spindle keys`: the files by which nodes of several hosts know each other, see spindle.security.trust,
spindle.security.authority."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spindle.cli.common import debug_option, json_option, print_json
from spindle.cli.root import EXIT_FAILED

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from spindle.security.authority import Pair

EPILOG = """\b
Certificates, for a site that grows or has applications elsewhere:
  spindle keys authority site            once; keep authority.key off hosts
  spindle keys node site --id 1          node-1.crt and node-1.key, for node 1
  spindle keys application site plotter  a program on a host without a node
  spindle keys show site/node-1.crt      whose it is, and when it ends

\b
Or one secret for all nodes, for the smallest site:
  spindle keys secret /etc/spindle/secret

\b
Each prints what belongs into the configuration. SECURITY.md says what the
keys protect, docs/operations.md how they are replaced.
"""

SECRET_BYTES = 32
DAYS_MAX = 36500
KEY_MODE, CERTIFICATE_MODE = 0o600, 0o644
SECRET_CHARACTERS = re.compile(rb"[0-9A-Fa-f\s]*[0-9A-Fa-f][0-9A-Fa-f\s]*")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")

directory_argument = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
replace_option = click.option("--replace", is_flag=True, help="Replace files of that name: a new key, a new end.")


def days_option(default: int) -> Callable[[Any], Any]:
    """--days, which the command gets as `days`."""
    return click.option("--days", type=click.IntRange(1, DAYS_MAX), default=default, show_default=True,
                        help="Until it ends.")


@click.group(epilog=EPILOG)
def keys() -> None:
    """Make and show the keys by which nodes know each other."""


@keys.command()
@directory_argument
@click.option("--name", default="Spindle", show_default=True, help="Of the authority, for people.")
@days_option(3650)
@debug_option
def authority(directory: Path, name: str, days: int) -> None:
    """Make an authority of a site in DIR.

    It signs the certificates of nodes and applications. authority.crt goes to every host. Whoever has authority.key can
    make members: keep it where no node runs.
    """
    from spindle.errors import ConfigError
    from spindle.security.authority import certificate_pem, make_authority

    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    there = [path for path in _authority_files(directory) if path.exists()]
    if len(there) == 1:
        raise ConfigError(f"{there[0]} is there already, but not what belongs to it; put that beside it, or take this "
                          "away if nothing was signed with it yet")
    if there:
        raise ConfigError(f"{there[0]} is there already, and what it has signed would be worthless without it; choose "
                          "another directory for another authority")
    if not 0 < len(name) <= 64 or not name.isprintable():
        raise ConfigError(f"--name {name!r}: must be printable text of at most 64 characters")
    made = make_authority(name, days)
    certificate_path, key_path = _authority_files(directory)
    _write((key_path, made.key_pem, KEY_MODE),
           (certificate_path, certificate_pem(made.certificate), CERTIFICATE_MODE))
    click.echo(f"{certificate_path}: {_summary(made.certificate)}\n"
               f"{key_path}: its key. Whoever has it can make members: keep it off the hosts of nodes, and safe\n"
               f"Next: spindle keys node {directory} --id 1")


@keys.command()
@directory_argument
@click.option("--id", "node_ids", type=click.IntRange(1, 65535), multiple=True, metavar="N",
              help="The node that may use it; repeatable.")
@click.option("--any", "anybody", is_flag=True, help="Any node may use it.")
@click.option("--name", help="Of the certificate and its files. [default: node-N, or node]")
@days_option(730)
@replace_option
@debug_option
def node(directory: Path, node_ids: tuple[int, ...], anybody: bool, name: str | None, days: int, replace: bool) -> None:
    """Make a certificate and key for a node.

    The authority in DIR signs it.
    """
    from spindle.security.authority import make_node

    if bool(node_ids) == anybody:
        raise click.UsageError("say which node it is for with --id, or --any")
    name = _checked_name(name or (f"node-{node_ids[0]}" if node_ids else "node"))
    made = make_node(_load_authority(directory), name, node_ids, days)
    files = _write_pair(directory, name, made, replace)
    names = _print_pair(made, files, directory, days, "node")
    click.echo("In the configuration there:\n\n[network]")
    for key, file in zip(("certificate", "key", "authority"), names, strict=True):
        click.echo(f"{key} = \"/etc/spindle/{file}\"")


@keys.command()
@directory_argument
@click.argument("name")
@days_option(365)
@replace_option
@debug_option
def application(directory: Path, name: str, days: int, replace: bool) -> None:
    """Make a certificate and key for an application.

    For one on a host without a node, which is to attach to nodes elsewhere. It can't be taken for a node. The authority
    in DIR signs it.
    """
    from spindle.security.authority import make_application

    made = make_application(_load_authority(directory), _checked_name(name), days)
    files = _write_pair(directory, f"application-{name}", made, replace)
    certificate, key, authority_name = _print_pair(made, files, directory, days, "application")
    click.echo("In its environment, with the nodes that it may use (or in the program, see `DomainParticipant`):\n\n"
               f"export SPINDLE_NODES=host1,host2 SPINDLE_CERTIFICATE={certificate} SPINDLE_KEY={key} "
               f"SPINDLE_AUTHORITY={authority_name}")


@keys.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@debug_option
def secret(file: Path) -> None:
    """Make a secret that all nodes share.

    256 random bits in FILE. Whoever has it is a member. It is copied to every host as it is.
    """
    import secrets

    from spindle.errors import ConfigError

    if file.exists():
        raise ConfigError(f"{file} is there already; nodes that have it would not find those with a new one")
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write((file, secrets.token_hex(SECRET_BYTES).encode() + b"\n", KEY_MODE))
    click.echo(f"{file}: {SECRET_BYTES * 8} bits. Copy it to every host, readable by the user of the node only; in the "
               f"configuration of each:\n\n[network]\nsecret = \"{file.absolute()}\"")


@keys.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@debug_option
def show(file: Path, as_json: bool) -> int:
    """Show what is in FILE.

    Whose certificate it is, and when it ends; or whether a secret will do. The exit code is 1 if a certificate has
    ended, or hasn't begun.
    """
    from spindle.errors import ConfigError
    from spindle.security.trust import read_file, read_secrets

    content = read_file(file, str(file))
    if b"PRIVATE KEY-----" in content:
        raise ConfigError(f"{file} is a private key; what may be shown is its certificate, beside it as .crt")
    if b"-----BEGIN" not in content:
        if not SECRET_CHARACTERS.fullmatch(content):
            raise ConfigError(f"{file}: is neither a certificate nor a secret (hexadecimal digits, in a line); "
                              "`spindle keys --help` says what makes them")
        bits = [len(one) * 8 for one in read_secrets(file, str(file))]
        if as_json:
            print_json({"secrets": [{"bits": one} for one in bits]})
        else:
            click.echo(f"{file}: " + ", and ".join(f"a secret of {one} bits" for one in bits))
        return 0
    found = [_described(one) for one in _certificates(file, content)]
    if as_json:
        print_json({"certificates": found})
    else:
        for one in found:
            click.echo("\n".join(f"{key.replace('_', ' ') + ':':<13}{_text(value)}" for key, value in one.items()))
            click.echo()
    return EXIT_FAILED if any(one["days_left"] <= 0 or one["state"] != "valid" for one in found) else 0


def _certificates(file: Path, content: bytes) -> list[Certificate]:
    from cryptography import x509

    from spindle.errors import ConfigError
    from spindle.security.contexts import load_authorities

    try:
        load_authorities(file)  # as nodes read it: what is torn behind the first one is refused
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise ConfigError(f"{file}: can't be read by nodes: {error}") from None


def _described(certificate: Certificate) -> dict[str, Any]:
    from cryptography.hazmat.primitives import hashes

    start, end = (moment.timestamp() for moment in (certificate.not_valid_before_utc, certificate.not_valid_after_utc))
    now = time.time()
    return {
        "name": _common_name(certificate.subject),
        "for": _whose(certificate),
        "signed_by": _common_name(certificate.issuer),
        "from": _day(start),
        "until": _day(end),
        "days_left": int((end - now) // 86400),
        "state": "has ended" if now > end else "hasn't begun" if now < start else "valid",
        "sha256": certificate.fingerprint(hashes.SHA256()).hex(),
    }


def _whose(certificate: Certificate) -> str:
    """In words, by the same rules as nodes have."""
    from cryptography import x509

    from spindle.errors import AccessDenied
    from spindle.security.identity import NODE, Identity

    if _is_authority(certificate):
        return "all that it signs, as it is an authority"
    uris: list[str] = []
    with contextlib.suppress(x509.ExtensionNotFound):
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    try:
        identity = Identity.of({"subjectAltName": [("URI", uri) for uri in uris]})
    except AccessDenied:
        return f"nothing of Spindle (URIs: {', '.join(uris) or 'none'})"
    if identity.role != NODE:
        return "application " + next(uri for uri in uris if uri.startswith("spindle:")).rpartition(":")[2]
    return "any node" if identity.node_ids is None else "node " + ", ".join(map(str, sorted(identity.node_ids)))


def _is_authority(certificate: Certificate) -> bool:
    from cryptography import x509

    with contextlib.suppress(x509.ExtensionNotFound):
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    return False


def _common_name(name: Any) -> str:
    from cryptography.x509.oid import NameOID

    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def _summary(certificate: Certificate) -> str:
    one = _described(certificate)
    return f"for {one['for']}, until {one['until']} ({one['days_left'] + 1} days)"


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment))


def _text(value: Any) -> str:
    return "".join(one if one.isprintable() else " " for one in str(value))


def _authority_files(directory: Path) -> tuple[Path, Path]:
    return directory / "authority.crt", directory / "authority.key"


def _load_authority(directory: Path) -> Pair:
    from spindle.errors import ConfigError
    from spindle.security.authority import load_pair
    from spindle.security.trust import read_file

    certificate_path, key_path = _authority_files(directory)
    if not certificate_path.exists():
        raise ConfigError(f"{certificate_path}: there is no authority; `spindle keys authority {directory}` makes one")
    try:
        pair = load_pair(read_file(certificate_path, str(certificate_path)),
                         read_file(key_path, str(key_path), private=True))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{certificate_path}, {key_path}: are no authority: {error}") from None
    if not _is_authority(pair.certificate):
        raise ConfigError(f"{certificate_path}: is no authority's certificate, so nobody would take what it signs; it "
                          f"is for {_whose(pair.certificate)}")
    if pair.certificate.not_valid_after_utc.timestamp() < time.time():
        raise ConfigError(f"{certificate_path}: has ended; make another authority in another directory, and see "
                          "docs/operations.md for how nodes change over to it")
    return pair


def _checked_name(name: str) -> str:
    from spindle.errors import ConfigError

    if not _NAME.fullmatch(name):
        raise ConfigError(f"name {name!r}: must be 1 to 64 letters, digits, dots, dashes and underscores")
    return name


def _write_pair(directory: Path, name: str, made: Pair, replace: bool) -> tuple[Path, Path]:
    from spindle.errors import ConfigError
    from spindle.security.authority import certificate_pem

    if name == "authority":
        raise ConfigError("'authority' is the name of the authority's own files; choose another --name")
    certificate_path, key_path = directory / f"{name}.crt", directory / f"{name}.key"
    for path in (certificate_path, key_path):
        if path.exists() and not replace:
            raise ConfigError(f"{path} is there already; --replace makes a new one in its place, --name another one")
    _write((key_path, made.key_pem, KEY_MODE),
           (certificate_path, certificate_pem(made.certificate), CERTIFICATE_MODE))
    return certificate_path, key_path


def _write(*files: tuple[Path, bytes, int]) -> None:
    """Path, content and mode of each: all of them whole, or none, as where the disk is full, and never readable by
    others in between. Raises OSError."""
    besides = [path.with_name(f".{path.name}.new") for path, _, _ in files]
    try:
        for (path, content, mode), beside in zip(files, besides, strict=True):
            try:
                _write_new(beside, content, mode)
            except OSError as error:
                raise OSError(error.errno, f"can't be written: {error.strerror}", str(path)) from error
        for (path, _, _), beside in zip(files, besides, strict=True):
            os.replace(beside, path)
    finally:
        for beside in besides:
            beside.unlink(missing_ok=True)


def _write_new(path: Path, content: bytes, mode: int) -> None:
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, KEY_MODE)
    with open(fd, "wb") as file:
        file.write(content)
        os.fchmod(fd, mode)
        file.flush()
        os.fsync(fd)


def _print_pair(made: Pair, files: tuple[Path, Path], directory: Path, days: int, whose: str) -> tuple[str, str, str]:
    """Returns the names of the files that go to the host."""
    certificate_path, key_path = files
    click.echo(f"{certificate_path}: {_summary(made.certificate)}")
    click.echo(f"{key_path}: its key, for the user of the {whose} only")
    if made.certificate.not_valid_after_utc.timestamp() < time.time() + (days - 1) * 86400:
        click.echo("It ends with the authority, earlier than asked for.", err=True)
    names = (certificate_path.name, key_path.name, _authority_files(directory)[0].name)
    click.echo(f"Copy {names[0]}, {names[1]} and {names[2]} to the host of the {whose}.")
    return names
