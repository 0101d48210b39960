#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs unit tests under Miri, which detects use after free, data races and pointers that may not be used so. It knows
# no mremap(2), fork(2) or ptrace(2): what makes such calls is left out.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/miri
miri=(rustup run nightly cargo miri)
"${miri[@]}" --version >/dev/null 2>&1 || {
  echo "miri: missing (rustup toolchain install nightly --component miri,rust-src)"
  exit 1
}
"${miri[@]}" test -p hugelift-epoch --lib --test stress
"${miri[@]}" test -p hugelift-library --lib -- registry_tests:: words:: c::options:: advice::
