#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the missing programs and libraries that a task needs. Without root or apt it names them.
#
#   ci/setup.sh build    a C compiler and Rust, to build and to run the demo
#   ci/setup.sh lint     as for build, and rustfmt and clippy
#   ci/setup.sh dist     as for build, and what packages are made with
#   ci/setup.sh test     as for build, and the real programs and libraries that tests and benchmarks use
#
# A program counts as present if it is in PATH, however it was installed. The exit status is 1 only if
# the build or the lint itself lacks something: a test without its program prints SKIP, or fails under
# REQUIRE_ALL=1. The script starts no service.
set -uo pipefail
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
cd "$(dirname "$0")/.." || exit 1

# Each entry is a command (or a library that cc must find, or a path) and packages, of which the first that apt
# offers is installed.
build=("cc gcc" "make make" "libc.a libc6-dev" "musl-gcc musl-tools")
packaging=("dpkg-deb dpkg" "python3 python3" "rpmbuild rpm")
tests=(
  "c++ g++"
  "chromium chromium chromium-browser"
  "clang++ clang-19 @newest-clang clang"
  "busybox busybox-static busybox"
  "cmake cmake"
  "containerd containerd containerd.io"
  "etcd etcd-server etcd"
  "fish fish"
  "gdb gdb"
  "git git"
  "go golang-go"
  "ip iproute2"
  "java default-jdk-headless default-jre-headless"
  "ld.gold binutils-gold binutils"
  "ld.lld lld-19 lld"
  "libck.a libck-dev"
  "libcrypto.a libssl-dev"
  "liblmdb.a liblmdb-dev"
  "libmaxminddb.a libmaxminddb-dev"
  "librocksdb.a librocksdb-dev"
  "libsqlite3.a libsqlite3-dev"
  "liburcu-memb.a liburcu-dev"
  "lintian lintian"
  "llvm-bolt bolt-19 bolt-18 bolt-16"
  "man man-db"
  "mold mold"
  "mariadbd mariadb-server-core mariadb-server-core-10.6 mariadb-server"
  "ministat ministat"
  "mkfs.btrfs btrfs-progs"
  "bindfs bindfs"
  "mkfs.ext4 e2fsprogs"
  "mkfs.xfs xfsprogs"
  "nginx nginx-light nginx"
  "node nodejs"
  "/usr/share/nodejs/typescript/lib/typescript.js node-typescript"
  "objdump binutils"
  "openssl openssl"
  "pg_ctlcluster postgresql"
  "patch patch"
  "perf linux-perf linux-tools-generic"
  "podman podman"
  "promtool prometheus"
  "pkg-config pkg-config pkgconf"
  "php php-cli"
  "php-fpm php-fpm"
  "/usr/bin/python3 python3"
  "/usr/lib/python3/dist-packages/numpy python3-numpy"
  "/usr/share/maven-repo/org/apache/lucene/lucene-core/8.x/lucene-core-8.x.jar liblucene8-java"
  "redis-cli redis-tools"
  "redis-server redis-server"
  "rpmbuild rpm"
  "runc runc containerd.io"
  "sbcl sbcl"
  "script bsdutils util-linux"
  "setcap libcap2-bin"
  "setpriv util-linux"
  "strace strace"
  "sysbench sysbench"
  "taskset util-linux"
  "sysctl procps"
  "libseccomp.a libseccomp-dev"
  "/usr/share/containers/seccomp.json golang-github-containers-common"
  "setpriv util-linux"
  "systemd-analyze systemd"
  "systemd-tmpfiles systemd systemd-standalone-tmpfiles"
  "unshare util-linux"
  "/usr/lib/cni/bridge containernetworking-plugins"
  "/usr/lib/python3/dist-packages/yaml python3-yaml"
  "/usr/lib/systemd/systemd systemd"
  "valgrind valgrind"
  "wrk wrk"
  "zsh zsh"
)

# Returns 0 if the command or library is here. Debian installs some commands with a version in the name
# or outside the user's PATH.
present() {
  case $1 in
  /*)
    [ -e "$1" ]
    return
    ;;
  *.a)
    # For a library that it cannot find, cc prints the bare name.
    [[ $(cc -print-file-name="$1" 2>/dev/null) == /* ]] && return
    ;;
  esac
  PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null && return
  compgen -G "/usr/bin/$1-[0-9]*" >/dev/null || compgen -G "/usr/sbin/$1[0-9]*" >/dev/null
}

apt() {
  apt-get -y -qq -o DPkg::Lock::Timeout=120 -o Acquire::Retries=2 -o Acquire::http::Timeout=30 "$@" </dev/null
}

# An old package list names packages that the mirror no longer has.
refresh_lists() {
  [ -n "$(find /var/lib/apt/lists -name '*_Packages*' -mtime -1 2>/dev/null | head -n1)" ] || update_lists || true
}

# Gets new package lists, once; returns 1 later. Lists that are new may lack an archive of the sources: those of a root
# that debootstrap has made hold that which it was made of alone.
updated=
update_lists() {
  [ -z "$updated" ] || return 1
  updated=1
  apt update >/dev/null || echo "setup: apt-get update failed; the old package lists are used"
}

# Lets apt read Debian's security archive too, from the mirror of the main archive, if no source names it: a root that
# debootstrap has made knows the main archive alone, whose Rust may be too old. Only this script reads that archive: no
# file in /etc is changed. Returns 1 if there is nothing to add.
add_security() {
  local known line
  [ -z "${APT_CONFIG-}" ] || return 1
  known=$(apt-cache policy 2>/dev/null)
  [[ $known != *-security/* ]] || return 1
  line=$(sed -n 's#^ *[0-9]* \(http[^ ]*\)/debian/* \([a-z]*\)/main .*#\1/debian-security \2-security main#p' <<<"$known" | head -n1)
  [ -n "$line" ] || return 1
  parts=$(mktemp -d) || return 1
  trap clean EXIT
  mkdir "$parts/sources"
  cp /etc/apt/sources.list.d/* "$parts/sources" 2>/dev/null
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $line" >"$parts/sources/hugelift.list"
  echo "Dir::Etc::sourceparts \"$parts/sources\";" >"$parts/apt.conf"
  export APT_CONFIG=$parts/apt.conf
  echo "setup: no source of apt names Debian's security archive; it is read for this once"
  apt update >/dev/null || echo "setup: apt-get update failed for that archive"
}

# Removes what the script needs only while it runs.
clean() {
  [ -z "$policy" ] || rm -f "$policy"
  [ -z "$parts" ] || rm -rf "$parts"
}
policy='' parts=''

candidate() { # prints the first of these packages that apt can install
  local package
  for package in "$@"; do
    if [ "$package" = @newest-clang ]; then
      package=$(apt-cache search --names-only '^clang-[0-9]+$' | cut -d' ' -f1 | sort -V | tail -n1)
    fi
    # A pipe to `grep -q` would not do: it may end first, which is a failure under pipefail.
    if [[ $(apt-cache policy "$package" 2>/dev/null) =~ Candidate:\ [^\(] ]]; then
      echo "$package"
      return
    fi
  done
}

install() {
  echo "setup: installing $*"
  # This policy keeps apt from starting servers among the packages. It is removed afterwards.
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    policy=/usr/sbin/policy-rc.d
    trap clean EXIT
    trap 'exit 1' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy
  fi
  apt install --no-install-recommends "$@" >/dev/null && return
  # If one package cannot be installed, the others still are, one by one.
  local package
  for package in "$@"; do apt install --no-install-recommends "$package" >/dev/null; done
}

need_packages() { # "command package..."...; status 1 if one is missing at the end
  local entry words package missing=() packages=()
  for entry in "$@"; do
    read -r -a words <<<"$entry"
    present "${words[0]}" || missing+=("$entry")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    refresh_lists
    for entry in "${missing[@]}"; do
      read -r -a words <<<"$entry"
      package=$(candidate "${words[@]:1}")
      if [ -z "$package" ] && update_lists; then package=$(candidate "${words[@]:1}"); fi
      [ -z "$package" ] || packages+=("$package")
    done
    [ ${#packages[@]} -eq 0 ] || install "${packages[@]}"
  fi
  local status=0
  for entry in "${missing[@]}"; do
    read -r -a words <<<"$entry"
    present "${words[0]}" && continue
    echo "setup: missing: ${words[0]} (apt-get install ${words[1]})"
    status=1
  done
  return $status
}

offered() { # prints the version of a package that apt can install, or "(none)"
  apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: *//p' | grep . || echo "(none)"
}

# Prints the packages with the first Rust of version $1 or newer that apt offers, else rustup, which downloads one.
# Most distributions have an older rustc than the code needs; Debian has a newer one for its browsers, rustc-web.
rust_packages() {
  local package version
  for package in rustc rustc-web; do
    version=$(apt-cache policy "$package" 2>/dev/null | sed -n 's/^ *Candidate: *\([^( ].*\)/\1/p')
    if [ -n "$version" ] && dpkg --compare-versions "$version" ge "$1"; then
      echo "$package ${package/rustc/cargo}"
      return
    fi
  done
  candidate rustup
}

install_rust() { # the oldest version that will do
  local packages
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! command -v rustup >/dev/null; then
    refresh_lists
    read -r -a packages <<<"$(rust_packages "$1")"
    if [ ${#packages[@]} -eq 0 ] && update_lists; then read -r -a packages <<<"$(rust_packages "$1")"; fi
    if [ ${#packages[@]} -eq 0 ] && add_security; then read -r -a packages <<<"$(rust_packages "$1")"; fi
    # cargo and rustup download by HTTPS. A bare system trusts no server yet.
    [ ${#packages[@]} -eq 0 ] || install "${packages[@]}" ca-certificates
  fi
  # A new rustup has no compiler yet.
  if command -v rustup >/dev/null && ! rustc --version >/dev/null 2>&1; then
    echo "setup: installing Rust with rustup"
    rustup toolchain install --profile minimal stable >/dev/null 2>&1 && rustup default stable >/dev/null 2>&1
  fi
  hash -r
}

rust_version() { # empty unless cargo works too: a rustup without a compiler has both as wrappers
  cargo --version >/dev/null 2>&1 && rustc --version 2>/dev/null | cut -d' ' -f2
}

need_rust() {
  local want got
  want=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
  [ -n "$(rust_version)" ] || install_rust "$want"
  got=$(rust_version)
  if [ -z "$got" ]; then
    echo "setup: missing: cargo and rustc $want or newer; apt offers rustc $(offered rustc) and rustc-web" \
      "$(offered rustc-web), and no rustup (https://rustup.rs installs it)"
    return 1
  elif [ "$(printf '%s\n' "$want" "$got" | sort -V | head -n1)" != "$want" ]; then
    echo "setup: rustc is $got, but $want or newer is needed (rustup update stable)"
    return 1
  fi
}

need_component() { # component, subcommand of cargo; installs the component if it is missing
  cargo "$2" --version >/dev/null 2>&1 && return
  command -v rustup >/dev/null && rustup component add "$1" && return
  echo "setup: missing: cargo $2 (rustup component add $1)"
  return 1
}

# Installs Miri if there is a nightly toolchain. It does not install a toolchain only for Miri.
want_miri() {
  command -v rustup >/dev/null && rustup run nightly cargo --version >/dev/null 2>&1 || return 0
  rustup run nightly cargo miri --version >/dev/null 2>&1 ||
    rustup component add --toolchain nightly miri rust-src >/dev/null 2>&1 ||
    echo "setup: missing: Miri (rustup component add --toolchain nightly miri rust-src)"
}

# Downloads the source of redis, which a test patches and builds, once, with lists of its own: most systems have no
# lists of sources.
want_redis_source() {
  local to=${XDG_CACHE_HOME:-$HOME/.cache}/hugelift/redis lists file options
  compgen -G "$to/redis_*.orig.tar.gz" >/dev/null && return
  command -v apt-get >/dev/null && command -v dpkg-source >/dev/null || return 0
  lists=$(mktemp -d)
  mkdir -p "$to" "$lists/parts" "$lists/state/partial" "$lists/cache/archives/partial"
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list.d/ubuntu.sources; do
    [ -e "$file" ] || continue
    sed -e 's/^deb /deb-src /' -e 's/^Types:.*/Types: deb-src/' "$file" >"$lists/parts/${file##*/}"
  done
  options=(-o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$lists/parts")
  options+=(-o "Dir::State::lists=$lists/state" -o "Dir::Cache=$lists/cache" -o APT::Sandbox::User=root)
  mv "$lists/parts/sources.list" "$lists/parts/main.list" 2>/dev/null
  (cd "$to" && apt "${options[@]}" update && apt "${options[@]}" source --download-only redis) >/dev/null 2>&1 ||
    echo "setup: missing: the source of redis (apt-get source redis)"
  rm -rf "$lists"
}

# Takes Docker's default seccomp profile out of Debian's package of its source, without the 250 packages that this needs.
want_docker_profile() {
  local to=${XDG_CACHE_HOME:-$HOME/.cache}/hugelift work
  [ ! -s "$to/docker-seccomp.json" ] && command -v apt-get >/dev/null || return 0
  work=$(mktemp -d)
  mkdir -p "$to"
  (cd "$work" && apt download golang-github-docker-docker-dev >/dev/null 2>&1 && dpkg-deb -x ./*.deb . &&
    cp usr/share/gocode/src/github.com/docker/docker/profiles/seccomp/default.json "$to/docker-seccomp.json") ||
    echo "setup: missing: the seccomp profile of Docker (apt-get download golang-github-docker-docker-dev)"
  rm -rf "$work"
}

status=0
case ${1:-build} in
  build | test)
    need_packages "${build[@]}" || status=1
    need_rust || status=1
    [ "${1:-build}" = build ] || want_miri
    [ "${1:-build}" = build ] || need_packages "${tests[@]}" || true
    [ "${1:-build}" = build ] || want_redis_source
    [ "${1:-build}" = build ] || want_docker_profile
    ;;
  dist)
    need_packages "${build[@]}" || status=1
    need_rust || status=1
    need_packages "${packaging[@]}" || status=1
    ;;
  lint)
    # A linker is needed too: build scripts are linked even to check a crate.
    need_packages "${build[@]}" || status=1
    need_rust || status=1
    need_component rustfmt fmt || status=1
    need_component clippy clippy || status=1
    ;;
  *)
    echo "usage: ci/setup.sh build|lint|test|dist"
    exit 2
    ;;
esac
exit $status
