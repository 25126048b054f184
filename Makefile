# Set-up and checks. `make` alone lists the targets.

VENV   := .venv
PYTHON ?= python3.11 python3 python3.12 python3.13
STAMP  := $(VENV)/.installed
PIP    := $(VENV)/bin/python -m pip --disable-pip-version-check -qq install --no-deps
SGLANG := .venv-sglang

.DEFAULT_GOAL := help
.PHONY: help venv model lab-llamacpp lab-sglang demo test test-unit lint evidence clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## everything into .venv: the engine (vLLM on a CPU), the toolkit, the tools of its tests

$(STAMP): requirements/torch-cpu.txt requirements/lab.txt pyproject.toml
	@if ! test -x $(VENV)/bin/pip; then \
	  for python in $(PYTHON); do \
	    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; python=; \
	  done; \
	  if test -z "$$python"; then \
	    echo "make: no Python 3.11 or newer found. Install one, or name it: make venv PYTHON=/path/to/python3.11" >&2; exit 1; \
	  fi; \
	  "$$python" -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "make: $$python cannot make a virtual environment. On Debian: apt-get install python3-venv" >&2; exit 1; }; \
	fi
	@echo "installing torch for CPUs into $(VENV) (190 MB) ..."
	@$(PIP) --retries 0 -r requirements/torch-cpu.txt || { \
	  echo "make: no torch of requirements/torch-cpu.txt for this Python and machine, or its index cannot be reached." >&2; exit 1; }
	@echo "installing $$(grep -c == requirements/lab.txt) pinned packages into $(VENV) (about 2 minutes) ..."
	@$(PIP) -r requirements/lab.txt
	@$(PIP) --no-build-isolation -e .
	@PATH="$$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null | grep libtcmalloc_minimal.so >/dev/null || \
	  echo "advice: the engine is faster with tcmalloc (apt-get install libtcmalloc-minimal4)"
	@command -v g++ >/dev/null || command -v clang++ >/dev/null || \
	  echo "advice: the engine compiles some of its code, for logprobs among others: it needs g++ (apt-get install g++)"
	@command -v chromium >/dev/null || \
	  echo "advice: the test that looks at the report in a browser needs one (apt-get install chromium)"
	@touch $@

model: venv ## the lab model, SmolLM2-135M-Instruct, built once in ~/.cache/toolkit (or in $TOOLKIT_LAB_MODEL)
	@$(VENV)/bin/python -m toolkit.lab.model >/dev/null

lab-llamacpp: venv ## llama.cpp's llama-server in ~/.cache/toolkit, from source (15 minutes of a core; needs cmake, g++)
	@$(VENV)/bin/python -m toolkit.lab.llamacpp >/dev/null

lab-sglang: $(SGLANG)/.installed ## SGLang for CPUs in .venv-sglang (3 GB, 2 minutes); its kernels are toolkit/lab/sglang_cpu

# The toolkit is put on that environment's path and not installed: SGLang's processes import one folder of it.
$(SGLANG)/.installed: requirements/torch-cpu.txt requirements/lab-sglang.txt | $(STAMP)
	@test -x $(SGLANG)/bin/pip || $(VENV)/bin/python -m venv $(SGLANG) || { rm -rf $(SGLANG); exit 1; }
	@echo "installing SGLang for CPUs into $(SGLANG) (3 GB, about 2 minutes) ..."
	@$(subst $(VENV),$(SGLANG),$(PIP)) --retries 0 -r requirements/torch-cpu.txt
	@$(subst $(VENV),$(SGLANG),$(PIP)) -r requirements/lab-sglang.txt
	@echo "$(CURDIR)" > "$$($(SGLANG)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/toolkit.pth"
	@touch $@

demo: venv model ## does it work here? the lab, end to end
	@$(VENV)/bin/toolkit demo

lint: venv ## ruff and mypy
	@$(VENV)/bin/ruff check --quiet .
	@$(VENV)/bin/mypy --no-error-summary

test: venv model lab-sglang lint ## every check: lint, the unit tests, the tests that start real engines or a browser
	@$(VENV)/bin/pytest -q -n 2 tests/unit
	@if command -v chromium >/dev/null; then $(VENV)/bin/pytest -q tests/browser tests/engine; else \
	  echo "not run, there is no browser (apt-get install chromium): tests marked browser"; \
	  $(VENV)/bin/pytest -q tests/engine; fi

test-unit: venv ## the unit tests alone: no model, no engine
	@$(VENV)/bin/pytest -q -n 2 tests/unit

evidence: venv model ## measure again what README and tests rest on (two hours) and keep it in tests/data/runs
	@$(VENV)/bin/python benchmarks/evidence.py

clean: ## remove .venv, .venv-sglang and the tools' caches (the model in ~/.cache and your runs stay)
	@rm -rf $(VENV) $(SGLANG) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
