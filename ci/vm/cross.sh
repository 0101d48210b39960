# shellcheck shell=bash disable=SC2034,SC2154 # variables of the scripts that source it
# SPDX-License-Identifier: Apache-2.0
# Sets up builds for either architecture; needs lib.sh.

# Sets cargo (an array), cc, strip and readelf for architecture $1. If that is not this machine's
# architecture, it also sets variables that cargo reads, and binaries are static.
cross() {
  cargo=(cargo) strip=strip readelf=readelf cc=cc
  [ "$1" != "$(uname -m)" ] || return 0
  export RUSTFLAGS='-C target-feature=+crt-static'
  # Emulation is slow and the guest's memory small: optimize, and make no debug information, which would be
  # stripped.
  export CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0
  cc=$cache/bin/aarch64-gcc strip=$cache/bin/aarch64-strip
  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$cc
  # What build scripts compile, as SQLite. The compiler is one for glibc: for musl it gets the headers of musl alone, and no
  # function of libgcc for atomics, which would ask glibc what the CPU can do.
  export CC_aarch64_unknown_linux_gnu=$cc CC_aarch64_unknown_linux_musl=$cc
  export CFLAGS_aarch64_unknown_linux_musl="-nostdinc -isystem $cache/tools/usr/include/aarch64-linux-musl -mno-outline-atomics"
  # Without rustup ci/vm/prepare has put Debian's compiler here.
  [ ! -x "$cache/bin/rustc" ] || cargo=(env "RUSTC=$cache/bin/rustc" cargo)
}

# Prints the target of Rust for which the command that ships is built for the architecture $1, after `cross`: with musl
# if Rust has it, or can get it. Without rustup the standard library may be there for glibc only.
shipped_target() {
  local target=$1-unknown-linux-musl
  if [ "${#cargo[@]}" -gt 1 ] || ! { has_std "$target" || { rustup target add "$target" && has_std "$target"; }; } >&2; then
    target=$1-unknown-linux-gnu
  fi
  echo "$target"
}

has_std() { [ -d "$(rustc --print target-libdir --target "$1")" ]; }

# Builds the command that ships for the target $1, after `cross`: static, at fixed addresses; needs remap.sh.
release() {
  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=$cc
  # shellcheck disable=SC2154 # set by remap.sh
  case $1 in
  *-musl) set_rustflags "${no_unwind_tables[@]}" ;;
  *) set_rustflags ;;
  esac
  "${cargo[@]}" rustc -q --release --target "$1" -p hugelift --bin hugelift -- -C relocation-model=static
}
