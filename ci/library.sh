#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the library for programs that lift themselves: libhugelift.a and libhugelift.so.
#
#   ci/library.sh PROFILE DIRECTORY [TARGET]    PROFILE is cargo's: library (optimised) or dev
#
# TARGET is a target of Rust for another machine; CC is then a compiler for it.
#
# It is built for the C library of this machine, as the programs are that link it, and not for musl, as the
# command hugelift is. cargo makes the archive. The linker makes the shared object of it, as cargo cannot give
# symbols versions: rustc passes a version script of its own, and a linker takes only one.
set -euo pipefail
profile=$1 out=$2 target=${3:-}
cd "$(dirname "$0")/.."
here=crates/library
built=${CARGO_TARGET_DIR:-target}${target:+/$target}/$([ "$profile" = dev ] && echo debug || echo "$profile")
cargo rustc --quiet --profile "$profile" ${target:+--target "$target"} -p hugelift-library --lib --crate-type staticlib
mkdir -p "$out"
# Each new file is renamed into place: a program may have the old one mapped.
place() { mv "$out/.$1.new" "$out/$1"; }
cp "$built/libhugelift.a" "$out/.libhugelift.a.new"
place libhugelift.a

flags=(-shared -Wl,-soname,libhugelift.so.0 -Wl,--version-script="$here/hugelift.map")
# LD_PRELOAD=libhugelift.so lifts a program by this function. In the archive nothing refers to it.
flags+=(-Wl,-init,hugelift_preload)
# The library stays loaded: its code may be at work when another thread calls dlclose(3).
flags+=(-Wl,-z,defs,-z,now,-z,relro,-z,noexecstack,-z,nodelete -Wl,--gc-sections -Wl,--as-needed)
[ "$profile" = dev ] || flags+=(-Wl,-s)
# An undefined symbol takes what is exported out of the archive.
symbols=$(sed -n 's/^    \([A-Za-z_]*\);$/\1/p' "$here/hugelift.map")
for symbol in hugelift_preload $symbols; do flags+=(-Wl,-u,"$symbol"); done
"${CC:-cc}" -o "$out/.libhugelift.so.0.new" "${flags[@]}" "$out/libhugelift.a" \
  -lgcc_s -lpthread -ldl -lm -lc
place libhugelift.so.0
ln -sf libhugelift.so.0 "$out/libhugelift.so"
