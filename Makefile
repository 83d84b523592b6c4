# `make` lists all commands. `make run` and `make test` need only Python (3.11 to 3.13) and PyPI.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
SERVING := $(VENV)/.serving
INSTALLED := $(VENV)/.installed
# The complete installation includes what serving needs.
READY := $(if $(wildcard $(INSTALLED)),$(INSTALLED),$(SERVING))
# On a fresh clone, install what serving needs before the complete lock.
FIRST := $(if $(wildcard $(INSTALLED)),,$(SERVING))
# pip shows its progress on a terminal only; a log gets the messages below.
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(shell test -t 2 || echo --quiet)

.PHONY: help run test test-all test-avx2 test-fast check lint fuzz faults load chaos chart sbom install lock comparison screenshots weights ocr

help:  ## list these commands
	@sed -n 's/^\([a-z0-9-]*\):.*##  *\(.*\)/  make \1	\2/p' $(MAKEFILE_LIST) | expand -t 20

run: weights ocr  ## serve all models on http://127.0.0.1:8000; installs what serving needs
	$(BIN)/paddlepool serve

test: $(INSTALLED) weights  ## run the tests, in three processes; installs what they need
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not nightly"

test-all: $(INSTALLED) weights  ## run every test, including the slow ones
	$(BIN)/python -m pytest -n 3 --dist worksteal

test-avx2: $(INSTALLED) weights  ## run the tests as on a processor with AVX2 alone (on Intel, as root)
	$(BIN)/python -m tests.avx2.run $(MAKE) test

test-fast: $(INSTALLED)  ## run the tests without Paddle, servers and long waits, in less than a minute
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --hypothesis-profile=fast -m "not paddle and not e2e and not slow and not nightly" $(TESTS)

lint: $(INSTALLED)  ## format, lint and types, changing nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test  ## run all checks that a commit must pass

install: $(INSTALLED)  ## create .venv from the complete lock

# The timeout lets the server start on a network that drops packets.
weights: $(READY)  ## download the official U²-Netp weights, if available
	@$(BIN)/paddlepool pull u2netp --if-possible --timeout 15

ocr: $(READY)  ## download the models that read text (PP-OCRv5 mobile), if available
	@$(BIN)/paddlepool pull ocr --if-possible --timeout 30

# Both locks have the hashes of every package; the packages of requirements.serve.lock are a subset.
# --no-deps: pip would enforce the pins that requirements.overrides.txt overrides.
$(SERVING): requirements.serve.lock pyproject.toml clients/python/pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(BIN)/python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "Paddlepool needs Python 3.11 to 3.13, $(VENV) has " + sys.version.split()[0] + ": remove it, then make PYTHON=python3.13 run")'
	@echo "Installing the packages for serving into $(VENV): 1.4 GB, half of it PaddlePaddle. This takes some minutes, once."
	$(PIP) --no-deps --require-hashes --requirement requirements.serve.lock
	$(PIP) --quiet --no-deps --editable . --editable ./clients/python
	@touch $(SERVING)
	@echo "Installed. $(BIN)/paddlepool --help lists the commands; make run serves the models."

$(INSTALLED): requirements.lock pyproject.toml clients/python/pyproject.toml $(FIRST)
	@echo "Installing the tools for tests and checks: another 0.5 GB."
	$(PIP) --no-deps --require-hashes --requirement requirements.lock
	$(PIP) --quiet --no-deps --editable . --editable ./clients/python
	@touch $(SERVING) $(INSTALLED)
	@echo "Installed. make test runs the tests; make lists all commands."

fuzz: $(INSTALLED)  ## fuzz each target for a minute, guided by coverage; FUZZ="--seconds 600 --keep http"
	$(BIN)/python -m tests.fuzz.run $(FUZZ)

faults: $(INSTALLED)  ## insert the faults of tests/faults and check that tests find them; FAULTS="api deploy"
	printf '%s\n' $(or $(FAULTS),$(basename $(notdir $(wildcard tests/faults/*.toml)))) \
		| xargs -P 2 -n 1 $(BIN)/python -m tests.faults.run

load: $(INSTALLED) .venv-load/.installed  ## generate a minute of load and print a report; LOAD="--plan spike --host http://..."
	$(BIN)/python loadtest/run.py $(LOAD)

chaos: $(INSTALLED)  ## kill servers under load and count lost requests; CHAOS="ray --seconds 30"
	$(BIN)/python loadtest/replicas.py $(CHAOS)

chart: $(INSTALLED) .venv-deploy/.installed  ## lint the Helm chart and validate it against Kubernetes' schemas; CHART="--crds DIR"
	.venv-deploy/bin/python deploy/check_manifests.py $(CHART)

sbom: $(INSTALLED) .venv-deploy/.installed  ## write sbom.cdx.json: the image's packages with licences and hashes
	.venv-deploy/bin/python deploy/sbom.py

# Tools with separate environments: locust registers a pytest plugin and installs gevent; schemathesis
# and the other servers' clients, which tests run unchanged, have conflicting pins.
TOOLS := load deploy clients schema workflows
.venv-load/.installed: loadtest/requirements.lock
.venv-deploy/.installed: deploy/requirements.lock
.venv-workflows/.installed: deploy/workflows.lock
.venv-clients/.installed: tests/e2e/requirements.lock
.venv-schema/.installed: tests/e2e/schema.lock
$(TOOLS:%=.venv-%/.installed): | $(READY)
	test -x $(@D)/bin/python || $(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	touch $@

# Ray Serve and its dependencies (0.5 GB), on top of the packages of .venv. Only `paddlepool ray` needs them.
RAY_INSTALLED := .venv-ray/.installed
SITE := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'

$(RAY_INSTALLED): requirements.ray.lock $(INSTALLED)
	test -x .venv-ray/bin/python || $(BIN)/python -m venv .venv-ray
	echo "import site; site.addsitedir('$$($(BIN)/python $(SITE))')" > "$$(.venv-ray/bin/python $(SITE))/beside.pth"
	.venv-ray/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement requirements.ray.lock
	touch $(RAY_INSTALLED)

comparison: $(INSTALLED)  ## measure predictor configurations, write docs/comparison.md (45 minutes)
	$(BIN)/python loadtest/claims.py --docs docs

screenshots: weights  ## write pictures of the demo page and /compare to docs/images (minutes)
	$(BIN)/python loadtest/screenshots.py

# Installed from clients/python, without a hash.
OURS := --no-emit-package paddlepool-client

lock:  ## resolve the dependencies again (needs uv on the path)
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 \
		--override requirements.overrides.txt $(OURS) \
		--generate-hashes --no-header --no-annotate --upgrade --output-file requirements.lock
	uv pip compile pyproject.toml --extra onnx --extra heic --universal --python-version 3.11 \
		--override requirements.overrides.txt --constraint requirements.lock $(OURS) \
		--generate-hashes --no-header --no-annotate --output-file requirements.serve.lock
	uv pip compile pyproject.toml --extra ray --universal --python-version 3.11 \
		--override requirements.overrides.txt --constraint requirements.lock $(OURS) \
		--generate-hashes --no-header --no-annotate --output-file requirements.ray.lock
	uv pip compile loadtest/requirements.in --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --upgrade --output-file loadtest/requirements.lock
	uv pip compile deploy/requirements.in --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --upgrade --output-file deploy/requirements.lock
	uv pip compile deploy/workflows.in --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --upgrade --output-file deploy/workflows.lock
	uv pip compile tests/e2e/requirements.in --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --upgrade --output-file tests/e2e/requirements.lock
	uv pip compile tests/e2e/schema.in --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --upgrade --output-file tests/e2e/schema.lock
