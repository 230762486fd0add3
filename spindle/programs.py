"""Programs of this package as processes of their own: how the interpreter is told which.

Why not `python -m`: that looks for every module in the current directory first. A daemon runs wherever it was started,
and there a file called `http.py` would end its cockpit; in a directory where others may write it would do what they
like, with the daemon's rights.
"""

from __future__ import annotations

# An empty path is the current directory, which `-c` puts first. sys is built in, and looked for nowhere.
RUN = ("import sys; sys.path[:] = filter(None, sys.path); {first}import runpy; "
       "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)")


def module_arguments(module: str, first: str = "") -> list[str]:
    """What follows the interpreter in the command that runs a module (or a package's `__main__`), before the module's
    own arguments. first: statements that are executed before it."""
    return ["-c", RUN.format(first=f"{first}; " if first else ""), module]


__all__ = ["module_arguments"]
