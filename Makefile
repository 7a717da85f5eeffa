# Every target does its own set-up: a machine with Python 3.11+, make and a package index is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# With it, each of thousands of processes would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-vllm pictures test check bench crash real all lock clean

demo: $(READY)
	$(BIN)/winhost demo

# Both demos with a real vLLM on the processor: root on x86_64, 5 GB in ~/.cache/winhost-tests or $WINHOST_TEST_CACHE.
demo-vllm: $(READY)
	$(BIN)/python -m tests.vllm.vllm_demo

# What README shows of a run, drawn anew.
pictures: $(READY)
	$(BIN)/python -m tests.pictures

# Files run on all processors at once; what a file shares, such as a lab, stays in one process. The checks run beside
# the tests and print in one piece when they end, so that the last lines name what failed.
test: $(READY)
	@( $(MAKE) --no-print-directory check > $(VENV)/check.log 2>&1; code=$$?; echo; cat $(VENV)/check.log; exit $$code ) & \
	  checks=$$!; $(BIN)/pytest -m "not crash and not real" -n auto --dist loadfile; tests=$$?; \
	  wait $$checks || { checked=$$?; echo "make check failed ($(VENV)/check.log has all of it):"; tail -n 20 $(VENV)/check.log; }; \
	  [ $$tests -ne 0 ] || tests=$${checked:-0}; exit $$tests

check: $(READY)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 -p winhost.core -p winhost.gateway -p winhost.agent -m winhost.bundle.linux_commands -m winhost.bundle.linux_run

bench: $(READY)
	$(BIN)/python -m bench

crash: $(READY)
	$(BIN)/pytest --costly all tests/engine/test_crashes.py
	$(BIN)/pytest -m crash

# Needs are installed by it; some parts only: make real PARTS="browser ssh"
real: $(READY)
	$(BIN)/python -m tests.real $(PARTS)

# Before a release: every test, none left out.
all: test crash
	$(BIN)/python -m tests.real --all

lock:
	uv pip compile --quiet --upgrade --universal --python-version 3.11 --no-header --no-annotate \
	  pyproject.toml --group dev -o requirements-dev.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The exact versions that CI tests with. To renew them: make lock (it needs uv). What is imported compiles itself: pip
# would compile all of it, by one processor.
$(READY): pyproject.toml requirements-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "winhost needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@
