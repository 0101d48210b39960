# SPDX-License-Identifier: Apache-2.0
"""The estimate that `hugelift compare` makes, for the comparisons that it cannot make itself (ci/real/pairs.py).

    python3 ci/real/stats.py        tests it
"""

import math
import statistics
import sys


def critical(n, level=0.05):
    """The largest number of Walsh averages at each end that the interval leaves out: the exact distribution of Wilcoxon's
    signed ranks up to 60 pairs, then the normal one. Returns None if there are too few pairs."""
    if n <= 60:
        ways = [1]
        for rank in range(1, n + 1):
            longer = ways + [0] * rank
            for at, count in enumerate(ways):
                longer[at + rank] += count
            ways = longer
        below, least = 0, level / 2 * 2**n
        for at, count in enumerate(ways):
            below += count
            if below > least:
                return at - 1 if at > 0 else None
    mean, deviation = n * (n + 1) / 4, math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    return math.floor(mean - 1.959964 * deviation - 0.5)


def ratio(pairs):
    """The Hodges-Lehmann estimate of second to first, and its 95 % interval. Fewer than six pairs have none."""
    logs = [math.log(second / first) for first, second in pairs if first > 0 and second > 0]
    if len(logs) < 6:
        return None
    averages = sorted((a + b) / 2 for at, a in enumerate(logs) for b in logs[at:])
    left_out = critical(len(logs))
    point, low, high = statistics.median(averages), averages[left_out], averages[-left_out - 1]
    return {"point": math.exp(point), "low": math.exp(low), "high": math.exp(high), "pairs": len(logs)}


def verdict(estimate):
    """What the interval allows to say."""
    if estimate is None:
        return "too-few-pairs"
    return "faster" if estimate["high"] < 1 else "slower" if estimate["low"] > 1 else "no-difference"


def self_test():
    # The published table of Wilcoxon's signed ranks, two-sided 5 %: the largest sum of ranks that is significant.
    for n, sum_ in ((5, None), (6, 0), (7, 2), (8, 3), (10, 8), (20, 52), (25, 89), (50, 434)):
        assert critical(n) == sum_, (n, critical(n))
    assert abs(critical(61) - 668) <= 12
    same = ratio([(1, 0.9)] * 8)
    assert all(abs(same[end] - 0.9) < 1e-9 for end in ("point", "low", "high")) and verdict(same) == "faster"
    mixed = ratio([(1, 1.1), (1, 0.9), (1, 1.2), (1, 0.8), (1, 1.05), (1, 0.97), (1, 1.01)])
    assert mixed["low"] < 1 < mixed["high"] and verdict(mixed) == "no-difference"
    assert ratio([(1, 2)] * 5) is None and verdict(None) == "too-few-pairs"


if __name__ == "__main__":
    sys.exit(self_test())
