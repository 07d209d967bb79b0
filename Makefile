# make demo: the main job.  make test: all tests but the slow ones.  make check: lint, format, types.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test slow check bench sweeps clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(BIN)/pip install --quiet -c constraints.txt -e '.[test]'
	touch $@

demo: $(VENV)/.installed  ## encrypted FedProf on digits, with a report
	$(BIN)/securefl demo

test: $(VENV)/.tested  ## all tests but those marked slow
	$(BIN)/pytest -n 2 -m "not slow"

slow: $(VENV)/.tested  ## the tests marked slow
	$(BIN)/pytest -n 2 -m slow

check: $(VENV)/.tested  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.tested  ## figures of the README, as ratios in one run
	$(BIN)/python benchmarks/matching.py
	$(BIN)/python benchmarks/encryption_overhead.py
	$(BIN)/python benchmarks/gas_turbine.py
	$(BIN)/python benchmarks/fedlog_head.py
	$(BIN)/python benchmarks/fedlog_synthetic.py
	$(BIN)/python benchmarks/dpsgd.py

sweeps: $(VENV)/.tested  ## the trade-off studies: ten minutes (digits), and half an hour (MNIST, needs SECUREFL_DATA)
	$(BIN)/securefl sweep fedlog_tradeoff
	$(BIN)/securefl sweep fedlog_tradeoff_mnist

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
