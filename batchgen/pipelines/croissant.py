"""Croissant metadata of a run: its files with their SHA-256, and what its columns hold, as JSON-LD."""

from collections.abc import Iterator
from typing import Any

from batchgen.io.inputs import file_sha256
from batchgen.io.manifest import Manifest, part_name
from batchgen.io.schema import COLUMN_TEXTS
from batchgen.places import Place

_TERMS = (
    "arrayShape citeAs column containedIn equivalentProperty extract field fileObject fileProperty fileSet format "
    "includes isArray isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated replace "
    "samplingRate separator source subField transform"
)
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _TERMS.split()},
}
_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_NAMES = {"string": "sc:Text", "bool": "sc:Boolean", "date": "sc:Date", "null": "sc:Text", "binary": "sc:Text"}


def croissant(run: Place, manifest: Manifest, license: str) -> dict[str, Any]:
    """The JSON-LD document of the finished run at `run`. Reads its files for their SHA-256."""
    parts = [part_name(shard.index) for shard in manifest.shards]
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": str(manifest.spec["name"]),
        "description": _description(manifest),
        "license": license,
        "version": "1.0.0",
        "identifier": str(manifest.root),
        "isBasedOn": [_source(file) for file in manifest.inputs],
        "distribution": [
            *(
                {
                    "@type": "cr:FileObject",
                    "@id": part,
                    "name": part,
                    "contentUrl": part,
                    "encodingFormat": "application/x-parquet",
                    "sha256": file_sha256(run / part),
                }
                for part in parts
            ),
            {
                "@type": "cr:FileSet",
                "@id": "rows",
                "name": "rows",
                "encodingFormat": "application/x-parquet",
                "includes": "rows/*.parquet",
            },
        ],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "samples",
                "name": "samples",
                "description": "One sample of the model for one row of the input.",
                "key": [{"@id": "samples/row_key"}, {"@id": "samples/sample_index"}],
                "field": [_field(name, type_) for name, type_ in manifest.columns],
            }
        ],
    }


def _description(manifest: Manifest) -> str:
    counts, model = manifest.counts, manifest.spec["model"]
    assert isinstance(model, dict)
    return (
        f"{counts.rows} samples of the language model {model['path']}, {counts.output_tokens} tokens. Each row is a "
        f"function of the job with the fingerprint {manifest.fingerprint['job_fingerprint']}; the root over all rows "
        f"is {manifest.root}."
    )


def _source(file: Any) -> dict[str, Any]:
    found = {"@type": "sc:Dataset", "name": file.path, "identifier": file.sha256}
    return found | ({"isPartOf": f"run with the root {file.run_root}"} if file.run_root else {})


def _field(name: str, type_: Any) -> dict[str, Any]:
    described = {"description": COLUMN_TEXTS.get(name, "copied from the input")}
    source = {"fileSet": {"@id": "rows"}, "extract": {"column": name}}
    return _typed({"@type": "cr:Field", "@id": f"samples/{name}", "name": name} | described, type_, source)


def _typed(field: dict[str, Any], type_: Any, source: dict[str, Any]) -> dict[str, Any]:
    """`field` of this type; of a struct with a field for each of its own."""
    shape, inner = list(_shape(type_)), _innermost(type_)
    array = {"isArray": True, "arrayShape": ",".join(shape)} if shape else {}
    if isinstance(inner, list) and inner[0] == "struct":
        path = "[*]." * len(shape)
        parts = [
            _typed(
                {"@type": "cr:Field", "@id": f"{field['@id']}/{name}", "name": name},
                part,
                source | {"transform": [*source.get("transform", []), {"jsonPath": f"{path}{name}"}]},
            )
            for name, part in inner[1]
        ]
        return field | array | {"subField": parts}
    return field | {"dataType": _data_type(inner)} | array | {"source": source}


def _shape(type_: Any) -> Iterator[str]:
    """-1 for each list around a value."""
    while isinstance(type_, list) and type_[0] == "list":
        yield "-1"
        type_ = type_[1]


def _innermost(type_: Any) -> Any:
    while isinstance(type_, list) and type_[0] == "list":
        type_ = type_[1]
    return type_


def _data_type(type_: Any) -> str:
    """Of a value that is no struct; a map is text to programs that know no maps."""
    if isinstance(type_, str):
        return "sc:Integer" if type_ in _INTEGERS else _NAMES.get(type_, "sc:Float")
    return {"timestamp": "sc:DateTime", "decimal": "sc:Float"}.get(type_[0], "sc:Text")
