"""Builds spindle-dds-lab with the rules of the tree's own setup.py; everything else is in pyproject.toml."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
(ROOT / "build").mkdir(exist_ok=True)

spec = importlib.util.spec_from_file_location("spindle_setup", ROOT / "setup.py")
assert spec is not None and spec.loader is not None
tree = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tree)


class BuildExtensions(tree.BuildExtensions):
    packages = ("spindle_lab",)
    base = HERE
    generated = str(ROOT / "build" / "lab" / "cython")
    shared = None  # an installed core may come from another Cython


class BuildModules(build_py):
    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """Without this file."""
        return [one for one in super().find_package_modules(package, package_dir) if one[1] != "setup"]


found = re.search(r'^__version__ = "([^"]+)"', (ROOT / "spindle" / "__init__.py").read_text(), re.MULTILINE)
assert found is not None

if __name__ == "__main__":
    os.chdir(HERE)
    setup(
        version=found[1],
        install_requires=[f"spindle-dds=={found[1]}"],
        packages=["spindle_lab", *(f"spindle_lab.{name}" for name in find_packages("."))],
        ext_modules=tree.extensions(("spindle_lab",), HERE),
        cmdclass={"build_ext": BuildExtensions, "build_py": BuildModules},
    )
