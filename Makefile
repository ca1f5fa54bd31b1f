# The two commands of a newcomer are `make demo` and `make test`; `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
# Where torch comes from; empty means the index that pip uses for everything else, where Linux gets the CUDA build.
# The small CPU build: make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
PROMPT ?= a red apple, 3d style, blue background
CHAOS ?= --lease 1.5 --hands 96
RUN := .venv/bin/python
PARALLEL := --numprocesses 2 --dist worksteal
INSTALL := .venv/bin/pip install --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test check format protos chaos clean
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

demo: .venv/run ## paint PROMPT through gateway, planner, worker and Redis
	@$(RUN) -m darkroom.cli demo -- "$$PROMPT"
demo: export PROMPT := $(PROMPT)

# Two at a time, since most of them wait for processes; a run goes on when one of the two dies. Real processes on a busy
# machine can miss a bound: what failed runs once more, alone, with both outputs shown.
test: .venv/dev check .cache/debian-redis/redis-server ## everything that CI runs
	@$(RUN) -m pytest $(PARALLEL) || $(RUN) -m pytest --last-failed
	@export DARKROOM_TEST_REDIS_SERVER="$$PWD/.cache/debian-redis/redis-server"; \
	    $(RUN) -m pytest $(PARALLEL) -m redis || $(RUN) -m pytest -m redis --last-failed

check: .venv/dev ## style, types, contracts: seconds, no tests
	@$(RUN) -m ruff check
	@$(RUN) -m ruff format --check
	@$(RUN) -m mypy
	@.venv/bin/buf lint protos
	@.venv/bin/buf format --diff --exit-code protos
	@$(RUN) protos/generate.py --check

format: .venv/dev ## put code and protos into their form
	@$(RUN) -m ruff check --fix
	@$(RUN) -m ruff format
	@.venv/bin/buf format --write protos

protos: ## write darkroom/v1 anew from protos/
	@$(PYTHON) protos/generate.py

chaos: .venv/dev ## break everything for 15 minutes while 5,000 jobs run; CHAOS="--seed 7 --minutes 2" changes that
	@$(RUN) -m tests.chaos.run $(CHAOS)

clean: ## remove what make made
	rm -rf .venv .cache out build *.egg-info

.venv/torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Darkroom needs Python 3.11 or newer; choose one with PYTHON=python3.12")'
	@echo "Installing into .venv, once …"
	@$(PYTHON) -m venv .venv
	@$(INSTALL) torch $(if $(TORCH_INDEX),--index-url "$(TORCH_INDEX)")
	@touch $@

.venv/run: .venv/torch pyproject.toml
	@$(INSTALL) --quiet --editable '.[planner,gateway,worker]'
	@touch $@

.venv/dev: .venv/run
	@$(INSTALL) --quiet --editable '.[dev]'
	@touch $@

.cache/debian-redis/redis-server: tests/debian_redis.sh
	@bash tests/debian_redis.sh .cache/debian-redis
