# Both targets do all set-up in a fresh .venv; nothing else is needed than Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
RUN := OMP_WAIT_POLICY=PASSIVE $(VENV)/bin/python

.PHONY: demo test commands lint clean

demo: $(VENV)/ready
	$(RUN) -m dsparkd demo

test: $(VENV)/ready
	$(RUN) -m pytest -n 2 --dist worksteal

commands: $(VENV)/ready
	$(RUN) -m pytest -n 2 -m commands

lint: $(VENV)/ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	MYPYPATH=$(VENV)/pkg $(VENV)/bin/mypy -p dsparkd.statemachine -p dsparkd.scheduler -p dsparkd.models -p dsparkd.worker \
	    -m dsparkd.__main__
	$(VENV)/bin/lint-imports
	$(RUN) -m dsparkd docs --check

# The link under pkg is for mypy: an editable install hides the package from it, and the checkout's own name may be
# no identifier.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	mkdir -p $(VENV)/pkg && ln -sfn "$(CURDIR)" $(VENV)/pkg/dsparkd
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
