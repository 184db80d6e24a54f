"""What an engine's parts say of themselves: tensors that nothing uses, and where the head lies."""

import pytest
from support.engine import make_engine
from support.models import make_checkpoint, random_plan

from scoremode.errors import RunFolderError
from scoremode.reference.writer import Keeper


@pytest.mark.parametrize(("dtype", "fits"), [("float32", True), ("bfloat16", False)])
def test_a_bias_in_another_dtype_is_not_left_in_the_checkpoint(dtype, fits, tmp_path):
    """Known when it is captured, not when its hash doesn't fit hours later."""
    tensors = make_engine(make_checkpoint(tmp_path / "model", "phi"), dtype=dtype).head_tensors()
    assert (tensors.bias == "lm_head.bias") == fits and tensors.weight == "lm_head.weight"
    if fits:
        Keeper(tmp_path, random_plan(), tensors, stored=False).stop()
    else:
        with pytest.raises(RunFolderError, match="another form than it is used in"):
            Keeper(tmp_path, random_plan(), tensors, stored=False)
