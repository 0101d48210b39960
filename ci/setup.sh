#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what a task needs and is missing, where root and apt allow it; else names it.
#
#   ci/setup.sh build    a C compiler and Rust, to build and to run the demo
#   ci/setup.sh test     also the real programs that the tests lift
#
# A program counts as present if it can be found on PATH, from wherever it came. The exit
# status is 1 only if what the build itself needs is missing: a test without its program
# says SKIP, or fails under REQUIRE_ALL=1.
set -uo pipefail

# command, package (first of several that apt offers)
build=("cc gcc" "make make")
tests=(
  "c++ g++"
  "musl-gcc musl-tools"
  "clang++ clang-19 clang-18 clang-17 clang"
  "gdb gdb"
  "go golang-go"
  "java default-jdk-headless default-jre-headless"
  "mariadbd mariadb-server-core mariadb-server-core-10.6 mariadb-server"
  "node nodejs"
  "python3 python3"
  "redis-cli redis-tools"
  "redis-server redis-server"
  "setcap libcap2-bin"
  "setpriv util-linux"
  "strace strace"
  "unshare util-linux"
)

# Debian installs these with a version in the name or outside the user's PATH.
present() {
  command -v "$1" >/dev/null && return
  PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null && return
  compgen -G "/usr/bin/$1-[0-9]*" >/dev/null
}

updated=
candidate() { # the first of these packages that apt can install
  if [ -z "$updated" ]; then
    updated=1
    # An old list names packages that are gone from the mirror.
    apt-get update -qq >/dev/null 2>&1 || true
  fi
  local package
  for package in "$@"; do
    if apt-cache policy "$package" 2>/dev/null | grep -q 'Candidate: [^(]'; then
      echo "$package"
      return
    fi
  done
}

wanted=("${build[@]}")
[ "${1:-build}" = test ] && wanted+=("${tests[@]}")

missing=()
for entry in "${wanted[@]}"; do
  read -r command _ <<<"$entry"
  present "$command" || missing+=("$entry")
done

if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  packages=()
  for entry in "${missing[@]}"; do
    read -r -a words <<<"$entry"
    package=$(candidate "${words[@]:1}")
    [ -z "$package" ] || packages+=("$package")
  done
  if [ ${#packages[@]} -gt 0 ]; then
    echo "setup: installing ${packages[*]}"
    # No server of these packages is to be started: a policy of our own for this one call.
    policy=/usr/sbin/policy-rc.d
    made=
    if [ ! -e $policy ]; then
      printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy && made=1
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
    [ -z "$made" ] || rm -f $policy
  fi
fi

status=0
for entry in "${missing[@]}"; do
  read -r -a words <<<"$entry"
  present "${words[0]}" && continue
  echo "setup: missing: ${words[0]} (apt-get install ${words[1]})"
  for needed in "${build[@]}"; do
    [ "$entry" != "$needed" ] || status=1
  done
done
if ! command -v cargo >/dev/null; then
  echo "setup: missing: cargo (install Rust $(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml") or newer)"
  status=1
fi
exit $status
