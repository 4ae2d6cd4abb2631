# The front door. `make run` and `make test` do all that a fresh machine needs; the work is CMake's and scripts/'s.

BUILD ?= build
SECONDS ?= 3600
SHELL := /bin/bash
# Warnings are errors where nobody is there to read them.
WERROR := $(if $(CI),ON,OFF)
JOBS := $(shell nproc 2>/dev/null || echo 2)
GENERATOR := $(if $(shell command -v ninja),-G Ninja)
CONFIGURE = cmake -S . -B $(BUILD) $(if $(wildcard $(BUILD)/CMakeCache.txt),,$(GENERATOR)) -DSAT_WERROR=$(WERROR) \
            -DSAT_BUILD_TESTS=ON -DSAT_BUILD_BENCH=ON --log-level=WARNING $(CMAKE_FLAGS) >/dev/null
export BUILD WERROR JOBS

.PHONY: run build test test-all soak wheel release-check bench docs format lint asan tsan fuzz python rust gpu setup install clean help

run: ## set up, build, and race the default problem on the best device of this machine
	@scripts/setup.sh run gpu
	@$(CONFIGURE)
	@cmake --build $(BUILD) -j $(JOBS) --target sparse_autotune_cli
	@$(BUILD)/sparse_autotune $(ARGS)
	@[ ! -t 1 ] || case "$(ARGS)" in "" | race*) echo '$(REPORT)' ;; esac

# What draws the same race as a page, said where a person reads; the second race comes from the cache.
REPORT = a page of your own: pip install . && $(BUILD)/sparse_autotune $(or $(ARGS),race) --json >race.json && \
         python3 -m sparse_autotune report race.json -o report.html

build: ## libraries, command line, tests and benchmark
	@scripts/setup.sh run gpu
	@$(CONFIGURE)
	@cmake --build $(BUILD) -j $(JOBS)

test: ## set up, build, and test the C library, the Rust crates and the Python package on this machine, in minutes
	@scripts/test.sh quick

test-all: ## the rest: CUDA for every architecture, sanitizers, fuzzers, long grids, clippy, rustdoc
	@scripts/test.sh all

soak: ## hours of fuzzing, random cases, right results through the check, kill loops, ranks that die: SECONDS=3600
	@SOAK_SECONDS=$(SECONDS) scripts/test.sh soak

python rust asan tsan fuzz gpu: ## one part of the tests alone; fuzz for FUZZ_SECONDS (60) a target, gpu for GPU_SECONDS (60)
	@scripts/test.sh $@

wheel: ## the Python wheel for others, into build/packages, with CUDA code where nvcc works or can be fetched (SAT_CUDA=OFF: without)
	@scripts/wheel.sh

release-check: ## wheel, sdist, crates, tarball and .deb: made, installed where nothing of ours is, and used there
	@scripts/test.sh release

bench: ## the speed table: every row against its rival in the same run (ARGS="--full --record NAME")
	@scripts/setup.sh bench gpu
	@$(CONFIGURE)
	@cmake --build $(BUILD) -j $(JOBS) --target sparse_autotune_cli sparse_autotune_shared bench_cpu
	@scripts/bench.sh $(BUILD) $(ARGS)

docs: ## the site of the documents, into build/site, looked at in Chromium (ARGS="--pictures FOLDER")
	@scripts/docs.sh $(ARGS)

format: ## lay out every C file by clang-format 14, every Python file by ruff
	@scripts/lint.sh --fix

lint: ## layout, cppcheck, clang-tidy, shellcheck, ruff
	@scripts/lint.sh

setup: ## install what is missing for all of the above, a CUDA compiler too
	@scripts/setup.sh run test sanitize lint bench python cuda rust docs

install: ## libraries and command line into PREFIX (/usr/local)
	@scripts/setup.sh run gpu
	@$(CONFIGURE)
	@cmake --build $(BUILD) -j $(JOBS) --target sparse_autotune_shared sparse_autotune_static sparse_autotune_cli
	@cmake --install $(BUILD) $(if $(PREFIX),--prefix $(PREFIX))

clean:
	rm -rf $(BUILD) $(BUILD)-cuda $(BUILD)-cpu $(BUILD)-asan $(BUILD)-tsan

help:
	@sed -n 's/^\([a-z -]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 46
