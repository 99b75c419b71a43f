# Two commands for a newcomer: `make up` and `make test`. `make` alone lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Arguments for the thing that is run: make up ARGS="--dir /tmp/capstan"; make test ARGS="watch::"
ARGS ?=
# Which packages `make test` tests: make test SCOPE="-p capstan-meta"
SCOPE ?= --workspace

TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
CAPSTAN := $(TARGET)/release/capstan
# Builds in about half the time of a release build, and is a little slower.
QUICK := $(TARGET)/quick/capstan
# Testing the whole workspace builds the binary first, so that tests of other packages can take that one.
BINARY_FOR_TESTS = $(if $(filter --workspace,$(SCOPE)),CAPSTAN_BIN=$(TARGET)/$(1)/capstan)
# nextest runs none; a package without a library has none, and cargo takes asking for them as an error.
DOC_TESTS = $(if $(filter --workspace,$(SCOPE)),cargo test $(LOCKED) --doc --workspace)
# The pinned versions and no others, where the result counts.
LOCKED := $(if $(CI),--locked)
NEXTEST := $(shell command -v cargo-nextest 2>/dev/null)

.PHONY: help up build test check fmt bench soak docs clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | while IFS=$$'\t' read -r name what; do \
		printf '  make %-8s %s\n' "$$name" "$$what"; done

up: ## Install what is missing, build, and run everything on this machine
	tools/install.sh up
	@[[ -e $(QUICK) ]] || echo "building Capstan; the first time this takes several minutes (about nine on two cores)"
	cargo build --profile quick $(LOCKED) -p capstan
	exec $(QUICK) up $(ARGS)

build: ## Build the release binary
	tools/install.sh build
	cargo build --release $(LOCKED) -p capstan

test: ## Install what the tests need and run them all
	tools/install.sh test
ifdef NEXTEST
	$(DOC_TESTS)
	$(call BINARY_FOR_TESTS,debug) cargo nextest run $(LOCKED) $(SCOPE) $(ARGS)
else
	$(call BINARY_FOR_TESTS,debug) cargo test $(LOCKED) $(SCOPE) -- $(ARGS)
endif

check: ## Formatting, lints, house rules, documentation
	tools/install.sh build
	cargo fmt --all --check
	cargo clippy $(LOCKED) --workspace --all-targets -- -D warnings
	cargo test $(LOCKED) --quiet -p capstan-testkit --test it -- tidy::
	RUSTDOCFLAGS="-D warnings" cargo doc $(LOCKED) --workspace --no-deps --quiet

fmt: ## Format the code
	cargo fmt --all

bench: ## Measure everything beside its peer and write docs/benchmarks.md
	tools/install.sh bench
	cargo build --release $(LOCKED) -p capstan
	$(CAPSTAN) bench all --write docs/benchmarks.md $(ARGS)

soak: ## Run the tests in their long forms, optimised
	tools/install.sh test
ifdef NEXTEST
	CAPSTAN_SOAK=1 $(call BINARY_FOR_TESTS,soak) cargo nextest run $(LOCKED) --cargo-profile soak --profile soak $(SCOPE) $(ARGS)
else
	CAPSTAN_SOAK=1 $(call BINARY_FOR_TESTS,soak) cargo test $(LOCKED) --profile soak $(SCOPE) -- $(ARGS)
endif

docs: build ## Write again what the binary prints: docs/metadata.md and the man pages
	$(CAPSTAN) reference metadata > $(TARGET)/metadata.md
	mv $(TARGET)/metadata.md docs/metadata.md
	$(CAPSTAN) reference man $(TARGET)/man

clean: ## Remove what was built
	cargo clean
