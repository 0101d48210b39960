#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists the crates in the command hugelift, as cargo has resolved them.

    ci/dependencies.py sbom TARGET       a bill of materials: JSON in the form of CycloneDX 1.5
    ci/dependencies.py notices TARGET    copyright notices and licenses, as the crates' files have them

TARGET is a target of Rust. The lists have the crates that are needed to build the command as well as those that are
linked into it, and not those of tests. The C library, which is linked into it too, is no crate and is not listed. The
same sources and the same compiler make the same lists; SOURCE_DATE_EPOCH is their time.
"""

import json
import os
import pathlib
import subprocess
import sys
import time
import tomllib

COMMAND = "hugelift"


def output(*words):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


class Crates:
    """The crates that the command needs: `packages` by cargo's ids, and for each id the `needed` ids."""

    def __init__(self, target):
        resolved = json.loads(output("cargo", "metadata", "--format-version=1", "--locked", "--filter-platform", target))
        everything = {package["id"]: package for package in resolved["packages"]}
        nodes = {node["id"]: node for node in resolved["resolve"]["nodes"]}
        own = set(resolved["workspace_members"])
        self.command = next(id for id in own if everything[id]["name"] == COMMAND)
        self.needed = {}
        queue = [self.command]
        while queue:
            id = queue.pop()
            if id not in self.needed:
                wanted = (d["pkg"] for d in nodes[id]["deps"] if any(k["kind"] != "dev" for k in d["dep_kinds"]))
                self.needed[id] = sorted(wanted)
                queue += self.needed[id]
        ids = sorted(self.needed, key=lambda id: (everything[id]["name"], everything[id]["version"]))
        self.packages = {id: everything[id] for id in ids}
        self.foreign = [package for id, package in self.packages.items() if id not in own]


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def license_of(package):
    # Old crates write "MIT/Apache-2.0", which SPDX no longer allows.
    return (package["license"] or "NOASSERTION").replace("/", " OR ")


def component(package, checksums):
    entry = {
        "type": "library",
        "bom-ref": purl(package),
        "name": package["name"],
        "version": package["version"],
        "licenses": [{"expression": license_of(package)}],
        "purl": purl(package),
    }
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        entry["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return entry


def sbom(target):
    crates = Crates(target)
    locked = tomllib.loads(pathlib.Path("Cargo.lock").read_text())["package"]
    checksums = {(p["name"], p["version"]): p.get("checksum") for p in locked}
    rust = {
        "type": "library",
        "bom-ref": "rust-std",
        "name": "rust-std",
        "version": output("rustc", "--version").split()[1],
        "licenses": [{"expression": "MIT OR Apache-2.0"}],
    }
    command = component(crates.packages[crates.command], checksums) | {"type": "application"}
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    others = [package for id, package in crates.packages.items() if id != crates.command]
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)),
            "component": command,
            "properties": [{"name": "rust:target", "value": target}],
        },
        "components": [component(package, checksums) for package in others] + [rust],
        "dependencies": [
            {"ref": purl(package), "dependsOn": sorted(purl(crates.packages[needed]) for needed in crates.needed[id])}
            for id, package in crates.packages.items()
        ],
    }
    print(json.dumps(bill, indent=1))


def notices(target):
    # Many crates have the same text of a license.
    crates_of = {}
    foreign = Crates(target).foreign
    for package in foreign:
        folder = pathlib.Path(package["manifest_path"]).parent
        names = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")
        files = sorted(f for f in folder.iterdir() if f.is_file() and f.name.upper().startswith(names))
        for file in files:
            text = file.read_text(errors="replace").strip()
            crates_of.setdefault(text, []).append(f"{package['name']} {package['version']}")
    print("hugelift contains these crates, Rust's standard library (MIT OR Apache-2.0) and a C library.\n")
    for package in foreign:
        print(f"{package['name']} {package['version']}: {license_of(package)}")
    for text, crates in crates_of.items():
        print(f"\n{'=' * 80}\n{', '.join(crates)}:\n\n{text}")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("sbom", "notices"):
        sys.exit("usage: ci/dependencies.py sbom|notices TARGET")
    {"sbom": sbom, "notices": notices}[sys.argv[1]](sys.argv[2])
