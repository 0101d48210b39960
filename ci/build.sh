#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds release binaries for this machine in target/release: hugelift, its library, the benchmarks.
#
# hugelift is static, at fixed addresses and with musl. Otherwise the loader with its relocations, and
# the cpuid instructions of glibc's start (under a hypervisor each is an exit from the guest), would take
# half of the time that `hugelift run` adds to a start.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=remap.sh
source ci/remap.sh
out=${CARGO_TARGET_DIR:-target}
began=$(date +%s.%N)
target=$(uname -m)-unknown-linux-musl
flags=(-C target-feature=+crt-static -C relocation-model=static)
# SQLite is compiled for musl too.
has_musl() { command -v musl-gcc >/dev/null && [ -d "$(rustc --print target-libdir --target "$target")" ]; }

if has_musl || { command -v rustup >/dev/null && rustup target add "$target" && has_musl; }; then
  # With both in one call their dependencies have the same features, and are compiled once. As a target is named, the
  # flags are not those of build scripts.
  set_rustflags "${flags[@]}" "${no_unwind_tables[@]}"
  cargo build --release --target "$target" -p hugelift -p hugelift-bench
  made=$out/$target/release
else
  echo "Rust has no standard library for musl here (rustup target add $target), or there is no musl-gcc: linking with glibc, which starts more slowly"
  cargo build --release -p hugelift-bench
  cargo rustc --release -p hugelift --bin hugelift -- "${flags[@]}"
  made=$out/release
fi

mkdir -p "$out/release"
for file in hugelift hugelift-bench libhugelift_inside.so; do
  cp "$made/$file" "$out/release/.$file.new"
  # The tests take it for stale if a source is newer (crates/cli/tests/common/shipped.rs).
  touch -d "@$began" "$out/release/.$file.new"
  # It is renamed into place: the old one may be running.
  mv "$out/release/.$file.new" "$out/release/$file"
done
