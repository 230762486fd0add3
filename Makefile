# One command each for what is done every day; `make help` lists them.
#
# Stamp files in the environment say what is up to date. Overridable: PYTHON (3.10 or later), VENV, ARGS.
VENV ?= .venv
PYTHON ?=
ARGS ?=

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory --no-builtin-rules
# Two at once would install into one environment at the same time; what may go side by side says so (see setup).
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif

# Images of containers often set it. The tests start hundreds of programs, and each would compile all that it imports.
export PYTHONDONTWRITEBYTECODE :=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
sources_of = $(shell find $(1) -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.h')
PROTOS := $(shell find spindle -name '*.proto')
say = @printf '%s\n' "$(1)"

.PHONY: FORCE help setup lab ext demo test test-all test-pythons wheel lint sanitize tsan fuzz mutants bench paper sim sim-nightly litmus chaos soak proto reference docs docs-pictures netns-test rdma-test test-web clean distclean
.DEFAULT_GOAL := help

help:  ## Say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  Variables: PYTHON=/path/to/python3 (3.10 or later), VENV=directory, ARGS='for demo, test or bench'"

# What Spindle depends on is installed while the core is built. Installing compiles nothing to bytecode: Python does that
# for what is imported.
setup: $(VENV)/.stamp-build  ## Make the environment and build the core; .venv/bin/spindle is the command
	@$(MAKE) --jobs=2 SIDE_BY_SIDE=1 $(VENV)/.stamp-install $(VENV)/.stamp-ext

$(VENV)/.stamp-venv:
	$(call say,Making the environment $(VENV))
	@tools/make-venv.sh $(VENV) $(PYTHON)
	@touch $@

# The build's own needs come first and without isolation, so that one Cython serves all later rebuilds.
$(VENV)/.stamp-build: $(VENV)/.stamp-venv
	$(call say,Installing what the build needs)
	@$(PIP) install --no-compile --upgrade 'setuptools>=77' 'cython>=3.2'
	@touch $@

$(VENV)/.stamp-install: $(VENV)/.stamp-build pyproject.toml
	$(call say,Installing what Spindle depends on)
	@SPINDLE_NO_EXT=1 $(PIP) install --no-compile --no-build-isolation --editable .
	@touch $@

# Changes only when a library that some modules need has come or gone since: they are built then, or left out.
$(VENV)/.stamp-libraries: $(VENV)/.stamp-build FORCE
	@found="$$($(BIN)/python setup.py --libraries)"; [ -e $@ ] && [ "$$(cat $@)" = "$$found" ] || echo "$$found" > $@
FORCE:

$(VENV)/.stamp-ext: $(VENV)/.stamp-build $(VENV)/.stamp-libraries setup.py $(call sources_of,spindle_core)
	$(call say,Building the core)
	@$(BIN)/python setup.py --quiet build_ext --inplace --running
	@touch $@

lab: setup $(VENV)/.stamp-lab  ## Build also what only development needs: simulator, benchmarks, the paper's evaluation

$(VENV)/.stamp-lab: $(VENV)/.stamp-ext $(call sources_of,spindle_lab)
	$(call say,Building the simulator and the benchmarks)
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

$(VENV)/.stamp-test: $(VENV)/.stamp-install
	$(call say,Installing what the tests need)
	@SPINDLE_NO_EXT=1 $(PIP) install --no-build-isolation --editable '.[test]'
	@touch $@

$(VENV)/.stamp-lint: $(VENV)/.stamp-install
	$(call say,Installing the checkers)
	@SPINDLE_NO_EXT=1 $(PIP) install --no-build-isolation --editable '.[lint]'
	@touch $@

ext: $(VENV)/.stamp-install $(VENV)/.stamp-libraries  ## Rebuild the extension modules whose sources changed
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $(VENV)/.stamp-ext $(VENV)/.stamp-lab

# The page with the flight is a part that may be missing: the demonstration then says so.
$(VENV)/.stamp-web: $(VENV)/.stamp-install
	$(call say,Installing what the cockpit needs)
	@SPINDLE_NO_EXT=1 $(PIP) install --no-build-isolation --editable '.[web]' && touch $@ || \
	    echo "The cockpit's packages can't be had: the demonstration goes without a page for browsers"

demo: setup $(VENV)/.stamp-web  ## Fly the recorded flight over three daemons and prove what was delivered
	@$(BIN)/spindle demo $(ARGS)

# Side by side, one for each processor; who has nothing left takes from the others.
PYTEST_ALL := $(BIN)/pytest -q -n auto --dist worksteal
test: lab $(VENV)/.stamp-test  ## Run the tests that hold every promise, in at most 5 minutes on two cores
	@$(PYTEST_ALL) -m 'not slow' $(ARGS)

test-all: lab $(VENV)/.stamp-test  ## Run all tests
	@$(PYTEST_ALL) $(ARGS)

# As `make test`, each in a clone in build/pythons; new files only once git knows them. ARGS as for test.
# ARGS='--python 3.11 tests/dds' for some of them, and of the tests.
test-pythons: $(VENV)/.stamp-venv  ## Run the tests on every CPython from 3.10 to 3.14 found, and say which were not
	@$(BIN)/python tools/pythons.py --test $(ARGS)

# ARGS='--python 3.11 --arch x86_64' for some of them. An environment of its own has what they are built with.
wheel: $(VENV)/.stamp-venv  ## Build the sdist and manylinux wheels for every CPython found into dist/, and try them out
	@$(BIN)/python tools/wheels.py $(ARGS)

lint: setup $(VENV)/.stamp-lint  ## Run ruff, mypy and cython-lint
	$(call say,ruff)
	@$(BIN)/ruff check --quiet .
	$(call say,mypy)
	@$(BIN)/mypy --no-error-summary
	$(call say,cython-lint)
	@# It calls pycodestyle by that name.
	@find spindle_core spindle_lab -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' | sort | PATH="$(abspath $(BIN)):$$PATH" xargs --no-run-if-empty cython-lint

# A second build beside the first: its modules go to build/sanitize and are found before the tree's own.
SANITIZED := build/sanitize/lib
sanitize: lab $(VENV)/.stamp-test  ## Build the core with ASan and UBSan and run its tests on that
	$(call say,Building the core with sanitizers in $(SANITIZED))
	@SPINDLE_SANITIZE=address,undefined $(BIN)/python setup.py --quiet build --build-base build/sanitize --build-lib $(SANITIZED)
	@LD_PRELOAD="$$($${CC:-gcc} -print-file-name=libasan.so) $$($${CC:-gcc} -print-file-name=libubsan.so)" PYTHONMALLOC=malloc \
	    ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:detect_odr_violation=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	    PYTHONPATH=$(CURDIR)/$(SANITIZED) \
	    $(BIN)/pytest -q -p no:cacheprovider -o pythonpath=$(SANITIZED) $(if $(ARGS),$(ARGS),tests/spindle_core)

$(VENV)/.stamp-fuzz: $(VENV)/.stamp-test
	$(call say,Installing the fuzzer)
	@SPINDLE_NO_EXT=1 $(PIP) install --no-build-isolation --editable '.[fuzz]'
	@touch $@

SECONDS ?= 60
fuzz: lab $(VENV)/.stamp-fuzz  ## Fuzz every decoder of foreign bytes for SECONDS in all
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(ARGS)

$(VENV)/.stamp-sim: $(VENV)/.stamp-install
	$(call say,Installing what the simulator needs)
	@SPINDLE_NO_EXT=1 $(PIP) install --no-build-isolation --editable '.[sim]'
	@touch $@

# Whole nodes; ARGS=--core simulates the core and the membership machine alone, in smaller steps and more of them.
sim: lab $(VENV)/.stamp-sim  ## Simulate groups of whole nodes with faults from SEEDS seeds, and check every promise
	@$(BIN)/spindle sim --seeds $(or $(SEEDS),2000) $(ARGS)

# Of the exhaustive cases so many states each; without the bound, `spindle sim --exhaustive`, it may take hours.
sim-nightly: lab $(VENV)/.stamp-sim  ## More seeds of both kinds, every rare path of the core, every run of the smallest groups
	@$(BIN)/spindle sim --seeds $(or $(SEEDS),20000) $(ARGS)
	@$(BIN)/spindle sim --core --seeds $(or $(SEEDS),20000) --nightly $(ARGS)
	@$(BIN)/spindle sim --exhaustive --states $(or $(STATES),20000)

# A nightly affair: a few hundred seconds for each of the shapes on cores that have nothing else to do.
litmus: lab  ## Race around going to sleep, ROUNDS times (1e9) for each way of being woken: no wake-up may be lost
	@$(BIN)/python -m spindle_lab.litmus --rounds $(or $(ROUNDS),1e9) $(ARGS)

chaos: setup  ## Kill, stop and starve real daemons for SECONDS, and check what everybody was given
	@$(BIN)/python -m spindle_lab.chaos --seconds $(SECONDS) $(ARGS)

# Half an hour is the least that says something of memory; what counts is after the first five minutes.
soak: setup  ## Daemons under programs that come, die and go, for SECONDS (3600): nothing may stay of them
	@$(BIN)/python -m spindle_lab.soak --seconds $(if $(filter command environment,$(firstword $(origin SECONDS))),$(SECONDS),3600) $(ARGS)

# Some of its checks run on RDMA guests, as rdma-test below.
mutants: lab $(VENV)/.stamp-test  ## Break the protocol in many ways and show that the suite notices each
	@$(BIN)/python tools/rdma --install
	@$(MAKE) lab
	@$(BIN)/python tools/mutants.py $(ARGS)

# No interpreter runs in it, so the linker's garbage collection must leave nothing that needs Python.
tsan: $(VENV)/.stamp-install  ## Run threads on the core, without Python, under ThreadSanitizer; ARGS=messages of each sender
	$(call say,Building the core as one unit in build/tsan)
	@mkdir -p build/tsan
	@$(BIN)/python tools/tsan/unit.py build/tsan/unit.pyx
	@$(BIN)/cython -3 -X boundscheck=False,wraparound=False,cdivision=True,initializedcheck=False -I . build/tsan/unit.pyx
	@$${CC:-gcc} -w -O1 -g -fsanitize=thread -ffunction-sections -fdata-sections -Wl,--gc-sections -pthread \
	    -I spindle_core/include -I "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')" \
	    tools/tsan/main.c build/tsan/unit.c -o build/tsan/harness
	@TSAN_OPTIONS=halt_on_error=0 build/tsan/harness $(if $(ARGS),$(ARGS),50000)

# As root; skipped, with the reason, where network namespaces can't be had.
netns-test: lab $(VENV)/.stamp-test  ## Test groups of hosts (network namespaces) with partitions, delays and bad lines
	@SPINDLE_NETNS=1 $(BIN)/pytest -q tests/spindle_lab/chaos/test_hosts.py tests/spindle_lab/chaos/test_partitions.py \
		tests/spindle_lab/chaos/test_delays.py tests/spindle_lab/chaos/test_two_networks.py $(ARGS)

$(VENV)/.stamp-webtest: $(VENV)/.stamp-test
	$(call say,Installing what tests in a browser need)
	@SPINDLE_NO_EXT=1 $(PIP) install --no-build-isolation --editable '.[test,webtest]'
	@touch $@

# In a real Chromium: as root on Debian it is installed; elsewhere, without one, those tests are skipped and say why.
test-web: lab $(VENV)/.stamp-webtest  ## Test the cockpit, in a real browser too
	@tools/install-browser.sh
	@SPINDLE_WEB=1 $(BIN)/pytest -q tests/spindle/cockpit $(ARGS)

# On guests that have a kernel RDMA stack in software (tools/rdma); skipped, with the reason, where guests can't be had.
# What it installs may be what the modules for RDMA were left out for, hence the second build.
rdma-test: lab $(VENV)/.stamp-test  ## Test the verbs fabric on RDMA guests; ARGS=steps
	@$(BIN)/python tools/rdma --install
	@$(MAKE) lab
	@$(BIN)/python tools/rdma $(ARGS)

bench: lab  ## Measure; ARGS chooses (ARGS=--help says what there is)
	@$(BIN)/spindle bench $(if $(ARGS),$(ARGS),multicast --nodes 3 --size 1024 --senders all)

$(VENV)/.stamp-plot: $(VENV)/.stamp-install
	$(call say,Installing what drawings need)
	@SPINDLE_NO_EXT=1 $(PIP) install --no-build-isolation --editable '.[plot]'
	@touch $@

# Some minutes on two cores; what was played once is kept in build/paper.
paper: lab $(VENV)/.stamp-plot  ## Play the paper's evaluation in virtual time, and write docs/paper.md
	@$(BIN)/spindle paper page $(ARGS)

# The generated modules are committed. This protoc is pinned low because its output refuses to run on any older
# protobuf; it lives in an environment of its own because it would pull that protobuf into the main one.
build/protoc/.stamp: | $(VENV)/.stamp-venv
	$(call say,Installing protoc)
	@$(BIN)/python -m venv build/protoc
	@build/protoc/bin/python -m pip --disable-pip-version-check -qq install 'grpcio-tools==1.75.*' 'setuptools'
	@touch $@

proto: build/protoc/.stamp  ## Regenerate *_pb2.py from the .proto files
	@build/protoc/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $(PROTOS)

reference: setup  ## Rewrite the tables of docs/qos.md and docs/dds.md that are made from the code
	@$(BIN)/python tools/dds_reference.py

$(VENV)/.stamp-docs: $(VENV)/.stamp-install
	$(call say,Installing what the site needs)
	@SPINDLE_NO_EXT=1 $(PIP) install --no-build-isolation --editable '.[docs]'
	@touch $@

docs: setup $(VENV)/.stamp-docs  ## Make the documents, with a reference of the API, as a site in build/site/html
	@$(BIN)/python tools/site $(ARGS)

# Only who changes a drawing, or what a command shows, needs this: the pictures are committed.
docs-pictures: setup $(VENV)/.stamp-docs  ## Make the pictures of the documents anew; ARGS=drawings or terminals
	@$(BIN)/python tools/site/pictures.py --install $(ARGS)

clean:  ## Remove what builds and tests left, but not the environment
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find spindle_core spindle spindle_lab dds examples tests \( -name '*.so' -o -name '*.so.new' -o -name __pycache__ \) -prune -exec rm -rf {} + 2>/dev/null || true
	@rm -f $(VENV)/.stamp-ext $(VENV)/.stamp-lab

distclean: clean  ## Remove the environment too
	@rm -rf $(VENV) ./*.egg-info
