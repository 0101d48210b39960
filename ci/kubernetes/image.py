#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""image.py NAME:TAG ROOT TAR COMMAND...: makes an image of one layer, the files of the folder ROOT as root's, without a registry.

IMAGE_USER is the user of its process (root). The archive is what `docker save` writes, which `ctr images import` reads.
"""

import hashlib
import io
import json
import os
import pathlib
import sys
import tarfile


def owned_by_root(member):
    """Makes the file root's, at a fixed time: the same files are the same layer."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = "root"
    return member


def layer_of(root):
    """Returns the layer, a tar archive."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for path in sorted(pathlib.Path(root).iterdir()):
            archive.add(path, path.name, filter=owned_by_root)
    return layer.getvalue()


def main():
    name, root, tar, command = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
    layer = layer_of(root)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"User": os.environ.get("IMAGE_USER", ""), "Entrypoint": command, "Env": ["PATH=/bin"], "Labels": {"made.as": name}},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
    }
    manifest = [{"Config": "config.json", "RepoTags": ["docker.io/library/" + name], "Layers": ["layer.tar"]}]
    with tarfile.open(tar, "w") as archive:
        for file, content in [
            ("layer.tar", layer),
            ("config.json", json.dumps(config).encode()),
            ("manifest.json", json.dumps(manifest).encode()),
        ]:
            member = tarfile.TarInfo(file)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


main()
