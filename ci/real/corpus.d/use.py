# SPDX-License-Identifier: Apache-2.0
"""Imports Python extensions, and opens other shared objects: use.py SITE|- FILE... Prints what each offers."""
import ctypes, importlib, os, re, sys

site, files = sys.argv[1], sys.argv[2:]
suffixes = r"(\.cpython-[^/]*|\.abi3|\.pypy[^/]*)?\.so$"
seen = set()
for path in sorted(files):
    name = os.path.relpath(path, site) if site != "-" else path
    module = re.sub(suffixes, "", name).replace("/", ".")
    is_module = site != "-" and path.endswith(".so") and re.match(r"^[\w.]+$", module)
    try:
        if is_module:
            found = importlib.import_module(module)
            print(name, "module", len(dir(found)), sorted(dir(found))[:400], flush=True)
            continue
    except BaseException as error:
        # A part of a package need not be a module.
        print(name, type(error).__name__, str(error)[:300], flush=True)
    if ".so" in os.path.basename(path):
        try:
            ctypes.CDLL(path, mode=ctypes.DEFAULT_MODE)
            print(name, "opened", flush=True)
        except OSError as error:
            print(name, "not opened:", str(error)[:300], flush=True)
    elif os.access(path, os.X_OK):
        import subprocess
        for option in ("--version", "--help"):
            try:
                out = subprocess.run([path, option], stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
                print(name, option, out.returncode, out.stdout.decode(errors="replace"), out.stderr.decode(errors="replace"), flush=True)
            except (OSError, subprocess.TimeoutExpired) as error:
                print(name, option, type(error).__name__, flush=True)
