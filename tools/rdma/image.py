"""Kernel and initial file system of the guests, made once from Debian's kernel package and kept.

The initial file system has busybox, init.sh and the drivers of Debian's kernel that a guest needs, rdma_rxe (RDMA in
software over any network interface) among them. Made anew when this file or init.sh changes, or the package is another
one.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

# tls asks for gcm(aes) when a connection gets its keys; tcp_diag tells `ss` which connections have them.
# rdma_rxe asks the kernel for a crc32 when a device is made, and depends on no module that has one.
DRIVERS = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_net", "dummy", "crc32_generic", "rdma_rxe",
           "ib_uverbs", "rdma_ucm", "ctr", "ghash_generic", "gcm", "tls", "tcp_diag")
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "cpio": "cpio", "depmod": "kmod",
    "modprobe": "kmod", "rdma": "iproute2", "dpkg-deb": "dpkg", "apt-get": "apt",
}
LIBRARIES = ("ibverbs-providers", "libibverbs-dev", "python3-pyverbs")


class NotHere(Exception):
    """This machine can't have guests; the text says what is missing."""


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotHere(f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    directory = Path(base) / "spindle-rdma"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def missing_packages() -> list[str]:
    """Debian packages without which nothing goes."""
    missing = {package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    for package in LIBRARIES:
        status = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status}", package], capture_output=True,
                                text=True, check=False) if shutil.which("dpkg-query") else None
        if status is None or status.stdout != "installed":
            missing.add(package)
    return sorted(missing)


def install_packages(packages: list[str]) -> None:
    """As root on Debian: installs them; otherwise NotHere says which."""
    wanted = f"needed: apt-get install {' '.join(packages)}"
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise NotHere(wanted)
    print(f"Installing {' '.join(packages)}", flush=True)
    try:
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages)
    except NotHere as error:
        raise NotHere(f"{wanted} ({error})") from error


def install_missing() -> None:
    """What this machine lacks; NotHere where it can't be installed."""
    if packages := missing_packages():
        install_packages(packages)


def kernel_package() -> str:
    """The package that Debian's newest kernel of this release is in."""
    for attempt in range(2):
        if attempt:
            run("apt-get", "update", "-qq")
        for line in subprocess.run(["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True,
                                   check=False).stdout.splitlines():
            if line.strip().startswith("Depends: linux-image-"):
                return line.split()[-1]
    raise NotHere("no package linux-image-amd64: guests need Debian's kernel")


def driver_files(tree: Path, version: str) -> list[Path]:
    """The drivers and what they depend on, in the order in which they can be loaded."""
    run("depmod", "-b", str(tree), version)
    files: list[Path] = []
    for driver in DRIVERS:
        for line in run("modprobe", "-d", str(tree), "-S", version, "--show-depends", driver).splitlines():
            kind, _, rest = line.partition(" ")
            path = Path(rest.split()[0]) if rest else None
            if kind == "insmod" and path is not None and path not in files:
                files.append(path)
    return files


def unpacked(kernel: bytes) -> bytes:
    """The kernel as an ELF file, which starts without unpacking itself (three seconds of an emulated processor); as it
    is where it isn't packed by xz."""
    start = kernel.find(b"\xfd7zXZ\0")
    if start < 0:
        return kernel
    try:
        found = lzma.LZMADecompressor(format=lzma.FORMAT_XZ).decompress(kernel[start:])
    except lzma.LZMAError:
        return kernel
    return found if found.startswith(b"\x7fELF") else kernel


def pack(tree: Path, version: str, target: Path) -> None:
    """Writes the initial file system."""
    root = tree / "initial"
    for place in ("bin", "dev", "proc", "sys", "host", "layer", "guest", "drivers"):
        (root / place).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy2(busybox, root / "bin/busybox")
    shutil.copy2(HERE / "init.sh", root / "init")
    (root / "init").chmod(0o755)
    names = []
    for file in driver_files(tree / "kernel", version):
        shutil.copy2(file, root / "drivers" / file.name)
        names.append(file.name)
    (root / "modules").write_text("\n".join(names) + "\n")
    listing = run("find", ".", cwd=root)
    archive = subprocess.run(["cpio", "--create", "--format=newc", "--quiet"], cwd=root, input=listing.encode(),
                             capture_output=True, check=True).stdout
    target.write_bytes(archive)


def make_image() -> tuple[Path, Path]:
    """(kernel, initial file system); NotHere where they can't be had."""
    install_missing()
    cache = cache_directory()
    kept = sorted(cache.glob("*/initial.cpio"))
    recipe = hashlib.sha256(Path(__file__).read_bytes() + (HERE / "init.sh").read_bytes()).hexdigest()[:12]
    for initial in kept:
        if initial.parent.name.endswith(recipe) and (initial.parent / "kernel").exists():
            return initial.parent / "kernel", initial
    package = kernel_package()
    version = package.removeprefix("linux-image-")
    print(f"Making the guests' image from {package}", flush=True)
    with tempfile.TemporaryDirectory(dir=cache) as name:
        tree = Path(name)
        tree.chmod(0o755)        # apt fetches as a user of its own
        run("apt-get", "download", "-qq", package, cwd=tree)
        run("dpkg-deb", "--extract", str(next(tree.glob("*.deb"))), str(tree / "kernel"))
        made = cache / f"{version}-{recipe}"
        made.mkdir(exist_ok=True)
        (made / "kernel").write_bytes(unpacked((tree / "kernel/boot" / f"vmlinuz-{version}").read_bytes()))
        pack(tree, version, made / "initial.new")
        (made / "initial.new").rename(made / "initial.cpio")
    for initial in kept:
        shutil.rmtree(initial.parent, ignore_errors=True)
    return made / "kernel", made / "initial.cpio"
