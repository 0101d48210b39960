#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares commands that `hugelift compare` cannot compare with each other: programs with switches of their own, other
builds, servers that run side by side. All run once in each round, in random order. The report is JSON in the form of
`hugelift compare --json`.

    ci/real/pairs.py [options] NAME::COMMAND NAME::COMMAND...

Each COMMAND runs in a shell; the first is the bare one.

    --time SECONDS    stop after this time (60)
    --pairs N         stop after so many rounds
    --metric REGEX    also compare this number of the output: each first group is a figure
    --name NAME       the name of the metric
    --per REGEX       the CPU time is that for one unit of this number in the output
    --pid NAME::PID   the CPU time of this side is that of a server and its children
    --figure cpu|wall|METRIC   what the verdict is on (cpu)
    --against NAME::OTHER      also gives the ratio of the first to the second
    --prepare COMMAND runs before each; SIDE names the side
"""

import argparse
import ctypes
import json
import os
import random
import re
import resource
import subprocess
import sys
import time

import stats


def ticks(pid):
    """CPU seconds of a server, of its children that have ended, and of those that run."""
    total, hertz = 0, os.sysconf("SC_CLK_TCK")
    with open(f"/proc/{pid}/stat") as file:
        total += sum(map(int, file.read().rsplit(")", 1)[1].split()[11:15]))
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        for child in file.read().split():
            try:
                with open(f"/proc/{child}/stat") as file_:
                    total += sum(map(int, file_.read().rsplit(")", 1)[1].split()[11:13]))
            except FileNotFoundError:
                pass
    return total / hertz


def found(pattern, output, what):
    numbers = re.findall(pattern, output)
    if not numbers:
        sys.exit(f"pairs: no {what} ({pattern}) in: {output[-500:]}")
    return float(numbers[-1])


def adopt_orphans():
    """Makes this process the parent of its children's orphans: the helper of `hugelift run` is one, and its CPU time counts."""
    if ctypes.CDLL(None).prctl(36, 1, 0, 0, 0):  # PR_SET_CHILD_SUBREAPER
        sys.exit("pairs: prctl(PR_SET_CHILD_SUBREAPER) fails")


def reap_orphans():
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.002)
        except ChildProcessError:
            return


def run(options, name, command, pid):
    environment = dict(os.environ, SIDE=name)
    if options.prepare:
        subprocess.run(["bash", "-c", options.prepare], env=environment, check=True, stdout=subprocess.DEVNULL)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    server = ticks(pid) if pid else 0
    done = subprocess.run(
        ["bash", "-c", command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    wall = time.monotonic() - began
    reap_orphans()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"pairs: {name}: status {done.returncode}: {done.stdout[-500:]}")
    cpu = ticks(pid) - server if pid else after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if options.per:
        cpu /= found(options.per, done.stdout, "number of units")
    result = {"wall": wall, "cpu": cpu}
    if options.metric:
        result[options.name] = found(options.metric, done.stdout, "metric")
    return result


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--time", type=float, default=60)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--metric")
    parser.add_argument("--name", default="metric")
    parser.add_argument("--per")
    parser.add_argument("--pid", action="append", default=[])
    parser.add_argument("--figure", default="cpu")
    parser.add_argument("--prepare")
    parser.add_argument("--against", action="append", default=[])
    parser.add_argument("sides", nargs="+")
    options = parser.parse_args()
    adopt_orphans()
    commands = dict(side.split("::", 1) for side in options.sides)
    pids = dict(pid.split("::", 1) for pid in options.pid)
    names, runs = list(commands), {name: [] for name in commands}
    end, longest, pair = time.monotonic() + options.time, 0, 0
    # What a first run reads from the disk is not measured.
    for name in names:
        run(options, name, commands[name], pids.get(name))
    while pair < options.pairs and (pair < 6 or time.monotonic() + longest < end):
        pair += 1
        began = time.monotonic()
        for position, name in enumerate(random.sample(names, len(names))):
            runs[name].append({"pair": pair, "position": position + 1, **run(options, name, commands[name], pids.get(name))})
        longest = max(longest, time.monotonic() - began)
    variants = []
    compared = [(name, name, names[0]) for name in names[1:]]
    for name, other in (both.split("::", 1) for both in options.against):
        compared.append((f"{name}, to {other}", name, other))
    for shown, name, base in compared:
        ratios = []
        for figure in runs[name][0]:
            pairs = [(first[figure], second[figure]) for first, second in zip(runs[base], runs[name])]
            estimate = stats.ratio(pairs) if figure not in ("pair", "position") else None
            if estimate:
                ratios.append({"figure": figure, **estimate})
        judged = next((ratio for ratio in ratios if ratio["figure"] == options.figure), None)
        variants.append({"name": shown, "side": name, "base": base, "verdict": stats.verdict(judged), "ratios": ratios})
    sides = [{"name": name, "command": commands[name], "runs": runs[name]} for name in names]
    method = "Hodges-Lehmann estimate of the ratio of each pair, 95 % interval by inverting Wilcoxon's signed-rank test"
    json.dump({"method": method, "figure": options.figure, "sides": sides, "variants": variants}, sys.stdout)


if __name__ == "__main__":
    main()
