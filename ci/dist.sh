#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes in dist/, for both architectures:
#
#   hugelift-ARCH                    the command as one static file
#   hugelift-VERSION-ARCH.tar.gz     the command with its library, units, manual pages, completions, book and examples;
#                                    .deb and .rpm too
#   libhugelift-VERSION-ARCH.tar.gz  the library for programs that lift themselves, and what compilers need of it;
#                                    libhugelift-dev as .deb and libhugelift-devel as .rpm
#   hugelift-VERSION-ARCH.cdx.json   the crates in the command (a bill of materials, CycloneDX)
#   SHA256SUMS                       checksums of all these
#
# The binary for this machine's architecture is that of ci/build.sh. Both have musl if Rust has it here, else glibc. Both are
# linked statically at fixed addresses: they need no file of the system, and --user reads /etc/passwd without plugins.
# shellcheck source=vm/lib.sh
source "$(dirname "$0")/vm/lib.sh"
# shellcheck source=vm/cross.sh
source "$tree/ci/vm/cross.sh"
# shellcheck source=remap.sh
source "$tree/ci/remap.sh"
cd "$tree"
target_dir=${CARGO_TARGET_DIR:-target}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n1)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
ci/vm/prepare
ci/manual.sh "$target_dir/manual"
rm -rf dist
mkdir dist

make_for() {
  local arch=$1 made strip=strip readelf=readelf target headers library to=$target_dir/dist/$1
  target=$arch-unknown-linux-gnu
  if [ "$arch" = "$(uname -m)" ]; then
    ci/build.sh
    made=$target_dir/release
    ! command -v musl-gcc >/dev/null || [ ! -d "$(rustc --print target-libdir --target "$arch-unknown-linux-musl")" ] || target=$arch-unknown-linux-musl
  else
    cross "$arch"
    target=$(shipped_target "$arch")
    release "$target"
    made=$target_dir/$target/release
  fi
  rm -rf "$to"
  mkdir -p "$to"
  # The comments name the compilers alone.
  "$strip" -R .comment -o "$to/hugelift" "$made/hugelift"
  headers=$("$readelf" -lW "$to/hugelift")
  [[ $headers != *INTERP* ]] || fail "$to/hugelift is not static"
  library=$made/libhugelift_inside.so
  [[ $("$readelf" -dW "$library") != *NEEDED* ]] || fail "$library needs another library"
  "$strip" -R .comment -o "$to/${library##*/}" "$library"
  cp "$to/hugelift" "dist/hugelift-$arch"
  ci/dependencies.py notices "$target" >"$to/third-party.txt"
  ci/dependencies.py sbom "$target" >"dist/hugelift-$version-$arch.cdx.json"
  ci/package.sh "$arch" tar deb rpm
}

# The library for programs that lift themselves. It is for glibc, and its code must not expect a static program.
make_library_for() {
  local arch=$1 out=$target_dir/dist/library-$1 target='' symbols wanted
  if [ "$arch" != "$(uname -m)" ]; then
    target=$arch-unknown-linux-gnu
    cross "$arch"
    unset RUSTFLAGS
  fi
  set_rustflags
  # shellcheck disable=SC2154 # cc, readelf, strip: set by cross, or below
  CC=${cc:-cc} ci/library.sh library "$out" "$target"
  # It exports, for either architecture, what its version script lists.
  symbols=$("${readelf:-readelf}" --dyn-syms -W "$out/libhugelift.so.0" | awk '$5 == "GLOBAL" && $7 != "UND" {print $8}')
  wanted=$(sed -n 's/^    \([A-Za-z_]*\);$/\1/p' crates/library/hugelift.map | sort)
  [ "$(sed 's/@.*//' <<<"$symbols" | grep -v '^HUGELIFT_\|^ELFREMAPPER_' | sort)" = "$wanted" ] ||
    fail "$out/libhugelift.so.0 exports other symbols: $symbols"
  # The linker has stripped the shared object.
  "${strip:-strip}" --strip-debug -R .comment "$out/libhugelift.a"
}

# Each architecture has its own subshell, since cross sets variables that cargo reads.
for arch in x86_64 aarch64; do
  (make_library_for "$arch")
  (make_for "$arch")
done
sums=$(cd dist && sha256sum -- *)
echo "$sums" >dist/SHA256SUMS
ls -l dist
