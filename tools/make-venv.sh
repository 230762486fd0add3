#!/usr/bin/env bash
# Makes the virtual environment for the Makefile: tools/make-venv.sh DIRECTORY [PYTHON]
#
# Checks first what a fresh machine most often lacks, because what pip and the compiler say about it comes late and is
# long. Changes nothing outside DIRECTORY.
set -euo pipefail

venv=$1
python=${2:-}

refuse() {
    printf 'spindle: %s\n' "$@" >&2
    exit 1
}

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}

if [ "$(uname -s)" != Linux ]; then
    refuse "Linux is needed (memfd, eventfd and SCM_RIGHTS carry the shared memory); this is $(uname -s)."
fi

if [ -n "$python" ]; then
    new_enough "$python" || refuse "PYTHON=$python is not a Python of version 3.10 or later."
else
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        if new_enough "$candidate"; then
            python=$candidate
            break
        fi
    done
    [ -n "$python" ] || refuse "No Python of version 3.10 or later found." \
        "On Debian or Ubuntu: apt install python3 python3-venv python3-dev" \
        "Elsewhere installed? Say where: make setup PYTHON=/path/to/python3"
fi
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

compiler=${CC:-$("$python" -c 'import sysconfig; print((sysconfig.get_config_var("CC") or "cc").split()[0])')}
compiler=${compiler%% *}
command -v "$compiler" >/dev/null || refuse "No C compiler ($compiler) found; the core is compiled here." \
    "On Debian or Ubuntu: apt install build-essential"

header=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
[ -e "$header" ] || refuse "Python's headers are missing ($header); the core is compiled here." \
    "On Debian or Ubuntu: apt install python$version-dev"

"$python" -c 'import ensurepip, venv' 2>/dev/null || refuse "Python $version cannot make virtual environments." \
    "On Debian or Ubuntu: apt install python$version-venv"

"$python" -m venv "$venv"
