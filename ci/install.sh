#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what `make build`, `make library` and ci/manual.sh have made, or removes it:
#
#   ci/install.sh [install|uninstall]
#
# The command comes with its library, its systemd units, its manual pages and completions for three shells; the library
# for programs that lift themselves with its headers, its pkg-config and CMake files and its Python module.
#
# PREFIX   where it will be used (/usr/local)
# DESTDIR  a folder that stands for / while a package is made
# COMMAND  the folder with hugelift and libhugelift_inside.so (target/release); empty leaves the command out
# MANUAL   the folder that ci/manual.sh has filled (target/manual)
# LIBRARY  the folder with libhugelift.a and libhugelift.so.0 (target/library/out); empty leaves the library out
# LIBDIR   the folder of libraries below PREFIX (lib)
set -euo pipefail
shopt -s extglob
umask 022
cd "$(dirname "$0")/.."
action=${1:-install}
prefix=${PREFIX:-/usr/local} here=crates/library
built=${CARGO_TARGET_DIR:-target}
command=${COMMAND-$built/release} manual=${MANUAL:-$built/manual} library=${LIBRARY-$built/library/out}
to=${DESTDIR:-}$prefix
libdir=${LIBDIR:-lib}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n1)

case $action in
  install)
    put() { # MODE SOURCE FILE
      install -D -m"$1" "$2" "$to/$3"
    }
    fill() { # TEMPLATE FILE
      mkdir -p "$(dirname "$to/$2")"
      # The systemd units can also be used as they are, with the command of a package.
      sed -e "s|@PREFIX@|$prefix|g" -e "s|@VERSION@|$version|g" -e "s|@LIBDIR@|$libdir|g" \
        -e "s|@UP@|${libdir//+([!\/])/..}|g" -e "s|/usr/bin/hugelift|$prefix/bin/hugelift|g" \
        "$1" >"$to/$2"
      chmod 644 "$to/$2"
    }
    ;;
  uninstall)
    put() { rm -f "$to/$3"; }
    fill() { rm -f "$to/$2"; }
    ;;
  *)
    echo "usage: ci/install.sh [install|uninstall]"
    exit 2
    ;;
esac

units=(hugelift.service)

# Stops the daemons of the units that are removed. Those of a package with another prefix go on.
stop_daemons() {
  local unit
  is_systemd_here || return 0
  for unit in "${units[@]}"; do
    case $(systemctl show --property FragmentPath "$unit") in
      "FragmentPath=$prefix/"*) systemctl stop "$unit" || echo "systemctl stop $unit failed" ;;
    esac
  done
}

# Removes the links of `systemctl enable` to the units that are removed.
forget_units() {
  local unit
  for unit in "${units[@]}"; do
    [ ! -d "${DESTDIR:-}/etc/systemd/system" ] ||
      find "${DESTDIR:-}/etc/systemd/system" -type l -lname "$prefix/lib/systemd/system/$unit" -delete
  done
  ! is_systemd_here || systemctl daemon-reload || echo "systemctl daemon-reload failed"
}

is_systemd_here() { [ -z "${DESTDIR:-}" ] && [ "$(id -u)" = 0 ] && [ -d /run/systemd/system ]; }

install_command() {
  local page unit
  [ "$action" = install ] || stop_daemons
  put 755 "$command/hugelift" bin/hugelift
  put 644 "$command/libhugelift_inside.so" lib/hugelift/libhugelift_inside.so
  if [ "$action" = uninstall ] && [ -x "$to/lib/hugelift/unwrap-all" ]; then
    DPKG_ROOT=${DESTDIR:-} "$to/lib/hugelift/unwrap-all"
  fi
  for script in convert unwrap-all; do put 755 packaging/$script lib/hugelift/$script; done
  # Version 0.1.0 was installed with its library here. The command would prefer it to the new one.
  rm -f "$to/bin/libhugelift_inside.so"
  for unit in "${units[@]}"; do fill "systemd/$unit" "lib/systemd/system/$unit"; done
  [ "$action" = install ] || forget_units
  put 644 systemd/service.toml share/doc/hugelift/examples/service.toml
  put 644 "$manual/completions/hugelift.bash" share/bash-completion/completions/hugelift
  put 644 "$manual/completions/_hugelift" share/zsh/site-functions/_hugelift
  put 644 "$manual/completions/hugelift.fish" share/fish/vendor_completions.d/hugelift.fish
  if [ "$action" = uninstall ]; then
    rm -f "$to"/share/man/man1/hugelift.1 "$to"/share/man/man1/hugelift-*.1
  else
    for page in "$manual"/man/*.1; do put 644 "$page" "share/man/man1/${page##*/}"; done
  fi
}

install_library() {
  put 755 "$library/libhugelift.so.0" "$libdir/libhugelift.so.0"
  put 644 "$library/libhugelift.a" "$libdir/libhugelift.a"
  if [ "$action" = uninstall ]; then rm -f "$to/$libdir/libhugelift.so"; else ln -sf libhugelift.so.0 "$to/$libdir/libhugelift.so"; fi
  for header in hugelift.h hugelift.hpp hugelift/compat/elfremapper.h hugelift/compat/large_page.h; do
    put 644 "$here/include/$header" "include/$header"
  done
  fill $here/hugelift.pc.in "$libdir/pkgconfig/hugelift.pc"
  for file in hugelift-config.cmake hugelift-config-version.cmake; do
    fill "$here/$file.in" "$libdir/cmake/hugelift/$file"
  done
  put 644 $here/python/hugelift.py share/hugelift/python/hugelift.py
  # The loader finds new libraries by its cache. A package does this when it is installed.
  if [ -z "${DESTDIR:-}" ]; then
    PATH=$PATH:/usr/sbin:/sbin
    if [ "$(id -u)" != 0 ]; then
      echo "run ldconfig as root, if $prefix/$libdir is a folder of the loader"
    elif command -v ldconfig >/dev/null; then
      ${LDCONFIG:-ldconfig}
    fi
  fi
}

[ -z "$command" ] || install_command
[ -z "$library" ] || install_library

# The folders that hold nothing but files of hugelift, inner ones first.
if [ "$action" = uninstall ]; then
  for folder in lib/hugelift "$libdir/cmake/hugelift" include/hugelift/compat include/hugelift share/hugelift/python \
    share/hugelift share/doc/hugelift/examples share/doc/hugelift; do
    [ ! -d "$to/$folder" ] || rmdir --ignore-fail-on-non-empty "$to/$folder"
  done
fi
