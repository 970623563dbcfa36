# Everything a developer does. `make help` lists the targets; each leaves the tree as it found it, apart from ignored files.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Where this is set each of the hundreds of Python processes that the tests start would compile all it imports once more.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCKS := requirements-build.txt requirements.txt requirements-dev.txt
LOCK := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --upgrade pyproject.toml
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

# The first interpreter of 3.11 or later; PYTHON=... chooses another. That of a distribution comes first: it is built with
# profile-guided optimization, those of version managers mostly are not, and the tests take a seventh more CPU seconds with them.
PYTHON ?= $(shell for p in /usr/bin/python3 python3 python3.13 python3.12 python3.11 python3.14 python; do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v "$$p"; break; }; done)

# A KUBECONFIG named on make's command line wins over the local control plane; one that merely happens to be exported does not,
# because the demo would then write into whatever cluster a developer looked at last.
ifeq ($(origin KUBECONFIG),command line)
DEMO_FLAGS += --kubeconfig $(KUBECONFIG)
endif
ifneq ($(filter-out 0 no false,$(KEEP)),)
DEMO_FLAGS += --keep
endif
ifneq ($(STORE),)
DEMO_FLAGS += --store $(STORE)
endif

##@ Use
.PHONY: help setup demo images node

help: ## Explain the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' Makefile

setup: $(STAMP) ## Virtual environment (.venv) and the programs of the control plane, in parallel

demo: setup ## From a policy to reclaimed bytes on a real control plane, of logs that three owners write meanwhile (STORE=blocks, STORE=staging: a block store, a staging area on S3 and PostgreSQL; STORE=catalog: a catalog in etcd; KEEP=1 leaves it up, KUBECONFIG=... uses another cluster)
	@$(BIN)/compactor local up --check
	@$(BIN)/python -m demos $(DEMO_FLAGS)

images: setup ## The operator's and the worker's image as archives, with docker or buildah (ARGS="--only worker" for one)
	@$(BIN)/python -m tools.images $(ARGS)

node: setup ## A cluster of one node on this machine, with kubelet and containerd (Linux, root; ARGS="up --detach", ARGS=status, ARGS=down)
	@$(BIN)/python -m tools.node $(or $(ARGS),up)

##@ Develop
.PHONY: quick test test-deep e2e e2e-deep check compiled browser screenshots figures simulate mutate bench bench-fleet fuzz format manifests kubeflow-answers lock

# Tests mostly wait: three workers more than there are cores, but no more than eight, for each has servers of its own and takes a
# gigabyte. What is selected runs in one process, where a debugger and -s work.
CORES := $(shell getconf _NPROCESSORS_ONLN)
WORKERS ?= $(if $(ARGS),0,$(shell echo $$(( $(CORES) < 6 ? $(CORES) + 3 : 8 ))))
KUBEFLOW := PYTHONPATH=tests $(BIN)/python -m kube.launchers.kubeflow.released_operator
PARALLEL := --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder

quick: setup ## The tests nearest to what was changed, in two minutes and without servers (tests/README.md)
	@PYTHONPATH=tests:examples/replicated-kv $(BIN)/python -m support.quick $(ARGS)

test: setup ## All tests, in parallel (ARGS="-k name" selects some, WORKERS=n in how many processes)
test-deep: setup ## The same at full depth, as before a release: every example, schedule and crash point
test-deep: export COMPACTION_TEST_DEPTH := deep
# Memory for time: Go's servers collect their garbage a quarter as often.
test test-deep: export GOGC := 400
test test-deep:
	@$(BIN)/compactor local up --check
# A deep run asks Kubeflow's own program, a short one has its answers from a file.
	@$(if $(filter deep,$(COMPACTION_TEST_DEPTH)),$(KUBEFLOW))
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

e2e: setup ## The images built and run, and the tests on a real node, with kubelet and containerd (Linux, root; ARGS="-k name" selects some; docs/local-node.md)
e2e-deep: setup ## The same at full depth, as before a release: every attempt of each sort, and long outages and loads
e2e-deep: export COMPACTION_TEST_DEPTH := deep
# Images and volumes are on a disk, as on nodes.
e2e e2e-deep: export TMPDIR := $(or $(TMPDIR),/tmp)
e2e e2e-deep:
	@$(BIN)/python -m tools.node.prepare
	@PYTHONPATH=tests $(BIN)/python -m node.releases
	@$(BIN)/python -m pytest tests/images tests/node $(ARGS)

# mypy computes in one process, and what else there is to check beside it.
check: setup ## ruff, mypy strict, generated files up to date, layers and house rules
	@$(BIN)/ruff check operator tools demos tests examples
	@$(BIN)/ruff format --check operator tools demos tests examples
	@$(BIN)/mypy & types=$$!; failed=0; trap 'kill $$types 2>/dev/null || true' INT TERM; \
	{ $(BIN)/python -m tools.shipped --check . && \
	$(BIN)/python -m pytest -q tests/house; } || failed=1; \
	wait $$types || failed=1; exit $$failed

browser: setup ## Debian's Chromium for the tests of the console, where PATH has none (root); without one they are skipped
	@$(BIN)/python -m tools.browser

screenshots: setup ## Pictures of the console for docs/console.md, of the demo that KEEP=1 left running
	@$(BIN)/python -m tools.browser --screenshots docs/pictures

figures: setup ## The figures of the house beside the best that each was (ARGS=--write records those that got better)
	@PYTHONPATH=tests $(BIN)/python -m house.figures $(ARGS)

# For .ci/run: what it finds wrong `make test` says.
compiled: setup
	@$(BIN)/python -m pytest -q --collect-only >/dev/null 2>&1 || true

simulate: setup ## Schedules of the simulator (N=20000 how many, FROM=0 the first seed), or SEED=... to replay and shrink one
	@PYTHONPATH=tests $(BIN)/python -m simulation $(if $(SEED),--seed $(SEED),--count $(or $(N),2000) --first $(or $(FROM),0)) $(ARGS)

mutate: setup ## Deliberate defects, each of which the tests must notice (JOBS=n at a time, ARGS="fence sweep" selects some, ARGS=--list)
	@PYTHONPATH=tests $(BIN)/python -m mutation --jobs $(or $(JOBS),2) $(ARGS)

bench: setup ## Benchmarks, each beside its rival (ARGS="planning" selects some, ARGS=--write puts the figures into docs/benchmarks.md)
	@$(BIN)/compactor local up --check
	@PYTHONPATH=tests $(BIN)/python -m bench $(ARGS)

bench-fleet: setup ## One operator for 100, 300 and 1,000 policies (ARGS="--sizes 100,200"; --write puts the figures into docs/benchmarks.md)
	@$(BIN)/compactor local up --check
	@PYTHONPATH=tests $(BIN)/python -m bench fleet $(ARGS)

fuzz: setup ## Fuzz every parser, guided by coverage (T=seconds per target, ARGS="fence manifest" selects some)
	@$(PIP) install --quiet --require-hashes --only-binary :all: -r requirements-fuzz.txt
	@PYTHONPATH=tests $(BIN)/python -m fuzz --seconds $(or $(T),30) $(ARGS)

format: setup ## Format the code and sort the imports
	@$(BIN)/ruff check --fix operator tools demos tests examples
	@$(BIN)/ruff format operator tools demos tests examples

manifests: setup ## Write crds/*.yaml, manifests/install.yaml, the links of the alerts and the table in docs/metrics.md again
	@$(BIN)/python -m tools.shipped --write .

kubeflow-answers: setup ## Ask Kubeflow's release again what it makes of our applications (tests/kube/launchers/kubeflow/answers.json)
	@$(KUBEFLOW) --record

lock: setup ## Pin every dependency again, with hashes
	@$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['build'], sep='\n')" \
		| $(LOCK:pyproject.toml=-) -o requirements-build.txt
	@$(LOCK) -o requirements.txt
	@$(LOCK) --extra dev -c requirements.txt -o requirements-dev.txt
	@$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['fuzz'], sep='\n')" \
		| $(LOCK:pyproject.toml=-) -o requirements-fuzz.txt
	@for image in operator worker; do \
		$(BIN)/python -c "import sys, tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies'][sys.argv[1]], sep='\n')" $$image-image \
		| $(LOCK:pyproject.toml=-) -c requirements.txt -o requirements-$$image.txt; done

##@ Clean
.PHONY: clean distclean

clean: ## Remove caches, build output and what demos left
	@rm -rf build dist .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse operator/*.egg-info
	@find operator tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## Also remove the virtual environment (the cached control plane stays in ~/.cache/compaction-operator)
	@rm -rf $(VENV)

# --- set-up ---------------------------------------------------------------------------------------------------------
# PySpark is published as source only: it is built with the pinned build requirements, not with whatever is newest that day.
# The package itself is editable, so only a change of its metadata or of the pins asks for a new installation. Both halves report
# as they go, and a failure of either fails the target: then nothing is stamped and the next run tries again.
# What no wheel holds is found in the checkout: tools, demos, and the example that a demo runs.
define CHECKOUT_PATH
import os, pathlib, sysconfig
lines = os.getcwd(), os.path.join(os.getcwd(), "examples", "replicated-kv")
pathlib.Path(sysconfig.get_path("purelib"), "checkout.pth").write_text("\n".join(lines) + "\n")
endef
export CHECKOUT_PATH

$(STAMP): pyproject.toml $(LOCKS) Makefile
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or later with venv and pip found: install python3.11 and python3.11-venv, or set PYTHON=" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "[python] virtual environment in $(VENV), from $(PYTHON)"; "$(PYTHON)" -m venv $(VENV); }
	@PYTHONPATH=operator $(BIN)/python -m compaction.local.programs.binaries & plane=$$!; \
	trap 'kill $$plane 2>/dev/null || true' INT TERM; \
	echo "[python] installing the pinned requirements"; \
	$(PIP) install --quiet --require-hashes -r requirements-build.txt && \
	$(PIP) install --quiet --require-hashes --no-build-isolation -r requirements-dev.txt && \
	$(PIP) install --quiet --no-deps --no-build-isolation --editable . && $(BIN)/python -c "$$CHECKOUT_PATH" && echo "[python] ready" && $(BIN)/python -m compaction.local.programs.spark_archive || { kill $$plane 2>/dev/null; wait $$plane; exit 1; }; \
	wait $$plane
	@touch $@
