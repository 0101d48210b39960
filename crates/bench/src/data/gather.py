# SPDX-License-Identifier: Apache-2.0
# numpy: sums of elements at random places, of an array that is mapped; with its own switch, of one that is read into memory.
# The words are those of reader.h.
import os
import sys

import numpy

ELEMENTS = 300_000_000 // 8
PLACES = 2_000_000
DRAWS = 10
SUMS_OF_A_DRAW = 5

command, folder = sys.argv[1:]
path = os.path.join(folder, "data.npy")
random = numpy.random.default_rng(31)
if command == "make":
    numpy.save(path, random.random(ELEMENTS))
    sys.exit()
array = numpy.load(path, mmap_mode=None if command == "own" else "r")
total = 0.0
for _ in range(DRAWS):
    places = random.integers(0, ELEMENTS, PLACES)
    for _ in range(SUMS_OF_A_DRAW):
        total += float(numpy.take(array, places).sum())
print(total, flush=True)
sys.stdin.read()
