"""Weights out of the memory of a training program, in the place of those that a decoder computes with."""

from collections.abc import Mapping

import torch

from batchgen.errors import ModelError
from batchgen.models.config import ModelConfig
from batchgen.models.fused import Layout, fused
from batchgen.models.weights import Checkpoint, check_inventory, combine_digests, without_copies

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def checkpoint_of(tensors: Mapping[str, torch.Tensor], config: ModelConfig, where: str) -> Checkpoint:
    """`tensors`, under their Hugging Face names and on any device, as a model of `config`. Nothing is copied.

    Raises ModelError if one is missing, unknown, of another shape, not floating point, or holds what bfloat16 cannot:
    then nothing was changed anywhere. `where` names the dictionary.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ModelError(f"{name} is a {type(tensor).__name__}, and no tensor", where=where)
        if tensor.dtype not in _DTYPES:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
            raise ModelError(f"tensor {name} is {tensor.dtype}", where=where, hint=f"known: {known}")

    def read(name: str) -> torch.Tensor:
        return tensors[name].detach().cpu()

    names = without_copies(tensors, config, read, lambda _: where)
    check_inventory({name: tuple(tensors[name].shape) for name in names}, config, lambda _: where)
    model = Checkpoint(config, where, read)
    for name in model.names():
        model.tensor(name)
    return model


def write_over(weights: Mapping[str, torch.Tensor], model: Checkpoint, layout: Layout) -> str:
    """Replace `weights`, named as in models/fused.py, by those of `model`, in place; the new weights digest.

    In place, for CUDA graphs have taken down where the weights are. `layout`: of a linear, as it lies in `weights`.
    """
    digests: dict[str, str] = {}
    for name, tensor in fused(model, digests, layout):
        assert weights[name].shape == tensor.shape, name
        weights[name].copy_(tensor)
    return combine_digests(model.config, digests)
