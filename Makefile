# Three commands for a fresh clone; each sets up .venv by itself.
#   make mastery   train on the paper's map, measure, write a report (minutes, on two cores)
#   make test      lint, type-check, run the test suite
#   make docs      a site of the pages in docs/: build/docs/index.html

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev

.PHONY: mastery test docs format clean

mastery: $(INSTALLED)
	$(BIN)/python -m benchmarks mastery $(ARGS)

test: $(INSTALLED_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

docs: $(INSTALLED_DEV)
	$(BIN)/python -m sphinx --nitpicky --fail-on-warning --keep-going docs build/docs $(ARGS)

format: $(INSTALLED_DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info

$(INSTALLED) $(INSTALLED_DEV): setup.py constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or later is needed, this is " + sys.version) if sys.version_info < (3, 10) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$(if $(filter %-dev,$@),dev,benchmarks)]"
	touch $@
