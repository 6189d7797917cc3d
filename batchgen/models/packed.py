"""Weights in the layout of the CPU kernels, kept in a cache file for later starts.

fused.py has the names; a linear weight is packed as kernels/packing.py says. packed_file.py has
the layout of the file, which is named by the digest of the model's files and the version of the layout.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from batchgen.kernels.packing import pack
from batchgen.models import packed_file
from batchgen.models.config import ModelConfig
from batchgen.models.fused import STACKED, Held, fused
from batchgen.models.locking import exclusive
from batchgen.models.packed_file import DamagedError
from batchgen.models.weights import Checkpoint, combine_digests

# Goes up with every change of what is packed or of how: dequantising, rounding, names, order.
LAYOUT = 2


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """`tensors` are to be read, never written, but those of experts, in whose place others may come."""

    config: ModelConfig
    weights_digest: str
    tensors: Mapping[str, torch.Tensor]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    @classmethod
    def open_or_build(
        cls, open_model: Callable[[], Checkpoint], cache_dir: Path, key: str, held: Held | None = None
    ) -> Self:
        """Reads the cache file of `key` (`files.source_digest` of the model), or builds it.

        `held`: the experts that are read; None: all. File and digest are of all. `open_model` is called only to build.
        A cache that cannot be written is a RuntimeWarning, and the weights are then held in memory; one that is torn or
        altered is built again. Raises ModelError if the model is at fault.
        """
        path = cache_dir / f"{key}-{LAYOUT}.packed"
        try:
            return cls._read(path, key, held)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (DamagedError, OSError) as e:
            warnings.warn(f"{path}: {e}; building it again", RuntimeWarning, stacklevel=2)
        model = open_model()
        try:
            with exclusive(cache_dir):
                with suppress(FileNotFoundError, DamagedError):  # unless another process was faster
                    return cls._read(path, key, held)
                for stale in cache_dir.glob(f"{packed_file.TEMPORARY}*"):  # of a process that was killed
                    stale.unlink()
                _write(path, key, model)
            return cls._read(path, key, held)
        except (DamagedError, OSError) as e:
            warnings.warn(f"{path}: {e}; the packed weights stay in memory", RuntimeWarning, stacklevel=2)
            digests: dict[str, str] = {}
            tensors = dict(fused(model, digests, _pack, held))
            return cls(model.config, combine_digests(model.config, digests), tensors)

    @classmethod
    def _read(cls, path: Path, key: str, held: Held | None) -> Self:
        """Raises FileNotFoundError, and DamagedError unless every byte that is read is as it was written."""
        with path.open("rb") as file:
            footer = packed_file.read_footer(file)
            about = footer.about
            if about["key"] != key or about["layout"] != LAYOUT:
                raise DamagedError("is of another model")
            try:
                config = ModelConfig.from_json(about["config"])
            except (TypeError, KeyError, ValueError) as e:
                raise DamagedError("was written by another version") from e
            slots = {f"layers.{i}.{part}": ids for i, ids in (held or {}).items() for part in STACKED}
            return cls(config, about["weights_digest"], packed_file.read_tensors(file, footer, slots))


def _pack(weight: torch.Tensor) -> torch.Tensor:
    return pack(weight).data


def _write(path: Path, key: str, model: Checkpoint) -> None:
    about: dict[str, Any] = {"layout": LAYOUT, "key": key, "config": model.config.to_json()}
    stacked = frozenset(f"layers.{i}.{part}" for i in range(model.config.num_layers) for part in STACKED)

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        digests: dict[str, str] = {}
        yield from fused(model, digests, _pack)
        about["weights_digest"] = combine_digests(model.config, digests)

    packed_file.write(path, tensors(), about, stacked)
