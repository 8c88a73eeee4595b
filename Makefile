# Two commands do all the set-up: `make demo` runs the main job, `make test` the checks and the tests but for the slow ones.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.run
DEV := $(VENV)/.dev
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist worksteal

.PHONY: demo test test-slow nvflare r gpu check style types compiled coverage golden docs gallery papers bench dist clean

# Packages are installed without bytecode. Where none may be written, every process of a test compiles them anew.
unexport PYTHONDONTWRITEBYTECODE

demo: $(RUN)
	$(BIN)/sottovoce demo

test: $(DEV)
	$(MAKE) --jobs=2 types style compiled
	$(PYTEST) -m "not slow"

# Processes that are killed, statistics, planted faults, whole commands: see `slow` in pyproject.toml.
test-slow: $(DEV)
	$(PYTEST) -m slow

# The wire over NVIDIA FLARE, which brings 44 packages: in an environment of its own.
nvflare: $(VENV)-nvflare/.run
	$(VENV)-nvflare/bin/pytest tests/transports/test_contract.py tests/federation/test_nvflare_fit.py -k "Nvflare or nvflare"

# The R package, with R and its packages jsonlite, knitr and markdown; its tests find the command on the PATH. The
# vignette runs when it is built, and not again.
r: $(RUN)
	rm -rf build/r && mkdir -p build/r
	cd build/r && PATH="$(abspath $(BIN)):$$PATH" R CMD build ../../r
	cd build/r && PATH="$(abspath $(BIN)):$$PATH" R_DEFAULT_INTERNET_TIMEOUT=5 R CMD check --no-manual --ignore-vignettes sottovoce_*.tar.gz
	! grep -E "(WARNING|ERROR)" build/r/sottovoce.Rcheck/00check.log

# On a machine with a CUDA device, with sottovoce[gpu] in the environment of PYTHON.
gpu:
	$(PYTHON) -m pytest tests/gpu tests/data/test_devices.py

check: $(DEV)
	$(MAKE) --jobs=2 types style

types: $(DEV)
	$(BIN)/mypy

style: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/vulture
	$(BIN)/pytest --doctest-modules src -q --ignore-glob="*/nvflare_wire.py" --ignore=src/sottovoce/app/flare.py

# Once, beside the types, and not in each worker; what is wrong the tests themselves tell.
compiled: $(DEV)
	-@OPENBLAS_NUM_THREADS=1 $(BIN)/pytest --collect-only -q > /dev/null 2>&1

# Of the tests that are not slow, and of the code that they start in other processes not.
coverage: $(DEV)
	OPENBLAS_NUM_THREADS=1 $(BIN)/coverage run --source=sottovoce -m pytest -m "not slow"
	$(BIN)/coverage report --skip-covered
	$(BIN)/coverage xml

golden: $(DEV)
	$(BIN)/python tests/golden/transcripts.py --check

docs: $(DEV)
	$(BIN)/mkdocs build --strict

gallery: $(DEV)
	$(BIN)/python docs/pictures.py

# Every figure, table and verdict of the five papers, as a page of the documentation, which has the figures in it.
# Public data sets are needed.
papers: $(DEV)
	$(BIN)/sottovoce reproduce all --plot docs/rerun
	rm docs/rerun/*.svg

bench: $(DEV)
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/accuracy.py
	$(BIN)/python benchmarks/rivals.py
	$(BIN)/python benchmarks/solvers.py
	$(BIN)/python benchmarks/coordinate.py
	$(BIN)/python benchmarks/duals.py
	$(BIN)/python benchmarks/frank_wolfe.py
	$(BIN)/python benchmarks/uplink.py
	$(BIN)/python benchmarks/admm.py
	$(BIN)/python benchmarks/columns.py
	$(BIN)/python benchmarks/bcfw.py
	$(BIN)/python benchmarks/noise.py
	$(BIN)/python benchmarks/wire.py
	$(BIN)/python benchmarks/watching.py

# Wheel and source archive in dist/, tried as strangers would.
dist:
	PYTHON=$(PYTHON) release/archives.sh

clean:
	rm -rf $(VENV) $(VENV)-nvflare build dist site sottovoce-demo

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)-nvflare/.run: pyproject.toml
	$(PYTHON) -m venv $(VENV)-nvflare
	$(VENV)-nvflare/bin/python -m pip install --quiet --no-compile --editable '.[nvflare]' pytest
	touch $@

$(RUN): $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable .
	touch $(RUN)

$(DEV): $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $(DEV) $(RUN)
