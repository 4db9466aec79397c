# From a machine that has only Python 3.11+, git and make: each target creates .venv, installs, and runs.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
WITH ?=

.PHONY: quickstart test test-all check bench install clean
quickstart: $(INSTALLED)
	@$(BIN)/regard quickstart $(WITH)

test: $(INSTALLED)
	$(BIN)/pytest -n 2 --dist loadfile $(WITH)

test-all: $(INSTALLED)
	$(BIN)/pytest -n 2 --dist loadfile -m "not network" $(WITH)

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

bench: $(INSTALLED)
	$(BIN)/python benchmarks/attention_weights.py
	$(BIN)/python benchmarks/train_step.py

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv
