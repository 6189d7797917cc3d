"""An engine goes on with other weights: those of a training step."""

from collections.abc import Mapping

import torch

from batchgen.engine.bits import Checks
from batchgen.engine.canary import NUM_BLOCKS, prove_canary
from batchgen.engine.engine import Engine
from batchgen.engine.model_runner import ModelRunner
from batchgen.errors import EngineError
from batchgen.kernels.memory import room_for
from batchgen.models.state_dict import checkpoint_of


@torch.inference_mode()
def replace_weights(engine: Engine, tensors: Mapping[str, torch.Tensor], where: str) -> None:
    """What `engine` generates next comes from `tensors`, under their Hugging Face names, and from nothing before.

    Its fingerprint gets their digest and their canary, which is proven anew. Raises ModelError for tensors that are
    not those of the model, with nothing changed; EngineError while it generates, and when the canary fails: then the
    engine generates no more. `where` names the tensors.
    """
    if not isinstance(engine.runner, ModelRunner):
        raise EngineError("the weights of ranks cannot be replaced", hint="use one engine without ranks")
    decoder = engine.runner.model
    model = checkpoint_of(tensors, decoder.config, where)
    with engine.replacing(), room_for("new weights"):
        digest = decoder.replace_weights(model)
        canary = prove_canary(decoder, decoder.new_cache(NUM_BLOCKS), Checks())
    engine.fingerprint = {**engine.fingerprint, "weights_digest": digest, "canary": canary}
