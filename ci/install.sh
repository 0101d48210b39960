#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what `make build` has built: the command and its library, and the library for programs that lift
# themselves with its headers, its pkg-config and CMake files and its Python module.
#
# PREFIX   where it will be used (/usr/local)
# DESTDIR  a folder that stands for / while a package is made
# LIBRARY  the folder with libhugelift.a and libhugelift.so.0 (target/library)
# COMMAND  the folder with hugelift (target/release); empty leaves the command out
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=${PREFIX:-/usr/local} here=crates/library
built=${CARGO_TARGET_DIR:-target}
library=${LIBRARY:-$built/library/out} command=${COMMAND-$built/release}
to=${DESTDIR:-}$prefix
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n1)

if [ -n "$command" ]; then
  install -D -m755 "$command/hugelift" "$to/bin/hugelift"
  # The command looks for this file beside itself.
  install -D -m755 "$command/libhugelift_inside.so" "$to/bin/libhugelift_inside.so"
fi
install -D -m755 "$library/libhugelift.so.0" "$to/lib/libhugelift.so.0"
ln -sf libhugelift.so.0 "$to/lib/libhugelift.so"
install -D -m644 "$library/libhugelift.a" "$to/lib/libhugelift.a"
for header in hugelift.h hugelift.hpp hugelift/compat/elfremapper.h hugelift/compat/large_page.h; do
  install -D -m644 "$here/include/$header" "$to/include/$header"
done
fill() { # TEMPLATE FILE
  mkdir -p "$(dirname "$2")"
  sed -e "s|@PREFIX@|$prefix|g" -e "s|@VERSION@|$version|g" "$1" >"$2"
}
fill $here/hugelift.pc.in "$to/lib/pkgconfig/hugelift.pc"
for file in hugelift-config.cmake hugelift-config-version.cmake; do
  fill "$here/$file.in" "$to/lib/cmake/hugelift/$file"
done
install -D -m644 $here/python/hugelift.py "$to/share/hugelift/python/hugelift.py"
# The loader finds new libraries by its cache. A package does this when it is installed.
if [ -z "${DESTDIR:-}" ]; then
  PATH=$PATH:/usr/sbin:/sbin
  if [ "$(id -u)" != 0 ]; then
    echo "run ldconfig as root, if $prefix/lib is a folder of the loader"
  elif command -v ldconfig >/dev/null; then
    ${LDCONFIG:-ldconfig}
  fi
fi
