#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# vm_build.sh CC DIR: compiles the vm_*.c victims into DIR, as NAME.KIND.
set -eu
cc=$1 out=$2
here=$(dirname "$0")
mkdir -p "$out"

make() { # make NAME KIND OPTION...
  name=$1 kind=$2
  shift 2
  "$cc" -O2 -Wall -Wextra -Werror -pthread "$@" -o "$out/$name.$kind" "$here/$name.c" \
    -Wl,--section-start=.big.text=0x40000000,--section-start=.big.rodata=0x84000000
}

for name in vm_big vm_threads vm_parts; do
  make "$name" static -static -no-pie
  make "$name" static-pie -static-pie -fPIE
  make "$name" dynamic -no-pie
  make "$name" pie -pie -fPIE
done
make vm_touched static -static -no-pie
# Programs that run while they are lifted. Their functions are bound at the start, because the loader needs more
# stack than a small coroutine has. 98304 functions have 6 MB. An emulated machine may be late by seconds.
for name in live vm_wait; do
  "$cc" -O1 -Wall -Wextra -Werror -pthread -DFAT_FUNCTIONS=98304 -DMAY_BE_LATE -Wl,-z,now -pie -fPIE -s \
    -o "$out/$name.pie" "$here/$name.c"
done
# A program whose code is smaller than a huge page. Its functions are bound when they are first called.
"$cc" -O2 -g -Wall -Wextra -Werror -DFAT_FUNCTIONS=16384 -funwind-tables -fno-math-errno -static-libgcc -Wl,-z,lazy -pie -fPIE \
  -o "$out/vm_separate.pie" "$here/vm_separate.c"
# The names of a program's functions are there for dladdr(3) only if they are exported.
make vm_symbols dynamic -no-pie -rdynamic -static-libgcc -funwind-tables
make vm_symbols pie -pie -fPIE -rdynamic -static-libgcc -funwind-tables
case $("$cc" -dumpmachine) in
  aarch64*)
    # With start code of its own: the start files of most systems have no landing pads, and the
    # linker warns about each of them.
    make vm_big bti -pie -fPIE -mbranch-protection=standard -Wl,-z,force-bti -nostartfiles \
      "$here/vm_start.S" 2>"$out/log" || { cat "$out/log" && exit 1; }
    make vm_mte pie -pie -fPIE
    ;;
esac
rm -f "$out/log"
