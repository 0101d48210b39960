#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Static release binaries for both architectures, in dist/: hugelift-x86_64, hugelift-aarch64; and
# libhugelift_inside-ARCH.so, to be installed as lib/hugelift/libhugelift_inside.so beside bin.
# glibc, not musl: its static programs need nothing of the system either, and --user reads
# /etc/passwd without plugins.
# shellcheck source=vm/lib.sh
source "$(dirname "$0")/vm/lib.sh"
# shellcheck source=vm/cross.sh
source "$tree/ci/vm/cross.sh"
cd "$tree"
ci/vm/prepare
mkdir -p dist
for arch in x86_64 aarch64; do
  cross "$arch"
  # shellcheck disable=SC2154 # cargo: set by cross
  "${cargo[@]}" build -q --release --target "$arch-unknown-linux-gnu" -p hugelift --bin hugelift
  # shellcheck disable=SC2154 # strip and readelf as well
  "$strip" -o "dist/hugelift-$arch" "$CARGO_TARGET_DIR/$arch-unknown-linux-gnu/release/hugelift"
  bytes=$(stat -c %s "dist/hugelift-$arch")
  headers=$("$readelf" -lW "dist/hugelift-$arch")
  [[ $headers != *INTERP* ]] || fail "dist/hugelift-$arch is not static"
  [ "$bytes" -lt 10000000 ] || fail "dist/hugelift-$arch has $bytes bytes"
  echo "dist/hugelift-$arch: $bytes bytes"
  library=$CARGO_TARGET_DIR/$arch-unknown-linux-gnu/release/libhugelift_inside.so
  [[ $("$readelf" -dW "$library") != *NEEDED* ]] || fail "$library needs another library"
  cp "$library" "dist/libhugelift_inside-$arch.so"
done
