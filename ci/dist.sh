#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes static release binaries for both architectures in dist/: hugelift-x86_64, hugelift-aarch64, and
# libhugelift_inside-ARCH.so, which is installed as lib/hugelift/libhugelift_inside.so beside bin.
# libhugelift-ARCH.tar.gz has the library for programs that lift themselves, and its headers.
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

# The library for programs that lift themselves. It is for glibc, and its code must not expect a static program.
make_library_for() {
  local arch=$1 out=dist/library-$1 target= symbols wanted
  if [ "$arch" != "$(uname -m)" ]; then
    target=$arch-unknown-linux-gnu
    cross "$arch"
    unset RUSTFLAGS
  fi
  # shellcheck disable=SC2154 # cc, readelf: set by cross, or below
  CC=${cc:-cc} ci/library.sh library "$out" "$target"
  # It exports, for either architecture, what its version script lists.
  symbols=$("${readelf:-readelf}" --dyn-syms -W "$out/libhugelift.so.0" | awk '$5 == "GLOBAL" && $7 != "UND" {print $8}')
  wanted=$(sed -n 's/^    \([A-Za-z_]*\);$/\1/p' crates/library/hugelift.map | sort)
  [ "$(sed 's/@.*//' <<<"$symbols" | grep -v '^HUGELIFT_\|^ELFREMAPPER_' | sort)" = "$wanted" ] ||
    fail "$out/libhugelift.so.0 exports other symbols: $symbols"
  tar -C "$out" -czf "dist/libhugelift-$arch.tar.gz" libhugelift.so.0 libhugelift.so libhugelift.a \
    -C "$tree/crates/library/include" hugelift.h hugelift.hpp hugelift
  echo "dist/libhugelift-$arch.tar.gz: $(stat -c %s "dist/libhugelift-$arch.tar.gz") bytes"
}

# Each architecture has its own subshell, since cross sets variables that cargo reads.
for arch in x86_64 aarch64; do
  (make_for "$arch")
  (make_library_for "$arch")
done
