# make demo: the main job.  make help: every target.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1
unexport PYTHONDONTWRITEBYTECODE  # many processes start in the tests, and each would compile all it imports

.PHONY: demo help test test-data test-docs slow restless hosts mutants mutants-list fuzz gpu package release lock bill check check-lowest check-newest bench bench-secagg bench-peers bench-growth endurance federation nvflare pictures sweeps docs clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	rm -rf *.egg-info  # of an older checkout: its entry points would be found before the installed ones
	$(BIN)/pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.tested: $(VENV)/.installed
	$(BIN)/pip install --quiet -c constraints.txt -e '.[test]'
	touch $@

help:  ## these lines
	@sed -n 's/^\([a-z-]*\):.*##/\1\t/p' Makefile | expand -t 16

demo: $(VENV)/.installed  ## FedAvg, encrypted FedProf and a head at epsilon 2 on digits, with a report
	$(BIN)/securefl demo

test: $(VENV)/.tested  ## all tests but those marked slow or docs
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow and not docs"

DOCUMENTED := tests/e2e tests/architecture/test_public.py tests/unit/api/test_public_names.py
test-docs: $(VENV)/.tested  ## the tests marked docs: pages, notebooks, examples, the site in a browser, walks by its text
	$(BIN)/pytest -n 2 --dist worksteal -m "docs and not slow" $(DOCUMENTED)

test-data: $(VENV)/.tested  ## the tests that `make test` skipped without the data sets; set SECUREFL_DATA
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow and not docs" --skipped

slow: $(VENV)/.tested  ## the tests marked slow
	$(BIN)/pytest -n 2 -m slow

TIMES ?= 20
restless: $(VENV)/.tested  ## the fifty tests that hang most on time, beside a busy loop on each core: make restless [TIMES=20]
	@busy=; for core in $$(seq $$(nproc)); do yes >/dev/null & busy="$$busy $$!"; done; trap 'kill $$busy' EXIT; \
	red=0; for time in $$(seq $(TIMES)); do $(BIN)/pytest -q -n 0 -m "not slow" @tests/restless.txt || red=$$((red + 1)); done; \
	echo "$$red of $(TIMES) runs red"; exit $$red

# Rounding differs between processors. The last of these hosts is a double: its products round by the number of rows.
HOSTS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 ATEN_CPU_CAPABILITY=avx512 ONEDNN_MAX_CPU_ISA=AVX2 \
	PYTEST_PLUGINS=support.other_kernels
TESTS ?= $(addprefix tests/unit/,training protocols study engine published sweep) tests/contracts tests/statistical
hosts: $(VENV)/.tested  ## the tests that compute by torch, as on other processors, one by one: make hosts [TESTS=...]
	@told=; red=0; for host in $(HOSTS); do \
	  case $$host in *avx512) grep -qw avx512vl /proc/cpuinfo || { told="$$told\nleft out  $$host"; continue; };; esac; \
	  if env PYTHONPATH=tests $$host $(BIN)/pytest -q -n 2 --dist worksteal -m "not slow and not docs" $(TESTS); \
	  then told="$$told\npassed    $$host"; else told="$$told\nFAILED    $$host"; red=1; fi; \
	done; printf "$$told\n"; exit $$red

mutants: $(VENV)/.tested  ## sampled faults in a room, ten minutes: make mutants ROOM=accounting [SEED=1]
	$(BIN)/python tools/mutants.py room $(ROOM) $(SEED)

mutants-list: $(VENV)/.tested  ## the listed faults (tests/mutants), each with the test that must turn red
	$(BIN)/python tools/mutants.py list

FUZZ := runs/fuzz
fuzz: $(VENV)/.tested  ## an hour of bytes guided by coverage, over every decoder; FUZZ keeps figures and the bytes of findings
	mkdir -p $(FUZZ)
	PYTHONPATH=tests $(BIN)/python tests/fuzz/run.py --guided 3600 $(FUZZ)

gpu: $(VENV)/.tested  ## the tests that need a GPU
	$(BIN)/pytest -m gpu

package: $(VENV)/.tested  ## sdist and wheel, and the demo from the wheel in a clean environment
	$(BIN)/pytest tests/e2e/test_wheel.py

UV := uv==0.13.9
RELEASE := .venv-release
$(RELEASE)/.installed: Makefile  # a release is packed by these versions, so that its bytes can be had again
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/pip install --quiet setuptools==84.2.1 twine==7.0.0 cyclonedx-bom==7.5.0 $(UV)
	touch $@

release: $(RELEASE)/.installed  ## sdist and wheel of the last commit in dist, built twice to the same bytes, and how to deploy them
	rm -rf dist
	$(RELEASE)/bin/python tools/release.py dist
	$(RELEASE)/bin/twine check --strict dist/*.whl dist/*.tar.gz

# By default uv takes a package from the first index that has any version of it, and that of torch has old builds of others.
WHEELS = $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS),--extra-index-url $(CPU) --index-strategy unsafe-best-match)
CPU := https://download.pytorch.org/whl/cpu
lock: $(RELEASE)/.installed  ## deploy/requirements*.txt: what a party installs on Linux, x86_64, Python 3.11, each file with its hash
	for extra in "" flower; do \
	  sed -n 's/^torch==.*/&+cpu/p' constraints.txt | $(RELEASE)/bin/uv pip compile --quiet --generate-hashes \
	    --python-version 3.11 --python-platform x86_64-unknown-linux-gnu --constraint constraints.txt \
	    $(WHEELS) --no-emit-find-links \
	    --no-header --no-annotate pyproject.toml - $${extra:+--extra $$extra} \
	    --output-file deploy/requirements$${extra:+-$$extra}.txt || exit; \
	done

PARTY := .venv-party
bill: $(RELEASE)/.installed  ## dist/securefl*.cdx.json: the bills of materials of that, with licences (CycloneDX)
	mkdir -p dist
	for extra in "" -flower; do \
	  $(RELEASE)/bin/uv venv --quiet --clear --python 3.11 $(PARTY) && \
	  $(RELEASE)/bin/uv pip install --quiet --python $(PARTY) --require-hashes \
	    $(WHEELS) -r deploy/requirements$$extra.txt && \
	  $(RELEASE)/bin/cyclonedx-py environment $(PARTY) --pyproject pyproject.toml --output-reproducible \
	    --output-file dist/securefl$$extra.cdx.json && \
	  PYTHONPATH=. $(RELEASE)/bin/python tools/bill.py dist/securefl$$extra.cdx.json || exit; \
	done

docs: $(VENV)/.tested  ## the documentation site
	$(BIN)/python tools/handbook/build.py build/handbook
	@echo "build/handbook/site/index.html"

check: $(VENV)/.tested  ## lint, format, types; and how the house stands, as a report
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/files_touched.py
	@$(BIN)/python tools/weigh.py | grep -E '^room|above$$' || true

LOWEST := .venv-lowest
$(LOWEST)/.installed: pyproject.toml  # 6 GB: a torch this old comes with its CUDA packages
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/pip install --quiet $(UV)
	$(LOWEST)/bin/uv pip install --quiet --no-cache --python $(LOWEST)/bin/python --resolution lowest-direct -e '.[test]'
	touch $@

# Old packages warn of the newest ones below them, which is not ours to mend, so warnings are no errors here.
check-lowest: $(LOWEST)/.installed  ## the tests of single modules, with the oldest packages that pyproject.toml allows
	$(LOWEST)/bin/pytest -n 2 -m "not slow" -W default tests/unit tests/contracts tests/vectors

# Outside of the checkout, where `make clean` leaves it: uv's cache, some 20 GB with CUDA.
# A CPU build of torch in the folder that PIP_FIND_LINKS names spares them.
check-newest: $(VENV)/.tested  ## the wheel with the newest packages, on each of Python 3.11 to 3.13, or ON=3.11 alone
	$(BIN)/python tools/newest.py $(ON)

bench: $(VENV)/.tested  ## figures of docs/results.md, as ratios in one run
	$(BIN)/python benchmarks/matching.py
	$(BIN)/python benchmarks/matching_files.py
	$(BIN)/python benchmarks/legal_queries.py
	$(BIN)/python benchmarks/encryption_overhead.py
	$(BIN)/python benchmarks/dpsgd.py

bench-secagg: $(VENV)/.tested  ## secure aggregation beside Flower's
	$(BIN)/python benchmarks/secagg.py

federation: $(VENV)/.tested  ## Flower on loopback: TLS, registered nodes, a key holder; who learnt what
	rm -rf runs/federation
	$(BIN)/python examples/flower/federation.py --out runs/federation

PFL := .venv-pfl
$(PFL)/.installed: Makefile  # its pins exclude ours, so it lives apart
	$(PYTHON) -m venv $(PFL)
	$(PFL)/bin/pip install --quiet 'pfl[pytorch]==0.6.0' numpy==2.4.6 torch==2.13.0 psutil==7.2.2
	touch $@

bench-peers: $(VENV)/.tested $(PFL)/.installed  ## simulation and private training beside others'
	PFL_PYTHON=$(PFL)/bin/python $(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/dpsgd.py

bench-growth: $(VENV)/.tested  ## what a round costs the engine, for 100 to 100,000 clients
	$(BIN)/python benchmarks/growth.py local

ROUNDS ?= 2000
endurance: $(VENV)/.tested  ## an hour and three quarters of kills, restarts, a rotation and a lost disk, over sockets and Flower: make endurance [ROUNDS=2000]
	@red=0; for carrier in sockets flower; do \
	$(BIN)/python benchmarks/endurance.py --rounds $(ROUNDS) --carrier $$carrier || red=1; done; exit $$red

NVFLARE := .venv-nvflare
NVFLARE_OUT := runs/nvflare
$(NVFLARE)/.installed: pyproject.toml constraints.txt examples/nvflare/requirements.txt
	$(PYTHON) -m venv $(NVFLARE)
	$(NVFLARE)/bin/pip install --quiet -c constraints.txt -e . -r examples/nvflare/requirements.txt
	touch $@

nvflare: $(NVFLARE)/.installed  ## NVFlare's simulator: its own FedAvg, and the same model from masked sums
	rm -rf $(NVFLARE_OUT)
	$(NVFLARE)/bin/python examples/nvflare/simulate.py --out $(NVFLARE_OUT)

pictures: $(VENV)/.tested  ## docs/*.png, anew from benchmarks/results
	$(BIN)/python benchmarks/pictures.py

sweeps: $(VENV)/.tested  ## the trade-off studies: five minutes of a core (digits), and an hour (MNIST, needs SECUREFL_DATA)
	$(BIN)/securefl sweep fedlog_tradeoff
	$(BIN)/securefl sweep fedlog_tradeoff_mnist

clean:  ## removes environments, builds and caches
	rm -rf $(VENV) $(PFL) $(LOWEST) $(NVFLARE) $(RELEASE) $(PARTY) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
