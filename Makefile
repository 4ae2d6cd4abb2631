# The front door. `make run` and `make test` do all that a fresh machine needs; the work is CMake's and scripts/'s.

BUILD ?= build
SHELL := /bin/bash
# Warnings are errors where nobody is there to read them.
WERROR := $(if $(CI),ON,OFF)
JOBS := $(shell nproc 2>/dev/null || echo 2)
GENERATOR := $(if $(shell command -v ninja),-G Ninja)
CONFIGURE = cmake -S . -B $(BUILD) $(if $(wildcard $(BUILD)/CMakeCache.txt),,$(GENERATOR)) -DSAT_WERROR=$(WERROR) \
            --log-level=WARNING $(CMAKE_FLAGS) >/dev/null
export BUILD WERROR JOBS

.PHONY: run build test bench format lint asan tsan fuzz python rust gpu setup install clean help

run: ## set up, build, and race the default problem on the best device of this machine
	@scripts/setup.sh run gpu
	@$(CONFIGURE)
	@cmake --build $(BUILD) -j $(JOBS) --target sparse_autotune_cli
	@$(BUILD)/sparse_autotune $(ARGS)

build: ## libraries, command line, tests and benchmark
	@scripts/setup.sh run gpu
	@$(CONFIGURE)
	@cmake --build $(BUILD) -j $(JOBS)

test: ## set up, build, and run every test, those of Python and Rust, sanitizers and fuzzers included
	@scripts/setup.sh test cuda python rust
	@scripts/test.sh disk release gpu python asan tsan fuzz rust

python: ## the Python package: its wheel, a fresh environment, its tests
	@scripts/setup.sh run python
	@scripts/test.sh python

asan: ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/setup.sh test
	@scripts/test.sh asan

tsan: ## the concurrent tests under ThreadSanitizer
	@scripts/setup.sh test
	@scripts/test.sh tsan

fuzz: ## the fuzz targets, FUZZ_SECONDS (60) each
	@scripts/setup.sh test
	@scripts/test.sh fuzz

gpu: ## on a machine with a GPU: every variant checked for GPU_SECONDS (60), and the tests that need one
	@scripts/setup.sh test cuda
	@scripts/test.sh gpu

rust: ## the Rust crates: tests, clippy, documentation, examples, the types of the CUDA feature
	@scripts/setup.sh test rust
	@scripts/test.sh rust

bench: ## the speed table: every row against its rival in the same run (ARGS="--full --record NAME")
	@scripts/setup.sh bench gpu
	@$(CONFIGURE)
	@cmake --build $(BUILD) -j $(JOBS) --target sparse_autotune_cli bench_cpu
	@scripts/bench.sh $(BUILD) $(ARGS)

format: ## lay out every C file by clang-format 14
	@scripts/setup.sh lint
	@scripts/lint.sh --fix

lint: ## layout, cppcheck, clang-tidy, shellcheck
	@scripts/setup.sh lint cuda
	@scripts/lint.sh

setup: ## install what is missing for all of the above, a CUDA compiler too
	@scripts/setup.sh run test lint bench python cuda rust

install: build ## into PREFIX (/usr/local)
	@cmake --install $(BUILD) $(if $(PREFIX),--prefix $(PREFIX))

clean:
	rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-fuzz

help:
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20
