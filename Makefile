# two commands do everything on a fresh machine: `make demo` and `make test`
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet
comma := ,

# the pins are CI's: where they cannot be had together (a CUDA build of torch wants its own triton), the newest
# versions within pyproject.toml's bounds do
install = $(PIP) -c constraints.txt -e '$(1)' || $(PIP) -e '$(1)'

# the official suite of JSON Schema is in the source archive of jsonschema, and in no package that is built of it
suite = rm -rf $(VENV)/sources && $(BIN)/python -m pip download --quiet --no-deps --no-binary jsonschema \
	-c constraints.txt --dest $(VENV)/sources jsonschema

.PHONY: demo test check clean

# the demo needs no developer tools; a second run installs nothing
demo: $(VENV)/.demo
	$(BIN)/sparkle demo

test: $(VENV)/.dev
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check

# format, lint and types without the tests
check: $(VENV)/.dev
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check --static

$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(call install,.[worker$(comma)gateway$(comma)local])
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(call install,.[worker$(comma)gateway$(comma)local$(comma)dev])
	$(suite)
	touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
