# Commands for a fresh clone; each sets up .venv by itself.
#   make mastery   train on the paper's map, measure, write a report (minutes, on one core)
#   make test      lint, type-check, run the test suite
#   make test-extras   run what make test skips, with Ray, RL Zoo, the Hub's package and a browser
#   make docs      a site of the pages in docs/: build/docs/index.html
#   make notebook  run docs/first_steps.ipynb and write it with its outputs

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
EXTRAS := .venv-extras
INSTALLED_EXTRAS := $(EXTRAS)/.installed

.PHONY: mastery test test-extras docs notebook format clean

mastery: $(INSTALLED)
	$(BIN)/python -m benchmarks mastery $(ARGS)

test: $(INSTALLED_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	# Tests start many processes. Without bytecode on disk, each of them would compile all modules.
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

test-extras: $(INSTALLED_EXTRAS)
	@command -v chromedriver >/dev/null || echo "There is no chromedriver: tests in a browser are skipped. CONTRIBUTING.md says how to install one."
	OMP_NUM_THREADS=1 $(EXTRAS)/bin/python -m pytest -m extras -rs $(ARGS)

docs: $(INSTALLED_DEV)
	$(BIN)/python -m sphinx --nitpicky --fail-on-warning --keep-going docs build/docs $(ARGS)

notebook: $(INSTALLED_DEV)
	$(BIN)/python docs/run_notebook.py $(ARGS)

format: $(INSTALLED_DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(EXTRAS) build dist *.egg-info

define check_python
	$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or later is needed, this is " + sys.version) if sys.version_info < (3, 10) else None'
endef

$(INSTALLED) $(INSTALLED_DEV): setup.py constraints.txt
	$(check_python)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$(if $(filter %-dev,$@),dev,benchmarks)]"
	touch $@

$(INSTALLED_EXTRAS): setup.py constraints.txt
	$(check_python)
	$(PYTHON) -m venv $(EXTRAS)
	$(EXTRAS)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,hub,ray,zoo]"
	touch $@
