"""What a model's generation_config.json says about sampling, for jobs that ask for it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from batchgen.errors import ModelError
from batchgen.records import check_params
from batchgen.spec import JobSpec

_SAME_NAME = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def with_generation_config(spec: JobSpec, model: Path) -> JobSpec:
    """`spec` with the model's defaults where the job file is silent, if the job says "use".

    The result says every value itself, so that its fingerprint and its manifest do not lean on the model's file.
    Raises ModelError when there is no such file, or a value in it cannot be.
    """
    if spec.model.generation_config == "ignore":
        return spec
    path = model / "generation_config.json"
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        hint = "set model.generation_config to ignore"
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"cannot be used: {reason}", where=str(path), hint=hint) from error
    found = {name: document[name] for name in _SAME_NAME if document.get(name) is not None}
    if document.get("max_new_tokens") is not None:
        found["max_tokens"] = document["max_new_tokens"]
    if not document.get("do_sample", False):
        found["temperature"] = 0
    params = replace(spec.sampling, **{name: value for name, value in found.items() if name in spec.silent_sampling})
    for name, message in check_params(params):
        raise ModelError(message, where=f"{path}: {name}")
    return spec.model_copy(update={"sampling": params})
