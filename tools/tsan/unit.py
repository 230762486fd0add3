"""Writes the core, without anything of Python in it, as one Cython unit: `unit.py OUTPUT` (see `make tsan`).

ThreadSanitizer can't see through CPython, which isn't built with it. So the nogil part of each module goes into one
source together with harness.pyx, whose main() starts threads on the production functions and no interpreter.

The parts are those of the hot path, and the shared-memory fabric up to where its Python side begins. Their functions
are no longer imported but there; structs and inline functions still come from the .pxd files. What Cython would set
when the module is imported is set by set_constants(), because it never is.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "spindle_core"
MODULES = (CORE / "hot_path.pyx", CORE / "fabric/shm.pyx")
INCLUDE = re.compile(r'^include "(.+)"$', re.MULTILINE)
PYTHON_SIDE = re.compile(r"^(?:cdef class |class |# ---- Python's side)", re.MULTILINE)
IMPORT = re.compile(r"^from (\S+) cimport (?:\(([^)]*)\)|(.*))$", re.MULTILINE)
ANY_IMPORT = re.compile(r"^(?:import .*|from \S+ (?:c?import) (?:\([^)]*\)|.*))\n", re.MULTILINE)
FUNCTION = re.compile(r"^cdef (?!enum|struct|class|extern|inline)[\w *]*?(\w+)\(", re.MULTILINE)
CONSTANT = re.compile(r"^cdef (?:int|uint64_t|uint32_t) ([A-Z_0-9]+) = (.+?)(?:\s+#.*)?$", re.MULTILINE)
DECLARED = re.compile(r"^cdef (?:struct|enum) (\w+)|^cdef inline [\w *]*?(\w+)\("
                      r"|^    ([A-Z][A-Z_0-9]+)(?: =[^#\n]*)?(?:\s+#.*)?$", re.MULTILINE)


def nogil_parts(module: Path) -> list[str]:
    """What a module includes, or, if that is nothing, what of it has no Python in it."""
    text = module.read_text()
    included = INCLUDE.findall(text)
    if included:
        return [(module.parent / name).read_text() for name in included]
    found = PYTHON_SIDE.search(text)
    return [text[: found.start()] if found else text]


def declared_beside(path: Path) -> set[str]:
    """Structs, enum values and inline functions of a module's own .pxd, which its source sees without an import."""
    text = path.with_suffix(".pxd").read_text()
    return {name for match in DECLARED.finditer(text) for name in match.groups() if name}


def unit() -> str:
    parts = [part for module in MODULES for part in nogil_parts(module)]
    harness = (Path(__file__).parent / "harness.pyx").read_text()
    functions = {name for part in parts for name in FUNCTION.findall(part)}
    imports: dict[str, set[str]] = {}
    for text in (*parts, harness):
        for module, many, one in IMPORT.findall(text):
            names = {name.strip() for name in re.sub(r"#.*", "", many or one).split(",") if name.strip()}
            imports.setdefault(module, set()).update(names)
    for path in MODULES:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        imports.setdefault(name, set()).update(declared_beside(path))
    constants = [pair for part in parts for pair in CONSTANT.findall(part)]
    lines = ['"""Written by tools/tsan/unit.py."""']
    for module, names in sorted(imports.items()):
        wanted = sorted(names - functions)
        if wanted:
            lines.append(f"from {module} cimport {', '.join(wanted)}")
    bodies = [ANY_IMPORT.sub("", re.sub(r'\A""".*?"""\n', "", text, flags=re.DOTALL)) for text in (*parts, harness)]
    setting = "\n".join(f"    global {name}\n    {name} = {value}" for name, value in constants)
    return "\n".join([*lines, *bodies, f"cdef void set_constants() noexcept nogil:\n{setting}\n"])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(unit())
