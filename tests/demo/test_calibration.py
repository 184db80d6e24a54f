"""What linears are given on the calibration text."""

import torch
from transformers import AutoTokenizer

from scoremode.demo.calibration import inputs_of_linears


def test_sums_over_each_linears_inputs(demo):
    inputs = inputs_of_linears(demo / "model")
    assert len(inputs) == 21 and "lm_head" not in inputs
    for name, of in inputs.items():
        width = 512 if name.endswith("down_proj") else 192
        assert of.gram.shape == (width, width) and of.magnitude.shape == (width,)
        assert torch.equal(of.gram, of.gram.T)
        # A mean square is no less than the square of a mean.
        assert (of.gram.diagonal() >= of.magnitude**2 * (1 - 1e-9)).all()
    q, k = (inputs[f"model.layers.1.self_attn.{p}_proj"] for p in "qk")
    assert torch.equal(q.gram, k.gram)


def test_the_text_is_not_the_one_that_is_measured(demo):
    written, heldout = (
        (demo / f"{name}.txt").read_text(encoding="utf-8") for name in ("calibration", "heldout")
    )
    assert len(AutoTokenizer.from_pretrained(demo / "model")(written).input_ids) > 5000
    lines = {line for line in heldout.splitlines() if len(line) > 40}
    assert lines and not lines & set(written.splitlines())
