#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the manual pages and the completions from the definition of the options: OUTDIR/man/*.1,
# OUTDIR/completions/hugelift.bash, _hugelift (zsh) and hugelift.fish.
set -euo pipefail
[ $# = 1 ] || { echo "usage: ci/manual.sh OUTDIR" >&2 && exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
# For this machine and without optimization, whatever hugelift itself is built for: the program runs for a moment.
cargo run --quiet -p hugelift-manual -- "$out"
