# SPDX-License-Identifier: Apache-2.0
# The two commands of the README are `make demo` and `make test`; each sets up what it needs.

.PHONY: all build demo test test-vm test-vm-all dist bench bench-real lint fuzz fuzz-check clean

all: build

build:
	@ci/setup.sh build
	ci/build.sh

# The main job on something real: 64 MB of code, bare and lifted in turn.
demo: build
	target/release/hugelift-bench demo

# Every test. REQUIRE_ALL=1 makes a skip a failure.
test:
	@ci/setup.sh test
	ci/test.sh

# The same on other machines, in emulation: AArch64, NUMA, older kernels. Each machine runs the
# suites that ci/vm/lib.sh lists for it; each test runs on at least one. Downloads about 300 MB
# once, into the user's cache folder.
test-vm:
	@ci/setup.sh build
	ci/vm/matrix

# Every suite on every machine, and the release binaries of both architectures: before a release.
test-vm-all:
	@ci/setup.sh build
	ci/vm/matrix --all

# Static binaries for both architectures, in dist/.
dist:
	@ci/setup.sh build
	ci/dist.sh

# Ratios from interleaved pairs; takes some minutes.
bench: build
	@ci/setup.sh test
	target/release/hugelift-bench all

# Worked examples with hugelift compare: MariaDB, redis, clang, TiDB. PAIRS and
# SECONDS_A_LOAD set how long each takes; HTML_DIR keeps a picture of each.
bench-real: build
	@ci/setup.sh test
	ci/real/all

lint:
	@ci/setup.sh lint
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

# The fuzz targets are a workspace of their own; cargo fuzz runs them (fuzz/README.md). Their check
# takes from the target folder what `make lint` has checked. It links nothing, so libFuzzer need not
# be compiled: libfuzzer-sys is told that some file is the compiled library.
fuzz-check:
	@ci/setup.sh lint
	CUSTOM_LIBFUZZER_PATH="$(CURDIR)/fuzz/Cargo.toml" CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-target}" \
	  cargo check --manifest-path fuzz/Cargo.toml

fuzz:
	@ci/setup.sh test
	cargo build --manifest-path fuzz/Cargo.toml

clean:
	cargo clean
