"""A GGUF file mixed with the folder that it was made of: the same model, whatever lies otherwise."""

import numpy as np
import pytest
from support.engine import score
from support.gguf.golden import make_pair
from support.gguf.round_trip import plan

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.torch.engine import build_engine
from scoremode.engines.torch.options import TorchOptions
from scoremode.schemes.mixing import Take, mixed


@pytest.mark.parametrize(
    "name",
    [
        *("llama", "gemma2", "qwen3", "phi3", "gpt2", "falcon", "bloom", "glm4"),
        *("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "gpt_oss"),
    ],
)
def test_layers_of_either_make_the_same_model(name, tmp_path):
    folder, file = make_pair(tmp_path, name)
    ours, theirs = (open_checkpoint(str(path)) for path in (file, folder))
    options = TorchOptions(device="cpu", dtype="float32")
    wanted = score(build_engine(theirs, options), plan()).logprob
    for own, other in ((ours, theirs), (theirs, ours)):
        mixture = mixed(own, [Take(r"re:[^0-9]*\.0\.", other, "--swap")])
        owners = {id(mixture.owners[name]) for name in mixture.tensors}
        assert len(owners) == 2
        found = score(build_engine(mixture, options), plan()).logprob
        assert np.abs(found - wanted).max() < 3e-5
