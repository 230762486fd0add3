"""Builds the extension modules; everything else is in pyproject.toml.

Every .pyx below spindle_core/ and spindle_lab/ is one extension module, named after its place. A build in the tree has
both, or, with `build_ext --running`, what a running node needs; what is installed has the core, and
spindle_lab/setup.py adds the other. Generated C goes to build/cython, not beside its source.

Most of the time of a build is the C compiler's, on what Cython writes around a few lines of ours. So what every message
passes is optimised in full and the rest, which a name, a topic or a view passes, little; and what Cython would write
into each module, its memoryviews and functions, is one module, SHARED.

Environment:
  CFLAGS                               as usual; what is in it goes before the flags here, but for -g (default: -g1)
  SPINDLE_SANITIZE=address,undefined   compile and link with these sanitizers (see `make sanitize`)
  SPINDLE_ANNOTATE=1                   write Cython's annotated HTML beside the generated C
  SPINDLE_NO_EXT=1                     build none: for an editable install whose modules `make ext` builds
  SPINDLE_JOBS=n                       compilers at once (default: the processors this process may use)

Rules: a build in the tree (`make ext`, an editable install) holds a lock, so that two at once wait for each other, and
puts each module in place by rename, so that a running process keeps the one it has. What needs a library that is not
here is left out, with a line that says so.
"""

from __future__ import annotations

import fcntl
import gc
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

ROOT = Path(__file__).resolve().parent
TREE = ("spindle_core", "spindle_lab")
INCLUDE = "spindle_core/include"
SHARED = "spindle_core.cython_shared"
# Also what of the core only the simulator and tests use.
DEVELOPMENT = ("spindle_lab.", "spindle_core.digest", "spindle_core.fabric.links", "spindle_core.fabric.sim",
               "spindle_core.fabric.regions.sim")
# What no message passes. Everything else is optimised in full, so a new module is fast until it is put here.
SELDOM = {
    SHARED,
    *(f"spindle_core.{name}" for name in (
        "bindings", "changeover", "control", "counters", "doorbell", "driving", "engine", "epoch", "fabric.fabric",
        "fabric.regions.regions", "fabric.tcp", "fabric.verbs", "fabric.verbs_device", "fabric.verbs_pairs", "geometry",
        "memory", "relayed", "remote", "timing"))
}  # fmt: skip
WARNINGS = ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-missing-field-initializers", "-Wno-cast-function-type"]
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "nonecheck": False,
    "embedsignature": True,
}


class Module(Extension):
    """An extension that can be put into a set: cythonize(exclude_failures=True) does, some setuptools forbid it."""

    __hash__ = object.__hash__


def jobs() -> int:
    return int(os.environ.get("SPINDLE_JOBS", 0)) or len(os.sched_getaffinity(0))


def sanitizer_flags() -> tuple[list[str], list[str]]:
    """Compiler and linker flags for SPINDLE_SANITIZE; the first finding of any kind ends the process."""
    sanitizers = os.environ.get("SPINDLE_SANITIZE", "")
    if not sanitizers:
        return [], []
    flag = f"-fsanitize={sanitizers}"
    return [flag, "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1", "-g"], [flag]


# Modules that need a library besides Python's: the start of their names, the library, a program that needs it, and what
# to install. Nothing imports them unless they are chosen.
VERBS = ("ibverbs", "#include <infiniband/verbs.h>\nint main(void) { return ibv_fork_init(); }", "libibverbs-dev")
OPTIONAL = {"spindle_core.fabric.verbs": VERBS, "spindle_core.fabric.regions.verbs": VERBS}


@cache
def is_here(start: str, say: bool = True) -> bool:
    """Whether the program of an OPTIONAL entry can be compiled and linked; says so if not."""
    library, program, package = OPTIONAL[start]
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    command = [*compiler, "-x", "c", "-", "-o", os.devnull, f"-l{library}"]
    done = subprocess.run(command, input=program.encode(), capture_output=True, check=False)
    if done.returncode and say:
        print(f"Leaving out {start}*: lib{library} and its headers are not here (on Debian {package})")
    return done.returncode == 0


def libraries_of(name: str) -> list[str] | None:
    """What an extension module is linked with; None if that is not here."""
    for start, (library, _, _) in OPTIONAL.items():
        if name.startswith(start):
            return [library] if is_here(start) else None
    return []


def extensions(packages: Sequence[str], base: Path = ROOT) -> list[Extension]:
    """The extension modules below these directories; paths are relative to `base`, where the build runs."""
    if os.environ.get("SPINDLE_NO_EXT"):
        return []
    compile_flags, link_flags = sanitizer_flags()
    # The names of functions and lines in a traceback of C, at no cost; more takes a third of the compiler's time.
    debug = [] if "-g" in os.environ.get("CFLAGS", "") else ["-g1"]
    # A changed header rebuilds all; a changed .pxd only those that cimport it (cythonize follows those itself).
    headers = sorted(os.path.relpath(path, base) for path in (ROOT / INCLUDE).glob("*.h"))
    sources = sorted(path for package in packages for path in (ROOT / package).rglob("*.pyx"))
    if SHARED.partition(".")[0] in packages:
        sources.append(ROOT / f"{SHARED.replace('.', '/')}.c")  # which Cython writes, to where generated C goes
    modules = []
    for source in sources:
        name = ".".join(source.relative_to(ROOT).with_suffix("").parts)
        libraries = libraries_of(name)
        if libraries is None:
            continue
        modules.append(
            Module(
                name,
                [os.path.relpath(source, base)],
                include_dirs=[os.path.relpath(ROOT / INCLUDE, base)],
                libraries=libraries,
                depends=headers,
                extra_compile_args=["-O1" if name in SELDOM else "-O3", *debug, "-std=gnu11", "-pthread", *WARNINGS,
                                    *compile_flags],
                extra_link_args=["-pthread", *link_flags],
            )
        )
    return modules


@contextmanager
def build_lock() -> Iterator[None]:
    lock_path = ROOT / "build" / ".lock"
    lock_path.parent.mkdir(exist_ok=True)
    with lock_path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class BuildExtensions(build_ext):
    """build_ext that runs Cython itself, under the lock, and only when extensions are really to be built."""

    user_options = [*build_ext.user_options, ("running", None, "only what a running node needs")]
    boolean_options = [*build_ext.boolean_options, "running"]
    packages: Sequence[str] = ("spindle_core",)
    base = ROOT
    generated = "build/cython"
    shared: str | None = SHARED

    def initialize_options(self) -> None:
        super().initialize_options()
        self.running = False

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or jobs()
        if not self.inplace and not self.editable_mode:
            packages = tuple(f"{package}." for package in self.packages)
            self.extensions = [extension for extension in self.extensions if extension.name.startswith(packages)]
        if self.running:
            self.extensions = [one for one in self.extensions if not one.name.startswith(DEVELOPMENT)]

    def run(self) -> None:
        with build_lock():
            failed = self._cythonize()
            super().run()
        if failed:
            raise CompileError(f"Cython refused {', '.join(failed)}: see its messages above")

    def _cythonize(self) -> list[str]:
        """Turns .pyx into C where that is out of date; returns the modules that failed, which are then left out."""
        from Cython.Build import cythonize

        # Cython's trees are large and live as long as a module's compilation: the collector, which finds next to
        # nothing in them, would take a third of the time. cythonize forks, so that this goes for each of its processes.
        gc.disable()
        # cythonize returns extensions of its own; the command has already prepared ours (names, paths), so only the
        # generated C is taken over.
        wanted = {extension.name for extension in self.extensions}
        generated = cythonize(
            [one for one in extensions(TREE, self.base) if one.name in wanted],
            build_dir=self.generated,
            include_path=[str(ROOT)],
            compiler_directives=DIRECTIVES,
            annotate=bool(os.environ.get("SPINDLE_ANNOTATE")),
            nthreads=jobs(),
            quiet=not self.verbose,
            exclude_failures=True,
            shared_utility_qualified_name=self.shared,
        )
        gc.enable()
        sources = {extension.name: extension.sources for extension in generated}
        failed = [extension.name for extension in self.extensions if extension.name not in sources]
        self.extensions = [extension for extension in self.extensions if extension.name in sources]
        for extension in self.extensions:
            extension.sources = sources[extension.name]
        # The long ones first, or one compiler works on the last of them while the others have nothing left.
        self.extensions.sort(key=lambda extension: -sum(os.path.getsize(source) for source in extension.sources))
        return failed

    def copy_extensions_to_source(self) -> None:
        build_py = self.get_finalized_command("build_py")
        for extension in self.extensions:
            target, built = self._get_inplace_equivalent(build_py, extension)
            if not os.path.exists(target) or os.stat(target).st_mtime_ns != os.stat(built).st_mtime_ns:
                shutil.copy2(built, f"{target}.new")
                os.replace(f"{target}.new", target)


if __name__ == "__main__":
    os.chdir(ROOT)
    if sys.argv[1:] == ["--libraries"]:  # for the Makefile: a later build may find others than an earlier one
        print(*sorted({library for start, (library, _, _) in OPTIONAL.items() if is_here(start, say=False)}))
        sys.exit()
    setup(ext_modules=extensions(TREE), cmdclass={"build_ext": BuildExtensions})
