"""Goal: what is installed on a host is the node and the DDS API; the lab comes only for those who ask for it.

Method: wheels are built from a copy of the tracked files and installed into a bare environment, which finds what they
depend on in that of the tests. Most of it is seen without the extension modules; the whole takes minutes to compile.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXCHANGE = """
import dds
with dds.DomainParticipant.embedded() as participant:
    topic = dds.Topic(participant, "altitude", bytes)
    reader, writer = dds.DataReader(participant, topic), dds.DataWriter(participant, topic)
    writer.write(b"9750 m")
    print(bytes(reader.take_one(timeout=10_000_000_000)))
"""


def copy(directory: Path) -> Path:
    """The tracked files, without what was built from them."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git work tree")
    tree = directory / "tree"
    for name in filter(None, listing.stdout.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    return tree


def build(directory: Path, *projects: str, **environment: str) -> list[Path]:
    """The wheels of these projects of the tree."""
    tree = copy(directory)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps",
         "--no-build-isolation", "--wheel-dir", directory / "wheels", *(tree / project for project in projects)],
        env={**os.environ, **environment}, check=True)
    return sorted((directory / "wheels").iterdir())


def install(directory: Path, wheels: list[Path]) -> Path:
    """A bare environment with these wheels; its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory / "bare"], check=True)
    python = directory / "bare" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", python]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", *wheels], check=True)
    return python


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In an environment variable site-packages is a path like any other: the editable install in it doesn't count."""
    return subprocess.run([python, *arguments], capture_output=True, text=True, cwd=python.parent, timeout=100,
                          env={**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}, check=False)


def packages_in(wheel: Path) -> set[str]:
    return {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


@pytest.mark.slow
def test_the_wheel_has_the_node_and_the_api_and_no_lab(tmp_path: Path) -> None:
    (wheel,) = build(tmp_path, ".", SPINDLE_NO_EXT="1")
    assert packages_in(wheel) == {"dds", "spindle", "spindle_core"}
    python = install(tmp_path, [wheel])
    listed = run(python, "-m", "spindle.cli", "--help")
    assert listed.returncode == 0 and "  daemon " in listed.stdout and "  sim " not in listed.stdout
    refused = run(python, "-m", "spindle.cli", "sim")
    assert refused.returncode == 2 and "pip install ./spindle_lab" in refused.stderr


@pytest.mark.slow
def test_the_lab_is_a_package_beside_it(tmp_path: Path) -> None:
    wheels = build(tmp_path, ".", "spindle_lab", SPINDLE_NO_EXT="1")
    node, lab = sorted(wheels, key=lambda wheel: len(wheel.name.split("-")[0]))
    assert packages_in(lab) == {"spindle_lab"} and node.name.split("-")[1] == lab.name.split("-")[1]
    names = zipfile.ZipFile(lab).namelist()
    assert {"spindle_lab/chaos/disk.c", "spindle_lab/paper/experiments/real.json"} <= set(names)
    assert "spindle_lab/setup.py" not in names
    python = install(tmp_path, wheels)
    assert "  sim " in run(python, "-m", "spindle.cli", "--help").stdout
    refused = run(python, "-m", "spindle.cli", "bench", "--help")
    assert refused.returncode == 2 and "make lab" in refused.stderr, "it has no compiled modules here"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_is_installed_runs(tmp_path: Path) -> None:
    wheels = build(tmp_path, ".", "spindle_lab")
    modules = {wheel.name.split("-")[0]: {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")}
               for wheel in wheels}
    for distribution, package in (("spindle_dds", "spindle_core/"), ("spindle_dds_lab", "spindle_lab/")):
        assert modules[distribution] and all(name.startswith(package) for name in modules[distribution])
    python = install(tmp_path, wheels)
    done = run(python, "-c", EXCHANGE)
    assert done.stdout.strip() == "b'9750 m'", done.stderr
    done = run(python, "-m", "spindle.cli", "sim", "--seeds", "3")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_wheels_are_for_many_linuxes_and_bundle_nothing(tmp_path: Path) -> None:
    """Method: `make wheel` as a person calls it, in a copy without an environment, for both processors; it tries the
    wheel out in a bare one. What libraries a module asks for is in the file."""
    from elftools.elf.elffile import ELFFile

    tree = copy(tmp_path)
    version = "{}.{}".format(*sys.version_info)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(["make", "wheel", f"PYTHON={sys.executable}", f"ARGS=--python {version}"], cwd=tree,
                          env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((tree / "dist").glob("spindle_dds-*.tar.gz"))
    for architecture in ("x86_64", "aarch64"):
        (wheel,) = (tree / "dist").glob(f"spindle_dds-*-manylinux_2_*_{architecture}.whl")
        assert packages_in(wheel) == {"dds", "spindle", "spindle_core"}
        with zipfile.ZipFile(wheel) as archive:
            modules = [name for name in archive.namelist() if ".so" in name]
            assert len(modules) > 40 and all(name.startswith("spindle_core/") for name in modules)
            for name in modules:
                with archive.open(name) as file:
                    elf = ELFFile(file)
                    dynamic = elf.get_section_by_name(".dynamic")
                    asked = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}
                    assert elf.get_machine_arch() == {"x86_64": "x64", "aarch64": "AArch64"}[architecture]
                    assert not any(dynamic.iter_tags("DT_RUNPATH")) and not any(dynamic.iter_tags("DT_RPATH"))
                    assert ("libibverbs.so.1" in asked) <= ("verbs" in name)
        assert any("fabric/verbs." in name for name in modules) or "WITHOUT RDMA" in done.stdout
