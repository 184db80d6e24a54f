"""Names: short, and never the same for two."""

import pytest

from scoremode.report.page.gathered.names import short_names


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        ([], []),
        (["models/x"], ["x"]),
        (["m/SmolLM2-135M.Q4_K_M.gguf", "m/SmolLM2-135M.Q8_0.gguf"], ["Q4_K_M", "Q8_0"]),
        (["hub:a/Llama-AWQ@c0ffee", "hub:b/Llama-GPTQ@1"], ["AWQ", "GPTQ"]),
        # The base's own name is all that the others begin with: nothing is taken away.
        (["x/Llama", "x/Llama-AWQ"], ["Llama", "Llama-AWQ"]),
        (["a/model", "b/model", "b/other"], ["a/model", "b/model", "other"]),
        (["r/a/m", "s/a/m"], ["r/a/m", "s/a/m"]),
        # Not in the middle of a word.
        (["W4A16", "W4A8"], ["W4A16", "W4A8"]),
        (["m.gguf", "m.safetensors"], ["m.gguf", "m.safetensors"]),
        (["hub:a/x@1", "hub:a/x@2"], ["hub:a/x@1", "hub:a/x@2"]),
        (["/", "//"], ["/", "//"]),
        (["\ud800<b>", "x"], ["\ud800<b>", "x"]),
    ],
)
def test_names(sources, names):
    assert short_names(sources) == names
    assert len(set(short_names(sources))) == len(sources)
