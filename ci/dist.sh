#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Static release binaries for both architectures, in dist/: hugelift-x86_64, hugelift-aarch64; and
# libhugelift_inside-ARCH.so, to be installed as lib/hugelift/libhugelift_inside.so beside bin.
# With musl for this machine's own architecture, if Rust has it here (ci/build.sh says why), else
# with glibc: static programs of both need nothing of the system, and --user reads /etc/passwd
# without plugins.
# shellcheck source=vm/lib.sh
source "$(dirname "$0")/vm/lib.sh"
# shellcheck source=vm/cross.sh
source "$tree/ci/vm/cross.sh"
cd "$tree"
ci/vm/prepare
mkdir -p dist
for arch in x86_64 aarch64; do
  cross "$arch"
  target=$arch-unknown-linux-gnu musl=$arch-unknown-linux-musl
  if [ "$arch" = "$(uname -m)" ] && [ -d "$(rustc --print target-libdir --target "$musl")" ]; then
    target=$musl
  fi
  # shellcheck disable=SC2154 # cargo: set by cross
  "${cargo[@]}" build -q --release --target "$target" -p hugelift --bin hugelift
  # shellcheck disable=SC2154 # strip and readelf as well
  "$strip" -o "dist/hugelift-$arch" "$CARGO_TARGET_DIR/$target/release/hugelift"
  bytes=$(stat -c %s "dist/hugelift-$arch")
  headers=$("$readelf" -lW "dist/hugelift-$arch")
  [[ $headers != *INTERP* ]] || fail "dist/hugelift-$arch is not static"
  [ "$bytes" -lt 10000000 ] || fail "dist/hugelift-$arch has $bytes bytes"
  echo "dist/hugelift-$arch: $bytes bytes"
  library=$CARGO_TARGET_DIR/$target/release/libhugelift_inside.so
  [[ $("$readelf" -dW "$library") != *NEEDED* ]] || fail "$library needs another library"
  cp "$library" "dist/libhugelift_inside-$arch.so"
done
