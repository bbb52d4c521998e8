# `make help` lists the targets. Each makes the environment it needs, and again only after
# pyproject.toml, constraints.txt or benchmarks/requirements.txt has changed.

bootstrap := tools/python tools/bootstrap.py
bin := .venv/bin
peers := $(wildcard benchmarks/requirements.txt)

# Scripts that start with an underscore are shared parts, not benchmarks.
benchmarks := $(wildcard benchmarks/[!_]*.py)

# The bench environment exists only when there is something to compare with.
bench_venv := $(if $(peers),.venv-bench,.venv)

# Bytecode is kept, whatever the caller's wish: else each process of a test run compiles all tests anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help ready test test-fast lint format soak bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

ready: ## make or update .venv, with the test and dev tools
	@$(bootstrap) --extras test,dev

# Four on two cores, as many tests wait; those of a file share what it has started. In the order
# of tests/conftest.py.
#
# Many tests start and kill real processes. On a busy machine one may fail because it was not served
# in time, so what failed runs once more alone, by name. What fails twice fails the run; what passes
# then is a defect all the same, of the test or of the product, and is to be looked into.
test: ready ## run all tests, what failed once more alone; fails under 90 % coverage
	@$(bin)/pytest -n 4 --dist loadfile --no-loadscope-reorder --cov || \
		{ echo '== failed in company; once more alone:'; \
		$(bin)/pytest --last-failed --last-failed-no-failures none --maxfail 1 -v && \
		$(bin)/coverage report --format total; }

# Tests in this process alone, but for the long runs of hypothesis.
fast := tests/core tests/audit tests/controller tests/simulate tests/test_architecture.py tests/test_home.py

test-fast: ready ## run the tests that start no servers, in under two minutes
	$(bin)/pytest -n 2 --dist loadfile $(fast) --ignore-glob '*_machine.py' --ignore-glob '*planted*'

lint: ready ## check format, lint and types
	$(bin)/ruff format --check .
	$(bin)/ruff check .
	$(bin)/mypy --strict src tools

format: ready ## format, and fix what can be fixed by machine
	$(bin)/ruff format .
	$(bin)/ruff check --fix .

soak: ready ## run the long tests, and hypothesis with many more examples; show their figures
	GRIDHAND_SOAK=1 $(bin)/pytest -m 'soak or hypothesis' -s -rA --timeout 3600

bench: ## run every benchmark; those compared with stand in .venv-bench
	@$(bootstrap) --venv $(bench_venv) $(if $(peers),--requirement $(peers))
	@$(if $(benchmarks),,echo 'error: there are no benchmarks in benchmarks/' >&2; exit 1)
	@set -e; for script in $(benchmarks); do \
		echo "== $$script"; \
		$(bench_venv)/bin/python "$$script"; \
	done

clean: ## remove environments, caches and reports
	rm -rf .venv .venv.lock .venv-bench .venv-bench.lock build dist htmlcov
	rm -rf .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests tools -name __pycache__ -prune -exec rm -rf {} +
