#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""schemas.py SWAGGER CRD FOLDER: writes JSON schemas for kubeconform, strict ones: keys that are not known are errors.

SWAGGER is api/openapi-spec/swagger.json of Kubernetes, CRD a CustomResourceDefinition in YAML. For each kind FOLDER gets a file
KIND-GROUP-VERSION.json, as kubeconform names them.
"""

import json
import pathlib
import re
import sys

import yaml

# Types whose text form the OpenAPI document calls a string.
LOOSE = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
}


def strict(schema):
    """Returns the schema with unknown keys forbidden wherever keys are named."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["string", "integer"]}
    closed = {key: strict(value) for key, value in schema.items() if not key.startswith("x-kubernetes")}
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and not open_ended:
        closed["additionalProperties"] = False
    return closed


def write(folder, group, version, kind, schema):
    """Writes a schema that also demands the kind and its version."""
    name = "-".join(filter(None, [kind.lower(), group.split(".")[0], version])) + ".json"
    api = f"{group}/{version}" if group else version
    fixed = {"properties": {"apiVersion": {"const": api}, "kind": {"const": kind}}, "required": ["apiVersion", "kind"]}
    (folder / name).write_text(json.dumps({**schema, "allOf": schema.get("allOf", []) + [fixed]}))


def reachable(name, definitions):
    """Returns the definitions that this one refers to, and itself."""
    found, waiting = {}, [name]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = definitions[name]
            waiting += re.findall(r'"#/definitions/([^"]+)"', json.dumps(found[name]))
    return found


def of_kubernetes(swagger, folder):
    """Writes the kinds of Kubernetes."""
    kinds = json.loads(pathlib.Path(swagger).read_text())["definitions"]
    definitions = {**strict(kinds), **LOOSE}
    for name, definition in kinds.items():
        for gvk in definition.get("x-kubernetes-group-version-kind", []):
            if name.startswith("io.k8s.apimachinery") or gvk["kind"].endswith("List"):
                continue
            schema = {"allOf": [{"$ref": "#/definitions/" + name}], "definitions": reachable(name, definitions)}
            write(folder, gvk["group"], gvk["version"], gvk["kind"], schema)


def of_crd(path, folder):
    """Writes the versions of a custom resource."""
    spec = yaml.safe_load(pathlib.Path(path).read_text())["spec"]
    for version in spec["versions"]:
        schema = strict(version["schema"]["openAPIV3Schema"])
        # The object's own metadata is open there.
        schema["properties"]["metadata"] = {"type": "object"}
        write(folder, spec["group"], version["name"], spec["names"]["kind"], schema)


def main():
    swagger, crd, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    of_kubernetes(swagger, folder)
    of_crd(crd, folder)


main()
