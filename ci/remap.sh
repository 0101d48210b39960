# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Makes two builds in different folders the same bytes; for scripts that source it in the top folder.

# Flags of rustc for static programs with musl. (glibc unwinds the stack where a thread is cancelled.)
# shellcheck disable=SC2034 # of the scripts that source it
no_unwind_tables=(-C "link-arg=-Wl,--no-eh-frame-hdr" -C "link-arg=-Wl,-T,$PWD/ci/no-unwind-tables.ld")

# Sets the flags of rustc: the words of RUSTFLAGS, those given, and flags by which no path of this machine is in what is
# built. cargo reads CARGO_ENCODED_RUSTFLAGS instead of RUSTFLAGS; in it a path may have spaces.
set_rustflags() {
  local words rust
  # Where the source of the standard library is installed, its paths are those of this machine too.
  rust=$(rustc --print sysroot)/lib/rustlib/src/rust=/rustc/$(rustc -vV | sed -n 's/^commit-hash: //p')
  read -r -a words <<<"${RUSTFLAGS:-}"
  words+=("$@" "--remap-path-prefix=$PWD=/hugelift" "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo")
  words+=("--remap-path-prefix=$rust")
  printf -v CARGO_ENCODED_RUSTFLAGS '%s\x1f' "${words[@]}"
  export CARGO_ENCODED_RUSTFLAGS=${CARGO_ENCODED_RUSTFLAGS%$'\x1f'}
}
