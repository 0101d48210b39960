#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes static release binaries for both architectures in dist/: hugelift-x86_64, hugelift-aarch64, and
# libhugelift_inside-ARCH.so, which is installed as lib/hugelift/libhugelift_inside.so beside bin.
# The binary for this machine's architecture is that of ci/build.sh, with musl if Rust has it here; the
# other one has glibc. Both are linked statically at fixed addresses: they need no file of the system,
# and --user reads /etc/passwd without plugins.
# shellcheck source=vm/lib.sh
source "$(dirname "$0")/vm/lib.sh"
# shellcheck source=vm/cross.sh
source "$tree/ci/vm/cross.sh"
cd "$tree"
ci/vm/prepare
mkdir -p dist

make_for() {
  local arch=$1 made strip=strip readelf=readelf bytes headers library
  if [ "$arch" = "$(uname -m)" ]; then
    ci/build.sh
    made=${CARGO_TARGET_DIR:-target}/release
  else
    local target=$arch-unknown-linux-gnu
    cross "$arch"
    # shellcheck disable=SC2154 # cargo: set by cross
    "${cargo[@]}" rustc -q --release --target "$target" -p hugelift --bin hugelift -- -C relocation-model=static
    made=${CARGO_TARGET_DIR:-target}/$target/release
  fi
  "$strip" -o "dist/hugelift-$arch" "$made/hugelift"
  bytes=$(stat -c %s "dist/hugelift-$arch")
  headers=$("$readelf" -lW "dist/hugelift-$arch")
  [[ $headers != *INTERP* ]] || fail "dist/hugelift-$arch is not static"
  [ "$bytes" -lt 10000000 ] || fail "dist/hugelift-$arch has $bytes bytes"
  echo "dist/hugelift-$arch: $bytes bytes"
  library=$made/libhugelift_inside.so
  [[ $("$readelf" -dW "$library") != *NEEDED* ]] || fail "$library needs another library"
  cp "$library" "dist/libhugelift_inside-$arch.so"
}

# Each architecture has its own subshell, since cross sets variables that cargo reads.
for arch in x86_64 aarch64; do (make_for "$arch"); done
