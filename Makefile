# SPDX-License-Identifier: Apache-2.0
# The README names two commands: `make demo` and `make test`. Each target installs what it needs.

.PHONY: all build library manual install uninstall demo check test test-long test-vm test-vm-all miri dist bench bench-real lab-agree lint fuzz fuzz-check clean

out := $(or $(CARGO_TARGET_DIR),target)

# Builds all that `make install` installs.
all: build library manual

build:
	@ci/setup.sh build
	ci/build.sh

# Builds libhugelift.so and libhugelift.a, for programs that lift themselves, in target/library/out.
library:
	@ci/setup.sh build
	ci/library.sh library "$(out)/library/out"

# Makes the manual pages and completions of the command, in target/manual.
manual:
	@ci/setup.sh build
	ci/manual.sh "$(out)/manual"

# Installs the command with its systemd units, manual pages and completions, and the library with its headers,
# pkg-config and CMake files. PREFIX is where they will be used (/usr/local), DESTDIR stands for / while a
# package is made. It builds them before. Under sudo, or without cargo, it takes what `make` has built, if that is there.
built := $(and $(wildcard $(out)/release/hugelift),$(wildcard $(out)/library/out/libhugelift.a),$(wildcard $(out)/manual/man))
install: $(if $(and $(built),$(or $(SUDO_UID),$(if $(shell command -v cargo),,none))),,all)
	PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" ci/install.sh

# Removes what `make install` has installed with the same PREFIX and DESTDIR.
uninstall:
	PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" ci/install.sh uninstall

# Runs a program with 64 MB of code, bare and lifted in turn. ROUNDS sets the number of pairs (12).
demo: build
	$(out)/release/hugelift-bench demo $(if $(ROUNDS),--rounds $(ROUNDS))

# What needs neither root nor the programs that are lifted: lints, units, the model with a fault at every step.
check: lint fuzz-check
	! command -v python3 >/dev/null || python3 ci/real/results.py self-test
	cargo test --quiet --workspace --lib
	cargo test --quiet -p hugelift-core -p hugelift-relink -p hugelift-heat -p hugelift-measure -p hugelift-manual --tests

# What every change must pass: every feature, with real programs and the command that `make build` makes. REQUIRE_ALL=1
# makes a skip a failure.
test:
	@ci/setup.sh test
	ci/test.sh

# What takes long: all rounds of what `make test` tries in part, Miri, all suites on all emulated machines, the chart on a
# real cluster, ten minutes of fuzzing. ci/touched runs the part of it that belongs to a change.
test-long:
	@ci/setup.sh test
	ci/test.sh long
	ci/miri.sh
	ci/vm/matrix --all
	ci/kubernetes/lint
	ci/kubernetes/cluster containerd
	ci/kubernetes/cluster kubelet
	ci/kubernetes/cluster
	ci/fuzz.sh 600

# Runs tests on other machines, in emulation: AArch64, NUMA, older kernels. Each machine runs the suites
# that ci/vm/lib.sh lists for it, and each of their tests runs on at least one machine. Downloads about
# 300 MB once, into the user's cache folder.
test-vm:
	@ci/setup.sh build
	ci/vm/matrix

# Runs every suite on every machine, with the release binaries of both architectures. For use before a
# release.
test-vm-all:
	@ci/setup.sh build
	ci/vm/matrix --all

# Runs under Miri what it can run of the library: the epochs, the registry, what C programs pass. Needs a nightly
# toolchain with Miri.
miri:
	@ci/setup.sh test
	ci/miri.sh

# Makes packages for both architectures in dist/: .deb, .rpm and tarball, with lists of the crates in them and
# checksums (docs/releasing.md).
dist:
	@ci/setup.sh dist
	ci/dist.sh

# Measures ratios from interleaved pairs. Takes some minutes.
bench: build
	@ci/setup.sh test
	$(out)/release/hugelift-bench all

# Runs all experiments ten times, beside none, two and eight busy processes in turn, and fails if two reports
# contradict each other. Takes 15 minutes. LAB_AGREE_DIR is a folder for the reports.
lab-agree: build
	@ci/setup.sh test
	LAB_AGREE_RUNS=10 cargo test --release -p hugelift --test tools -- --include-ignored --nocapture lab_agree::

# Measures real programs, and writes a table to docs/results. It takes MINUTES (30), and goes on where an earlier run has ended;
# ONLY names one example, RESULTS another folder (ci/real/all).
bench-real: build
	@ci/setup.sh test
	ci/real/all

lint:
	@ci/setup.sh lint
	cargo fmt --all --check
	! git grep -nE '^(<<<<<<<|>>>>>>>)( |$$)'
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --lib --no-deps

# The fuzz targets have their own workspace; cargo fuzz runs them (fuzz/README.md). Their check reuses from
# the target folder what `make lint` has checked. It links nothing, so libFuzzer need not be compiled:
# libfuzzer-sys gets the path of any existing file as the compiled library.
fuzz-check:
	@ci/setup.sh lint
	CUSTOM_LIBFUZZER_PATH="$(CURDIR)/fuzz/Cargo.toml" CARGO_TARGET_DIR="$${CARGO_TARGET_DIR:-target}" \
	  cargo check --manifest-path fuzz/Cargo.toml

fuzz:
	@ci/setup.sh test
	cargo build --manifest-path fuzz/Cargo.toml

clean:
	cargo clean
