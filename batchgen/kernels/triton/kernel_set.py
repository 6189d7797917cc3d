"""The digest of the kernels of native-sm90/1: of all that decides their bits, as far as it can be named.

It covers the constants of the profile (SPLIT, INNER, the depth of a matrix instruction), the source text of every file
in this folder and of the sampler, the tuned table, the versions of Triton and torch (whose compiler and library make
the machine code), and the generation of the GPU. It does not cover the driver, or the model of the GPU within that
generation: the proof at the start and the canary speak for those.
"""

import hashlib
import json
from pathlib import Path

import torch
import triton

from batchgen.kernels.cuda.compiled import source
from batchgen.kernels.triton.attention import INNER, SPLIT
from batchgen.kernels.triton.linear import _DEPTH
from batchgen.kernels.triton.tuning import table_of


def kernel_set(numerics: str, device: torch.device) -> str:
    """SHA-256, hex."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    content = {
        "numerics": numerics,
        "constants": {"split": SPLIT, "inner": INNER, "depth": _DEPTH},
        "sources": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
        "sampler": hashlib.sha256(source("sampler.cu").encode()).hexdigest(),
        "table": table_of(device).digest,
        "versions": {"triton": triton.__version__, "torch": torch.__version__},
        "capability": torch.cuda.get_device_capability(device),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
