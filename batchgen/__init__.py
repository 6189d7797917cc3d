"""Offline batch generation with language models, the same bytes every time.

The public names are loaded when they are first used, so that `import batchgen` costs nothing and never loads torch.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchgen.errors import BatchgenError
    from batchgen.executor.run_config import RunConfig
    from batchgen.job import run_job
    from batchgen.records import Completion, Request, SamplingParams
    from batchgen.rollout import Engine
    from batchgen.spec import JobSpec, load_spec
    from batchgen.verify.integrity import verify_run

__all__ = [
    "BatchgenError",
    "Completion",
    "Engine",
    "JobSpec",
    "Request",
    "RunConfig",
    "SamplingParams",
    "load_spec",
    "run_job",
    "verify_run",
]

__version__ = version("batchgen")

_HOME = {
    "BatchgenError": "errors",
    "Completion": "records",
    "Engine": "rollout",
    "JobSpec": "spec",
    "Request": "records",
    "RunConfig": "executor.run_config",
    "SamplingParams": "records",
    "load_spec": "spec",
    "run_job": "job",
    "verify_run": "verify.integrity",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
