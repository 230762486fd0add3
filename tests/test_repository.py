"""Goal: the house stays in order: layers, one place for memory orders, short files, documents that name what exists.

Method: read the tracked files. Nothing is built or run but one `import dds`.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX = 600

# What stands on the whole house: it may import every layer, and no layer may import it.
TOOLS = ("spindle.cli", "spindle.cockpit", "spindle.demo", "spindle_lab")
LAYERS = ("spindle_core", "spindle", "spindle_lab", "dds")
MAY_IMPORT = {"spindle_core": {"spindle_core"}, "spindle": {"spindle", "spindle_core"}, "dds": {"dds", "spindle"}}

# The rooms of spindle/, the lowest first, and what each may import beside itself and what is EVERYWHERE. A room may
# only name ones that stand above it in this list, so none can be part of a circle.
EVERYWHERE = {"errors", "locks", "logs", "programs", "proto", "waiting"}
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "locks": set(),
    "logs": set(),
    "programs": set(),
    "waiting": set(),
    "proto": set(),  # generated
    "rdma": set(),
    "config": set(),
    "group": set(),
    "security": {"config"},
    "transport": {"config", "group", "security"},
    "large": {"group", "transport"},
    "membership": {"group"},
    "journal": {"group"},
    "joining": {"config", "group", "membership", "rdma", "transport"},
    "restart": {"config", "group", "journal", "transport"},
    "topics": {"config", "group", "journal", "membership", "restart", "transport", "large"},
    "relay": {"group", "topics"},
    "pool": {"config", "group", "rdma", "transport"},
    "edge": {"config", "security", "transport", "joining"},
    "node": {"config", "group", "security", "transport", "membership", "joining", "rdma", "restart", "topics", "relay",
             "pool", "large"},
    "applications": {"config", "group", "security", "transport", "topics", "relay", "pool", "large", "edge", "node"},
    "service": {"config", "group", "security", "relay", "edge", "node", "applications"},
    "client": {"config", "group", "security", "transport", "large", "applications", "service"},
    "links": {"pool", "client"},
    "cockpit": {"config", "group", "security", "client"},
    "demo": {"group", "journal", "client"},
    "cli": {"config", "group", "security", "transport", "joining", "journal", "rdma", "restart", "service", "client",
            "cockpit", "demo"},
}
DDS_ROOMS: dict[str, set[str]] = {
    "values": set(),
    "idl": set(),
    "codecs": {"values", "idl"},
    "policy": {"values"},
    "messages": {"values", "codecs", "policy"},
    "waiting": {"values", "policy", "messages"},
    "nodes": {"values"},
    "matching": {"values", "idl", "codecs", "policy", "messages", "waiting", "nodes"},
    "entities": {"values", "idl", "codecs", "policy", "messages", "waiting", "matching"},
    "filters": {"values", "idl", "codecs", "entities"},
    "writers": {"values", "codecs", "policy", "messages", "waiting", "nodes", "matching", "entities"},
    "readers": {"values", "codecs", "policy", "messages", "waiting", "nodes", "matching", "entities", "filters"},
    "face": {"values", "idl", "codecs", "policy", "messages", "waiting", "nodes", "matching", "entities", "filters",
             "writers", "readers"},
    "rpc": {"values", "idl", "policy", "waiting", "entities", "readers", "face"},
    "replicated": {"values", "idl", "policy", "waiting", "entities", "face", "rpc"},
}
# Modules at the top of dds that belong to a room below: programs import them by these names. The others are its face.
DDS_PLACES = {"exceptions": "values", "internal": "values", "listener": "values", "status": "values", "qos": "policy",
              "contracts": "waiting", "entity": "entities", "topic": "entities"}
NO_CIRCLES = ("spindle", "dds", "spindle_lab/bench", "spindle_lab/chaos", "spindle_lab/paper", "spindle_lab/sim")

# Each costs `import dds` more than all of its own modules together.
HEAVY = ("asyncio", "google.protobuf", "lark", "mcap", "numpy", "prometheus_client", "rich", "uvloop")

SOURCE_SUFFIXES = (".py", ".pyx", ".pxd", ".pxi", ".h", ".c", ".sh")
CYTHON_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+c?import\b|c?import\s+([\w.]+))", re.MULTILINE)


@cache
def tracked() -> tuple[Path, ...]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode:
        pytest.skip("not a git work tree")
    paths = [Path(name) for name in listing.stdout.decode().split("\0") if name]
    return tuple(path for path in paths if (ROOT / path).is_file())


def sources(*suffixes: str) -> list[Path]:
    """Tracked files of these suffixes that people write (not protoc)."""
    return [path for path in tracked() if path.suffix in suffixes and "_pb2." not in path.name]


def read(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Full names of what a file imports, wherever in the file it does."""
    package = path.parent.parts
    if path.suffix != ".py":
        for absolute, plain in CYTHON_IMPORT.findall(read(path)):
            yield absolute or plain
        return
    for node in ast.walk(ast.parse(read(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def is_tool(module: str) -> bool:
    return any(module == tool or module.startswith(f"{tool}.") for tool in TOOLS)


def test_imports_go_down_only() -> None:
    wrong = []
    for path in sources(".py", ".pyx", ".pxd", ".pxi"):
        layer = path.parts[0]
        if layer not in LAYERS or is_tool(module_name(path)):
            continue
        for name in imports(path):
            target = name.split(".")[0]
            if (target in LAYERS and target not in MAY_IMPORT[layer]) or is_tool(name):
                wrong.append(f"{path} imports {name}")
    assert not wrong, "\n".join(wrong)


def room_of(module: str) -> str:
    """"" of what belongs to none: another package, or a package itself (spindle's version, what dds exports)."""
    package, _, name = module.partition(".")
    first = name.split(".")[0]
    if package == "spindle":
        return first if first in ROOMS else ""
    if package != "dds" or not name:
        return ""
    return first if first in DDS_ROOMS else DDS_PLACES.get(first, "face")


@pytest.mark.parametrize(("package", "rooms", "everywhere"), [("spindle", ROOMS, EVERYWHERE), ("dds", DDS_ROOMS, ())])
def test_rooms_are_imported_in_one_direction(package: str, rooms: dict[str, set[str]],
                                             everywhere: tuple[str, ...]) -> None:
    """Counting what is imported for types and inside functions. A circle is broken by moving what both sides need to
    the lower room: a value, or a protocol that says what it wants of the higher one."""
    lower: set[str] = set()
    for room, may in rooms.items():
        assert may <= lower, f"{room} may import {may - lower}, which stand below it"
        lower.add(room)
    wrong = []
    for path in sources(".py"):
        module = module_name(path)
        if path.parts[0] != package or module == package:
            continue
        room = room_of(module)
        assert room, f"{path} is in no room: give it a place"
        for name in imports(path):
            target = room_of(name) if name.split(".")[0] == package else ""
            if target and target not in {room, *everywhere, *rooms[room]}:
                wrong.append(f"{path} imports {name}: {room} may not import {target}")
    assert not wrong, "\n".join(wrong)


def test_modules_import_each_other_in_no_circle() -> None:
    """Counting what is imported for types and inside functions."""
    within = tuple(f"{folder}/" for folder in NO_CIRCLES)
    modules = {module_name(path): path for path in sources(".py") if str(path).startswith(within)}
    needs = {module: {one for name in imports(path) if (one := existing(name, modules)) and one != module}
             for module, path in modules.items()}
    while free := [module for module, needed in needs.items() if not needed]:
        for module in free:
            del needs[module]
        for needed in needs.values():
            needed.difference_update(free)
    while leaves := needs.keys() - {one for needed in needs.values() for one in needed}:
        for module in leaves:  # it only imports the circle
            del needs[module]
    assert not needs, "\n".join(f"{module} imports {', '.join(sorted(needed))}" for module, needed in needs.items())


def existing(name: str, modules: dict[str, Path]) -> str:
    """The module of this name, or the one that it is a name in; empty if it is none of these."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def test_import_dds_stays_light() -> None:
    """The time itself is measured by the benchmarks; here is only what makes it long."""
    script = "import dds, json, sys; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(json.loads(run.stdout))
    assert not loaded.intersection(HEAVY)


def test_memory_orders_are_spelled_in_atomics_h_only() -> None:
    spelled = re.compile(r"\bmemory_order_|\b__atomic_|\b__sync_|\b__ATOMIC_|\batomic_(?:load|store|thread_fence)")
    wrong = [
        f"{path}:{number}: {line.strip()}"
        for path in sources(".h", ".c", ".pyx", ".pxd", ".pxi")
        if path.name != "atomics.h"
        for number, line in enumerate(read(path).splitlines(), 1)
        if spelled.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_source_is_too_long_to_read() -> None:
    lengths = {path: read(path).count("\n") for path in sources(*SOURCE_SUFFIXES)}
    too_long = [f"{path}: {lines} lines" for path, lines in lengths.items() if lines > LINES_MAX]
    assert not too_long, f"split by subject (limit {LINES_MAX}):\n" + "\n".join(too_long)


def test_modules_and_tests_say_what_they_are_for() -> None:
    silent = [
        str(path)
        for path in sources(".py")
        if read(path).strip() and ast.get_docstring(ast.parse(read(path))) is None
    ]
    assert not silent, "no docstring at the top of: " + ", ".join(silent)


def test_make_targets_in_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", read(Path("Makefile")), re.MULTILINE))
    missing = []
    for path in sources(".md"):
        text = read(path)
        code = re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL)
        for named in re.findall(r"(?:^|[`$;&|]\s*)make ([a-z][a-z-]*)", "\n".join(code), re.MULTILINE):
            if named not in targets:
                missing.append(f"{path}: make {named}")
    assert not missing, "\n".join(missing)


def test_files_named_in_documents_exist() -> None:
    """Relative links of Markdown, without what follows '#'."""
    dead = [
        f"{path}: {link}"
        for path in sources(".md")
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", re.sub(r"```.*?```", "", read(path), flags=re.DOTALL))
        if "://" not in link and not link.startswith("mailto:") and not (ROOT / path.parent / link).exists()
    ]
    assert not dead, "\n".join(dead)


def test_the_map_of_the_house_names_what_there_is() -> None:
    """Of ARCHITECTURE.md: every path; every module named in the paragraph of a room; a paragraph for every room."""
    text = re.sub(r"```.*?```", "", read(Path("ARCHITECTURE.md")), flags=re.DOTALL)
    known = {str(path) for path in tracked()}
    stems = {str(path.with_suffix("")) for path in tracked()} | {str(one) for path in tracked() for one in path.parents}
    paths = re.findall(r"`([a-z_]+/[\w./]*)`", text)
    wrong = [name for name in paths if name not in known and name.rstrip("/") not in stems]
    described = set()
    for paragraph in text.split("\n\n"):
        opening = re.match(r"\*\*`([a-z_/]+)/`\*\*", paragraph)
        if opening is not None:
            described.add(opening[1])
            words = re.findall(r"`([a-z_]+)`", paragraph)
            wrong += [f"{opening[1]}/{word}" for word in words if f"{opening[1]}/{word}" not in stems]
    rooms = {f"spindle/{room}" for room in ROOMS if f"spindle/{room}.py" not in known and room != "proto"}
    rooms |= {f"dds/{room}" for room in DDS_ROOMS if room not in ("values", "entities", "face")}
    assert not wrong, "ARCHITECTURE.md names what isn't there: " + ", ".join(wrong)
    assert not rooms - described, f"ARCHITECTURE.md has no paragraph about {rooms - described}"


def test_source_files_named_in_documents_exist() -> None:
    known = {str(path) for path in tracked()} | {str(folder) for path in tracked() for folder in path.parents}
    named = re.compile(r"`((?:dds|packaging|spindle|spindle_core|spindle_lab|tests|tools)/[\w./-]*)`")
    dead = [f"{path}: {name}" for path in sources(".md", ".proto") for name in named.findall(read(path))
            if name.rstrip("/") not in known]
    assert not dead, "\n".join(dead)


def test_nobody_is_sent_to_a_distribution_of_others() -> None:
    """On the index `spindle` and `dds` are packages of other people; ours is spindle-dds."""
    foreign = re.compile(r"(?<![\w-])(?:spindle|dds)\[[a-z]+\]|pip install (?:spindle|dds)(?![\w/-])")
    wrong = [f"{path}: {found}" for path in sources(*SOURCE_SUFFIXES, ".md", ".toml")
             if path.name != Path(__file__).name for found in foreign.findall(read(path))]
    assert not wrong, "\n".join(wrong)


def test_no_file_speaks_of_the_machine_it_was_written_on() -> None:
    private = re.compile(r"(?<![\w.$}])/(?:work|root|opt/pypi)/|(?<!\w)/tmp/plan|\.pyenv/|\.\./shared\b")
    wrong = [
        f"{path}:{number}: {line.strip()[:100]}"
        for path in sources(*SOURCE_SUFFIXES, ".md", ".toml", ".proto", ".json", ".txt", "")
        if path.name != Path(__file__).name
        for number, line in enumerate(read(path).splitlines(), 1)
        if private.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_is_left_to_be_done_later() -> None:
    marks = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")
    wrong = [
        f"{path}:{number}: {line.strip()[:100]}"
        for path in sources(*SOURCE_SUFFIXES, ".proto")
        if path.name != Path(__file__).name
        for number, line in enumerate(read(path).splitlines(), 1)
        if marks.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_generated_protobuf_modules_run_on_the_oldest_protobuf_allowed() -> None:
    """protoc's output refuses every runtime older than itself: `make proto` pins the protoc to the lower bound."""
    bound = re.search(r'"protobuf>=([\d.]+)"', read(Path("pyproject.toml")))
    assert bound is not None
    allowed = tuple(map(int, bound[1].split(".")))
    pattern = re.compile(r"ValidateProtobufRuntimeVersion\(\s*[\w.]+,\s*(\d+),\s*(\d+),\s*(\d+)")
    for path in tracked():
        if path.name.endswith("_pb2.py"):
            generated = pattern.search(read(path))
            assert generated is not None, path
            assert tuple(map(int, generated.groups())) <= allowed, f"{path}: regenerate with `make proto`"


def test_every_proto_has_its_generated_modules() -> None:
    names = {str(path) for path in tracked()}
    for proto in sources(".proto"):
        for ending in ("_pb2.py", "_pb2.pyi"):
            assert str(proto.with_suffix("")) + ending in names, f"{proto}: `make proto`, then commit its {ending}"


def test_every_mutant_finds_the_line_that_it_changes() -> None:
    """Goal: `make mutants` is long and not part of each run; a change that moves a line must not leave it without."""
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tools" / "mutants.py")
    assert spec is not None and spec.loader is not None
    mutants = sys.modules["mutants"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(mutants)
        catalogue = mutants.Catalogue(mutants.CATALOGUE)
        assert len(catalogue.mutants) > 100
        for mutant in catalogue.mutants:
            mutants.line_of(mutant, read(Path(mutant.file)))
    finally:
        del sys.modules["mutants"]
