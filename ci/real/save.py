#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what a save from a child (BGSAVE of redis) costs, with the server's memory on small pages, on transparent huge pages from
the start, and lifted just before the save. Prints JSON in the form of `hugelift compare --json`.

    ci/real/save.py FOLDER HUGELIFT SECONDS [PAIRS [MB]]

In each round each side saves once, in random order. Every server has loaded the same data. Huge pages that are written to while a
child shares them are split, and stay so. So the side "THP from the start" has a new server in each round; "THP, saved before" is
that of a server that has saved once, as most saves find it.
"""

import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import time

import stats

VALUE, RATE = 1000, 2500
SIDES = ("small pages", "THP from the start", "THP, saved before", "lifted before the save")


def cpus():
    """The CPUs of the server with its client, and of the child."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


class Server:
    def __init__(self, folder, hugelift, side):
        self.folder, self.hugelift, self.side = os.path.join(folder, re.sub(r"\W", "-", side)), hugelift, side
        os.makedirs(self.folder, exist_ok=True)
        self.socket = os.path.join(self.folder, "socket")
        served, saved = cpus()
        words = ["redis-server", "--port", "0", "--unixsocket", self.socket, "--save", "", "--appendonly", "no"]
        words += ["--disable-thp", "yes" if side == "small pages" else "no", "--dir", self.folder, "--rdbcompression", "no"]
        words += ["--server_cpulist", str(served), "--bgsave_cpulist", str(saved)]
        # The allocator's own switch; without it jemalloc asks for no huge pages.
        environment = dict(os.environ, MALLOC_CONF="thp:always") if side.startswith("THP") else None
        self.log = open(os.path.join(self.folder, "log"), "w")
        self.process = subprocess.Popen(words, env=environment, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        for _ in range(600):
            if self.process.poll() is not None:
                break
            try:
                self.connection = socket.socket(socket.AF_UNIX)
                self.connection.connect(self.socket)
                self.answers = self.connection.makefile("rb")
                if self.ask("PING") == b"PONG":
                    return
            except (OSError, RuntimeError):
                pass
            time.sleep(0.05)
        self.process.kill()
        sys.exit(f"redis-server of {side} did not start")

    def send(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)

    def answer(self):
        line = self.answers.readline().rstrip(b"\r\n")
        if line[:1] == b"-":
            raise RuntimeError(line.decode())
        if line[:1] == b"$" and int(line[1:]) >= 0:
            return self.answers.read(int(line[1:]) + 2)[:-2]
        return line[1:]

    def ask(self, *words):
        self.connection.sendall(self.send(*words))
        return self.answer()

    def info(self, name):
        for line in self.ask("INFO", "everything").decode().splitlines():
            if line.startswith(name + ":"):
                return float(line.split(":")[1])
        sys.exit(f"redis has no {name}")

    def huge(self):
        """MB of its anonymous memory on huge pages, and of all its memory."""
        with open(f"/proc/{self.process.pid}/smaps_rollup") as file:
            text = file.read()
        return [int(re.search(name + r":\s+(\d+)", text)[1]) / 1024 for name in ("AnonHugePages", "Rss")]

    def fill(self, keys, value):
        for start in range(0, keys, 500):
            some = range(start, min(start + 500, keys))
            self.connection.sendall(b"".join(self.send("SET", f"key{key}", value[key % 97 : key % 97 + VALUE]) for key in some))
            for _ in some:
                self.answer()

    def load(self, keys, value, ended):
        """Writes random keys at a steady rate until `ended`; returns the latencies, from the moment when each was due. What this
        client slept too long is not counted."""
        times, due, checked = [], time.perf_counter(), time.perf_counter()
        while True:
            now = time.perf_counter()
            if now - checked > 0.02:
                checked = now
                if ended():
                    return times
            start = due
            if now < due:
                time.sleep(due - now)
                start = time.perf_counter()
            key = random.randrange(keys)
            self.ask("SET", f"key{key}", value[key % 97 : key % 97 + VALUE])
            times.append(time.perf_counter() - start)
            due += 1 / RATE
            # A client that lags behind by seconds measures itself.
            due = max(due, time.perf_counter() - 1)

    def save(self, keys, value):
        figures, lifting = {}, []
        if self.side.startswith("lifted"):
            began = time.perf_counter()
            words = [self.hugelift, "attach", "--parts", "heap,anon", str(self.process.pid)]
            lift = subprocess.Popen(words, stdout=self.log, stderr=self.log, preexec_fn=lambda: os.sched_setaffinity(0, {cpus()[1]}))
            # Commands wait for the lift too.
            lifting = self.load(keys, value, lambda: lift.poll() is not None)
            figures = {"lift_s": time.perf_counter() - began, "lift_max_us": max(lifting) * 1e6}
            if lift.returncode:
                sys.exit(f"hugelift attach: status {lift.returncode}")
        before = self.huge()
        file = os.path.join(self.folder, "dump.rdb")
        if os.path.exists(file):
            os.remove(file)
        # Without the save, for comparison.
        stop = time.perf_counter() + 0.3
        calm = self.load(keys, value, lambda: time.perf_counter() > stop)
        self.ask("BGSAVE")
        began = time.perf_counter()
        checked = [began]

        def ended():
            # Whether it still saves costs a question, so that it is asked once a second.
            if os.path.exists(file):
                return True
            if time.perf_counter() - checked[0] < 1:
                return False
            checked[0] = time.perf_counter()
            return not self.info("rdb_bgsave_in_progress")

        times = self.load(keys, value, ended)
        if not os.path.exists(file):
            sys.exit("redis could not save its data; its log: " + self.log.name)
        figures["save_s"] = time.perf_counter() - began
        while self.info("rdb_bgsave_in_progress"):
            time.sleep(0.01)
        after = self.huge()
        times.sort()
        at = lambda share: times[min(len(times) - 1, int(len(times) * share))] * 1e6
        figures |= {
            "fork_us": self.info("latest_fork_usec"),
            "p99_us": at(0.99),
            "p999_us": at(0.999),
            "max_us": max(times + lifting) * 1e6,
            "calm_p99_us": statistics.quantiles(calm, n=100)[-1] * 1e6,
            "added_mb": self.info("rdb_last_cow_size") / (1 << 20),
            "huge_before_mb": before[0],
            "huge_after_mb": after[0],
            "rss_mb": before[1],
            "commands": len(times),
        }
        return figures

    def end(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()


def main():
    folder, hugelift, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    rounds, mega = int(sys.argv[4]) if len(sys.argv) > 4 else 100, int(sys.argv[5]) if len(sys.argv) > 5 else 256
    os.sched_setaffinity(0, {cpus()[0]})
    keys, value = (mega << 20) // VALUE, random.Random(1).randbytes(VALUE + 100)
    end, runs, servers = time.monotonic() + seconds, {side: [] for side in SIDES}, {}
    try:

        def start(side):
            servers[side] = Server(folder, hugelift, side)
            servers[side].fill(keys, value)
            if side == "THP, saved before":
                servers[side].save(keys, value)

        for side in SIDES:
            if side != "THP from the start":
                start(side)
        longest, pair = 0, 0
        while pair < rounds and (pair < 6 or time.monotonic() + longest < end):
            pair, began = pair + 1, time.monotonic()
            for position, side in enumerate(random.sample(SIDES, len(SIDES))):
                if side == "THP from the start":
                    start(side)
                runs[side].append({"pair": pair, "position": position + 1, **servers[side].save(keys, value)})
                if side == "THP from the start":
                    servers.pop(side).end()
            longest = max(longest, time.monotonic() - began)
    finally:
        for server in servers.values():
            server.end()
    variants = []
    for side in SIDES[1:]:
        ratios = []
        for figure in ("fork_us", "p99_us", "p999_us", "max_us", "added_mb", "save_s"):
            pairs = [(first[figure], second[figure]) for first, second in zip(runs[SIDES[0]], runs[side])]
            estimate = stats.ratio(pairs)
            if estimate:
                ratios.append({"figure": figure, **estimate})
        judged = next((ratio for ratio in ratios if ratio["figure"] == "p999_us"), None)
        variants.append({"name": side, "verdict": stats.verdict(judged), "ratios": ratios})
    medians = {side: {key: statistics.median(run[key] for run in runs[side]) for key in runs[side][0] if key[:4] not in ("pair", "posi")} for side in SIDES}
    sides = [{"name": side, "runs": runs[side], "medians": medians[side]} for side in SIDES]
    json.dump({"figure": "p999_us", "mb": mega, "writes_per_second": RATE, "sides": sides, "variants": variants}, sys.stdout)


if __name__ == "__main__":
    main()
