#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps the results of the worked examples, and makes a table of them.

    ci/real/results.py keep DIR CASE [options] <JSON    keeps a report of `hugelift compare --json` or of pairs.py
    ci/real/results.py due DIR CASE VERSION             status 0 if there is no result of this version
    ci/real/results.py table DIR                        writes DIR/index.md
    ci/real/results.py contradictions DIR1 DIR2         status 1 if two runs contradict each other
    ci/real/results.py self-test
"""

import argparse
import datetime
import html
import json
import math
import os
import pathlib
import platform
import re
import sys
import tempfile

import stats

THP = pathlib.Path("/sys/kernel/mm/transparent_hugepage")
# What is compared, by the word that the examples use for it.
KINDS = {
    "program": "programs from start to end, bare and under `hugelift run`",
    "code": "a server or a program that works: its code is lifted and restored in turn",
    "pages": "the same: its code has small pages or huge ones in turn, all else stays",
    "memory": "the same, of the memory that it writes",
    "parts": "the same, part by part",
    "files": "a data file in small pages or huge ones of the page cache",
    "shared": "two servers side by side, one with its shared memory on huge pages",
    "switch": "programs with their own switch for huge pages, or other tools, beside hugelift",
    "layout": "one program, laid out by its profile or not, lifted or not; the lift is made at the start of each run and counts",
    "fork": "servers that save from a child",
}
FIGURES = {
    "cpu": "CPU time",
    "wall": "wall time",
    "cpu-per-unit": "CPU time per unit of work",
    "server-cpu": "CPU time per transaction",
    "cpu-per-second": "CPU time per second",
    "fork_us": "time of fork",
    "p999_us": "p99.9 of a command during the save",
    "p99_us": "p99 of a command during the save",
    "max_us": "the longest command during the save, and the lift",
    "added_mb": "memory added by the save",
    "save_s": "time of the save",
}


# Paths of this machine stay out of the results: of a path, only the last name is kept, but for those of the system.
def without_paths(value):
    if isinstance(value, dict):
        return {key: without_paths(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_paths(item) for item in value]
    if isinstance(value, str):
        return re.sub(r"(?<![\w./*])(?<!\w:)/(?!(?:usr|lib|lib64|bin|sbin|proc|sys|etc)/|dev/null)(?:[\w.+~@-]+/)+", "", value)
    return value


def rounded(value):
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


# Of the runs of a side each field becomes a list; a field that is the same in all runs is written once.
def in_columns(runs):
    columns = {key: [run.get(key) for run in runs] for key in (runs[0] if runs else {})}
    return {key: values if any(value != values[0] for value in values) else values[0] for key, values in columns.items()}


def field(side, key):
    """The values of one field, as many as there are pairs."""
    columns = side["runs"]
    values = columns.get(key)
    return values if isinstance(values, list) else [values] * len(columns.get("pair", []) or [])


def machine():
    read = lambda path: path.read_text().strip() if path.is_file() else None
    chosen = lambda name: (re.findall(r"\[(\S+)\]", read(THP / name) or "") or [None])[0]
    cpuinfo = read(pathlib.Path("/proc/cpuinfo")) or ""
    models = re.findall(r"^(?:model name|CPU part)\s*:\s*(.+)$", cpuinfo, re.M)
    family = re.findall(r"^(?:cpu family|model|stepping)\s*:\s*(\d+)$", cpuinfo, re.M)[:3]
    return {
        "cpu": models[0] if models else platform.machine(),
        "family_model_stepping": "/".join(family),
        "cpus": os.cpu_count(),
        "guest": " hypervisor" in cpuinfo,
        "kernel": platform.release(),
        "thp": {name: chosen(name) for name in ("enabled", "defrag", "shmem_enabled")},
    }


ADVICE = ("verdict", "entries", "first_entries", "data_verdict", "data_reach_bytes", "extents")


def advice_of(path):
    try:
        advice = json.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError):
        return None
    kept = {key: advice.get(key) for key in ADVICE}
    heat = advice.get("heat") or {}
    return {**kept, "pages": heat.get("pages"), "samples": heat.get("samples"), "jit_samples": heat.get("jit_samples")}


def keep(options):
    folder = pathlib.Path(options.dir)
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "case": options.case,
        "example": options.example,
        "title": options.title,
        "kind": options.kind,
        "label": options.label,
        "version": options.version,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
        "command": options.command,
    }
    reason = next((key for key in ("skipped", "failed", "nothing") if getattr(options, key)), None)
    if reason:
        # What follows the reason is advice, with the id of the process.
        record[reason] = re.sub(r" \(process \d+\)|; (hugelift|it is left|\d).*", "", getattr(options, reason)).removeprefix("hugelift: ")
    else:
        result = json.load(sys.stdin)
        for side in result.get("sides", []):
            side["runs"] = in_columns(side["runs"])
        record["advice"] = advice_of(options.advice) if options.advice else None
        if options.advice_after:
            record["advice_after"] = advice_of(options.advice_after)
        record["result"] = result
    text = json.dumps(rounded(without_paths(record)), separators=(",", ":"))
    # One line for each part, so that a change of a result can be read.
    text = re.sub(r',"(title|version|machine|command|advice|advice_after|result|sides|variants)":', r',\n"\1":', text) + "\n"
    # A result that is there is whole.
    part = folder / f".{options.case}.part"
    part.write_text(text)
    part.rename(folder / f"{options.case}.json")
    if "result" in record:
        picture = svg(json.loads(text))
        if picture:
            (folder / f"{options.case}.svg").write_text(picture)


def is_done(folder, case, version):
    try:
        record = json.loads((pathlib.Path(folder) / f"{case}.json").read_text())
    except (OSError, ValueError):
        return False
    return record.get("version") == version and ("result" in record or "nothing" in record)


def records(folder):
    found = []
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        try:
            record = json.loads(path.read_text())
        except ValueError:
            sys.exit(f"results: {path} is no JSON")
        if isinstance(record, dict) and "case" in record:
            found.append(record)
    return found


# The folder, in that of the results, of those of a second run.
AGAIN = "again"


class Row:
    """One estimate of one variant of a case."""

    def __init__(self, record, name, ratio, variant, side, bare):
        self.record, self.name, self.ratio, self.variant = record, name, ratio, variant
        self.side, self.bare = side or {}, bare or {}
        self.key = (record["case"], name, ratio["figure"] if ratio else "")

    @property
    def sure(self):
        """-1 for less, 1 for more, 0 if the interval contains 1."""
        return 0 if not self.ratio else -1 if self.ratio["high"] < 1 else 1 if self.ratio["low"] > 1 else 0


def both(first, second):
    """What two runs say: the interval reaches over both of theirs, so that only that is sure of which both are."""
    if not first or not second:
        return first or second
    return {
        "figure": first["figure"],
        "point": math.sqrt(first["point"] * second["point"]),
        "low": min(first["low"], second["low"]),
        "high": max(first["high"], second["high"]),
        "pairs": " + ".join(str(run.get("pairs", "?")) for run in (first, second)),
    }


def with_interval(ratio):
    """The estimate, or None: too few pairs have no interval."""
    return ratio if ratio and ratio.get("low") and ratio.get("high") else None


def rows(record):
    result, made = record.get("result"), []
    if not result:
        return made
    for part in result.get("parts", []):
        ratio = part.get("ratio") and {"figure": "cpu-per-unit", **part["ratio"]}
        name = f"{part['part']} of {os.path.basename(part['object'])}"
        if part.get("warmth"):
            name = f"{'code in use' if part['warmth'] == 'hot' else 'the rest of the code'} of {os.path.basename(part['object'])}"
        made.append(Row(record, name, with_interval(ratio), part, {}, {}))
    sides = {side["name"]: side for side in result.get("sides", [])}
    bare = result["sides"][0] if result.get("sides") else {}
    for variant in result.get("variants", []):
        wanted = result["figure"] if record["kind"] != "fork" else None
        # The main figure is what the verdict is on; of a save, all are.
        ratios = [r for r in variant["ratios"] if wanted in (None, r["figure"])] or [None]
        for ratio in ratios:
            side, base = sides.get(variant.get("side", variant["name"])), sides.get(variant.get("base"), bare)
            made.append(Row(record, variant["name"], with_interval(ratio), variant, side, base))
    return made


def huge(memory):
    """Bytes of code and constants, and of memory that is written, on huge pages."""
    if not memory:
        return None, None
    return memory["text"]["huge"] + memory["rodata"]["huge"], memory["writable_huge"]


def mega(count):
    return f"{count / (1 << 20):.0f} MB"


def percent(value):
    value = abs(value) * 100
    return f"{value:.0f} %" if value >= 9.95 else f"{value:.1f} %"


def bounds(first, second):
    low, high = sorted((abs(first), abs(second)))
    return f"{percent(low)[:-2]} to {percent(high)}" if percent(low) != percent(high) else percent(high)


# What the TLB holds, against the code in use. The words differ by what was found.
def code_sentence(advice, sign):
    pages = (advice or {}).get("pages") or {}
    entries, first = (advice or {}).get("entries"), (advice or {}).get("first_entries")
    if not pages.get("estimate"):
        return "How many pages of code it uses was not found."
    count = f"its {pages['estimate']} pages of code"
    if not entries:
        return f"{count[0].upper()}{count[1:]} could not be compared with this CPU's TLB, which it hides."
    if pages["estimate"] > entries:
        text = f"{count} do not fit into this CPU's TLB of {entries} entries"
    elif first and pages["estimate"] > first:
        text = f"{count} fit into this CPU's TLB of {entries} entries, but not into its first level of {first}"
    else:
        text = f"{count} fit into the first level of this CPU's TLB ({first or entries} entries)"
        if sign < 0:
            return f"The TLB does not explain it: {text}."
    if sign > 0:
        return f"Why is not known; {text}."
    return f"{text[0].upper()}{text[1:]}."


def memory_sentence(advice):
    extents, reach = (advice or {}).get("extents") or {}, (advice or {}).get("data_reach_bytes")
    small = sum(extents.get(kind, {}).get("resident_bytes", 0) for kind in ("anonymous", "shared"))
    if not small:
        return ""
    if not reach:
        return f"It has {mega(small)} of memory; this CPU hides what its TLB holds."
    verb = "is more than" if small > reach else "is within"
    return f"Its memory of {mega(small)} {verb} what this CPU's TLB reaches with small pages ({mega(reach)})."


def why(row):
    """One or two sentences, made of the figures alone. A gain is stated only if the whole interval is below 1."""
    record, ratio, variant = row.record, row.ratio, row.variant
    # Of a program that was laid out, its code in use is another.
    is_after = variant.get("base", "").startswith("laid out") and record.get("advice_after")
    advice = record["advice_after"] if is_after else record.get("advice")
    if not ratio:
        return "Nothing to lift: no part fills a huge page." if variant.get("nothing_to_lift") else "Too few pairs."
    words = []
    low, high, kind = ratio["low"] - 1, ratio["high"] - 1, record["kind"]
    is_code = kind in ("program", "code", "pages", "parts", "layout") and not re.search(r"\ball\b.*memory|^all$", row.name)
    own, memory = row.side.get("memory"), huge(row.side.get("memory"))
    if row.sure < 0:
        words.append(f"{bounds(low, high)} less.")
    elif row.sure > 0:
        words.append(f"{bounds(low, high)} more.")
    else:
        words.append(f"No difference: at most {percent(low)} less or {percent(high)} more.")
    if own is not None and kind != "memory" and memory[0] + memory[1] == 0:
        nothing = "Nothing of it came onto huge pages"
        words.append(f"{nothing}, so this is no effect of theirs." if row.sure else f"{nothing}.")
        return " ".join(words)
    before = huge(row.bare.get("memory"))[0]
    if before and kind not in ("pages", "parts"):
        words.append(f"The bare side had {mega(before)} of its code and constants on huge pages already.")
    if kind == "program" and row.sure > 0:
        helper, wall = sum(filter(None, field(row.side, "helper"))), sum(filter(None, field(row.side, "wall")))
        if wall:
            words.append(f"The lift itself took {percent(helper / wall)} of the run.")
    if kind == "memory":
        words.append(memory_sentence(advice))
    elif kind == "files":
        extents, reach = (advice or {}).get("extents") or {}, (advice or {}).get("data_reach_bytes")
        mapped = extents.get("files", {}).get("resident_bytes", 0)
        if mapped and reach:
            words.append(f"It has mapped {mega(mapped)} of files; this CPU's TLB reaches {mega(reach)} with small pages.")
    elif kind == "layout" and row.sure > 0 and "lifted" in row.name:
        words.append(f"The lift counts. {code_sentence(advice, 0)}")
    elif is_code:
        words.append(code_sentence(advice, row.sure))
        # `compare --same-copy` maps the small pages of a copy side by side, which the program's own file does not promise.
        if kind in ("pages", "parts") and re.search("AMD|Neoverse|Apple", record["machine"]["cpu"]):
            words.append("The small pages lay side by side, so that this CPU may join them.")
    if own is not None and memory[1] and kind in ("program", "memory"):
        words.append(f"{mega(memory[1])} of written memory were huge.")
    return " ".join(filter(None, words))


def shown(ratio):
    return f"{ratio['point']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]" if ratio else ""


def visible(ratio):
    return percent((ratio["high"] - ratio["low"]) / 2) if ratio else ""


def in_use(row):
    is_after = row.variant.get("side", "").startswith("laid out")
    pages = (row.record.get("advice_after" if is_after else "advice") or {}).get("pages") or {}
    return f"{pages['estimate']} [{pages['low']}, {pages['high']}]" if pages.get("estimate") else ""


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def machine_line(record):
    m = record["machine"]
    return (
        f"{m['cpu']} ({m['family_model_stepping']}), {m['cpus']} CPUs{', in a guest' if m['guest'] else ''}; Linux {m['kernel']}; "
        f"transparent huge pages: enabled {m['thp']['enabled']}, defrag {m['thp']['defrag']}, shmem {m['thp']['shmem_enabled']}; "
        f"{record['version']}"
    )


def table(folder):
    everything = records(folder)
    measured = [record for record in everything if "result" in record]
    second = records(pathlib.Path(folder) / AGAIN)
    again = {row.key: row for record in second for row in rows(record) if row.ratio}
    lines = [
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        "<!-- Made by ci/real/results.py. -->",
        "# Worked examples",
        "",
        "Made by `make bench-real`. A ratio is that of the CPU time to bare, unless another figure is named: below 1 is a gain. It is the",
        "Hodges-Lehmann estimate of all pairs with its 95 % interval (Wilcoxon's signed ranks). *Visible* is half of the interval: the",
        "smallest effect that this comparison could have seen. *Code in use* is the number of 4 kB pages, as `hugelift advise` estimates it.",
        "The last column is made of these figures by rules; it states no gain whose interval contains 1. Each case has its file of raw",
        "results, with the command line, the date and the machine: the runs of a side are in columns, and what is the same in all runs is",
        "written once.",
        "",
    ]
    if again:
        apart = contradictions(folder, pathlib.Path(folder) / AGAIN)
        count = lambda word: sum(word in one for one in apart) or "none"
        pairs = [(row, again[row.key]) for record in measured for row in rows(record) if row.ratio and row.key in again]
        disjoint = sum(one.ratio["high"] < two.ratio["low"] or two.ratio["high"] < one.ratio["low"] for one, two in pairs)
        once = [record["case"] for record in measured if record["case"] not in {other["case"] for other in second}]
        dates, versions = sorted(record["date"] for record in second), sorted({record["version"].split(",")[0] for record in second})
        lines += [
            f"The cases were measured a second time from {dates[0]} to {dates[-1]}, with {' and '.join(versions)}) (folder `{AGAIN}`)"
            + (f"; once alone: {', '.join(once)}." if once else "."),
            "An interval holds for one run. Some things stay as they are during a run, as the places in memory of the pages of a file or of a",
            "server, and may differ in the next run. So a row has the geometric mean of both estimates, and an interval from the lower end of both",
            "to the upper end: a gain is sure if both runs are sure of it. The plots, the code in use and the bytes on huge pages are of the first run.",
            f"Of {len(pairs)} comparisons {disjoint} have two intervals that do not overlap. Where both runs are sure, {count('signs')} had a gain in one run and a loss in",
            f"the other, and {count('overlap')} had intervals that do not overlap" + (":" if apart else "."),
            "",
        ]
        lines += [f"- {one}" for one in apart] + [""] if apart else []
    machines = {}
    for record in measured:
        machines.setdefault(machine_line(record), []).append(record)
    for line, group in machines.items():
        dates = sorted(record["date"][:10] for record in group)
        lines += [f"{line}; {dates[0]}{' to ' + dates[-1] if dates[-1] != dates[0] else ''}.", ""]
        lines += ["| case | variant | ratio | visible | pairs | code in use | why |", "|---|---|---|---:|---:|---:|---|"]
        for record in sorted(group, key=lambda record: (record["example"], list(KINDS).index(record["kind"]), record["case"])):
            picture = f" [plot]({record['case']}.svg)" if (pathlib.Path(folder) / f"{record['case']}.svg").is_file() else ""
            title = f"[{record['title']}]({record['case']}.json){picture}"
            for row in rows(record):
                if row.key in again:
                    row.ratio = both(row.ratio, again[row.key].ratio)
                name = record["label"] if record["label"] and record["kind"] in ("code", "pages", "memory") else row.name
                figure = row.ratio["figure"] if row.ratio else ""
                if record["kind"] == "fork" or figure == "wall":
                    name += ": " + FIGURES.get(figure, figure)
                count = row.ratio.get("pairs", record["result"].get("pairs", "")) if row.ratio else ""
                cells = [title, name, shown(row.ratio), visible(row.ratio), count, in_use(row), why(row)]
                lines.append("| " + " | ".join(map(cell, cells)) + " |")
                title = ""
        lines.append("")
    for reason, head in (("nothing", "Nothing to compare"), ("skipped", "Skipped"), ("failed", "Failed")):
        lacking = [record for record in everything if reason in record]
        lines += [f"{head}:", ""] + [f"- {record['case']}: {record[reason]}" for record in lacking] + [""] if lacking else []
    kinds = [kind for kind in KINDS if any(record["kind"] == kind for record in measured)]
    lines += ["What is compared:", ""] + [f"- `{kind}`: {KINDS[kind]}" for kind in kinds] + [""]
    (pathlib.Path(folder) / "index.md").write_text("\n".join(lines).rstrip() + "\n")


# A small picture: for each variant the ratio of every pair as a dot, the interval as a bar, and 1 as a dashed line.
def svg(record):
    drawn = []
    for row in rows(record):
        if not row.ratio:
            continue
        figure = row.ratio["figure"]
        first, second = (dict(zip(field(side, "pair"), values(side, figure))) if side else {} for side in (row.bare, row.side))
        dots = [second[pair] / first[pair] for pair in first if second.get(pair) and first[pair]]
        label = row.name + (f", {FIGURES.get(figure, figure)}" if record["kind"] == "fork" else "")
        drawn.append((label, row.ratio, dots[:: max(1, len(dots) // 150)]))
    if not drawn:
        return None
    ends = [math.log(value) for _, ratio, _ in drawn for value in (ratio["low"], ratio["high"], 1)]
    margin = max(0.02, (max(ends) - min(ends)) * 0.6)
    low, high = min(ends) - margin, max(ends) + margin
    x = lambda value: 240 + 380 * (min(max(math.log(value), low), high) - low) / (high - low)
    height = 52 + 34 * len(drawn)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {height}" font-family="sans-serif" font-size="12">',
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        f'<rect width="800" height="{height}" fill="#fff"/><text x="10" y="18" font-weight="bold">{html.escape(record["title"])}: ratio to bare</text>',
        f'<path d="M{x(1):.1f} 28V{height - 20}" stroke="#777" stroke-dasharray="4 3"/>',
    ]
    for at, (name, ratio, dots) in enumerate(drawn):
        y = 48 + 34 * at
        colour = "#06733a" if ratio["high"] < 1 else "#b3261e" if ratio["low"] > 1 else "#555"
        marks = "".join(f"M{x(dot):.1f} {y + 8 + 3 * (i % 3)}h0" for i, dot in enumerate(dots))
        parts.append(f'<text x="10" y="{y + 4}" font-size="10">{html.escape(name[:46])}</text><path d="{marks}" stroke="#99b" stroke-width="3" stroke-linecap="round"/>')
        parts.append(f'<path d="M{x(ratio["low"]):.1f} {y}H{x(ratio["high"]):.1f}" stroke="{colour}" stroke-width="4"/>')
        parts.append(f'<circle cx="{x(ratio["point"]):.1f}" cy="{y}" r="5" fill="{colour}"/><text x="640" y="{y + 4}">{shown(ratio)}</text>')
    ticks = [f'<text x="{x(math.exp(end)):.0f}" y="{height - 6}" text-anchor="middle">{math.exp(end):.2g}</text>' for end in (low, high)]
    return "\n".join(parts + ticks + [f'<text x="{x(1):.0f}" y="{height - 6}" text-anchor="middle">1</text>', "</svg>"]) + "\n"


# The values of a figure, one for each run. `compare` names some figures otherwise than the field of its runs.
def values(side, figure):
    columns = side["runs"]
    if figure in columns:
        return field(side, figure)
    if figure == "cpu":
        return [sum(filter(None, parts)) for parts in zip(*(field(side, key) for key in ("user", "system", "helper")))]
    names = {"cpu-per-unit": "server_cpu", "server-cpu": "server_cpu", "cpu-per-second": "cpu_per_second", "metric": "metric"}
    return field(side, names.get(figure, figure))


def contradictions(first, second):
    """The estimates of which both runs are sure, and that do not agree."""
    theirs = {row.key: row for record in records(second) for row in rows(record)}
    found = []
    for record in records(first):
        for row in rows(record):
            other = theirs.get(row.key)
            if not other or not row.sure or not other.sure:
                continue
            apart = row.ratio["high"] < other.ratio["low"] or other.ratio["high"] < row.ratio["low"]
            if row.sure != other.sure or apart:
                how = "opposite signs" if row.sure != other.sure else "intervals that do not overlap"
                found.append(f"{' '.join(row.key)}: {how}: {shown(row.ratio)} and {shown(other.ratio)}")
    return found


def self_test():
    stats.self_test()

    def case(name, low, high, pages=100, kind="code", memory=30 << 20, **more):
        ratio = {"figure": "cpu", "point": (low + high) / 2, "low": low, "high": high, "pairs": 8}
        side = lambda name, huge_: {
            "name": name,
            "memory": {"text": {"whole": huge_, "huge": huge_}, "rodata": {"whole": 0, "huge": 0}, "writable_huge": 0},
            "runs": in_columns([{"pair": p, "user": 1 + p / 100, "system": 0.0, "helper": 0.1, "wall": 1.5} for p in range(8)]),
        }
        return {
            "case": name, "example": name, "title": f"{name} | a title", "kind": kind, "label": "all code", "version": "1",
            "date": "2026-01-01 00:00 UTC", "machine": machine(), "command": "hugelift compare",
            "advice": {"pages": {"estimate": pages, "low": pages - 5, "high": pages + 5}, "entries": 512, "first_entries": 64},
            "result": {"figure": "cpu", "sides": [side("bare", 0), side("lifted", memory)],
                       "variants": [{"name": "lifted", "verdict": "", "nothing_to_lift": False, "ratios": [ratio]}]},
            **more,
        }  # fmt: skip

    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        put = lambda folder, record: (pathlib.Path(folder) / f"{record['case']}.json").write_text(json.dumps(record))
        for record in (
            case("gain", 0.8, 0.9, 646), case("none", 0.98, 1.01), case("edge", 0.9, 1.0), case("loss", 1.1, 1.2, kind="program"),
            case("bare", 0.8, 0.9, 20), case("empty", 0.9, 0.95, memory=0),
        ):  # fmt: skip
            put(one, record)
        skipped = {key: value for key, value in case("gone", 1, 1).items() if key != "result"}
        put(one, {**skipped, "skipped": "needs wrk"})
        table(one)
        text = (pathlib.Path(one) / "index.md").read_text()
        lines = {name: next(line for line in text.splitlines() if f"({name}.json)" in line) for name in ("gain", "none", "edge", "loss", "bare", "empty")}
        assert "10 to 20 % less. Its 646 pages of code do not fit into this CPU's TLB of 512 entries." in lines["gain"], lines
        for name in ("none", "edge"):
            assert "No difference: at most" in lines[name] and not re.search(r"\d % less\. ", lines[name]), lines[name]
        assert "but not into its first level of 64" in lines["none"]
        assert "10 to 20 % more. The lift itself took 6.7 % of the run." in lines["loss"], lines["loss"]
        assert "The TLB does not explain it" in lines["bare"]
        assert "no effect of theirs" in lines["empty"]
        assert "Skipped:\n\n- gone: needs wrk\n" in text and "gain \\| a title" in text
        assert "<svg" in svg(case("gain", 0.8, 0.9))
        assert is_done(one, "gain", "1") and not is_done(one, "gain", "2") and not is_done(one, "gone", "1")
        few = case("few", 0.9, 0.95)
        few["result"]["variants"][0]["ratios"][0].update(low=None, high=None)
        assert svg(few) is None and why(rows(few)[0]) == "Too few pairs."
        put(two, case("gain", 0.92, 0.95))
        put(two, case("loss", 0.8, 0.9))
        put(two, case("none", 0.8, 0.9))
        found = contradictions(one, two)
        assert len(found) == 2 and "overlap" in found[0] and "opposite signs" in found[1], found
        assert not contradictions(one, one)
        # Of what the runs disagree on nothing is said.
        pathlib.Path(two).rename(pathlib.Path(one) / AGAIN)
        pathlib.Path(two).mkdir()
        table(one)
        text = (pathlib.Path(one) / "index.md").read_text()
        lines = {name: next(line for line in text.splitlines() if f"({name}.json)" in line) for name in ("gain", "none", "loss", "bare")}
        assert "| 0.891 [0.800, 0.950] | 7.5 % | 8 + 8 |" in lines["gain"] and "5.0 to 20 % less." in lines["gain"], lines["gain"]
        assert "No difference: at most" in lines["loss"] and "No difference: at most" in lines["none"], lines
        assert "[0.800, 0.900]" in lines["bare"] and "Of 6 comparisons" not in text, lines["bare"]
        assert "Of 3 comparisons 3 have two intervals that do not overlap. Where both runs are sure, 1 had a gain" in text, text
    assert without_paths({"a": ["/tmp/x.y/node -e '/usr/lib/a' a/b /proc/1/x /dev/null"]}) == {"a": ["node -e '/usr/lib/a' a/b /proc/1/x /dev/null"]}
    assert without_paths("peer::/home/me/peer /usr/bin/node") == "peer::peer /usr/bin/node"
    assert without_paths("s/[^/]*x//;http://127.0.0.1:1/a --path=/home/me/data") == "s/[^/]*x//;http://127.0.0.1:1/a --path=data"


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    commands = parser.add_subparsers(dest="do", required=True)
    add = commands.add_parser("keep")
    add.add_argument("dir")
    add.add_argument("case")
    for name in ("example", "title", "kind", "label", "version", "command", "advice", "advice-after", "skipped", "failed", "nothing"):
        add.add_argument(f"--{name}", default="", choices=list(KINDS) if name == "kind" else None)
    add = commands.add_parser("due")
    for name in ("dir", "case", "version"):
        add.add_argument(name)
    commands.add_parser("table").add_argument("dir")
    add = commands.add_parser("contradictions")
    add.add_argument("first")
    add.add_argument("second")
    commands.add_parser("self-test")
    options = parser.parse_args()
    if options.do == "keep":
        keep(options)
    elif options.do == "due":
        sys.exit(is_done(options.dir, options.case, options.version))
    elif options.do == "table":
        table(options.dir)
    elif options.do == "contradictions":
        for folder in (options.first, options.second):
            if not records(folder):
                sys.exit(f"results: there are no results in {folder}")
        found = contradictions(options.first, options.second)
        print("\n".join(found) or "no contradictions")
        sys.exit(bool(found))
    else:
        self_test()


if __name__ == "__main__":
    main()
