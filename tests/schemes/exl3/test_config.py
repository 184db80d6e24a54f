"""`quant_method: exl3`: what is read of it, and what is refused."""

import pytest
from support.families.exl3 import config

from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.exl3 import parse_exl3


@pytest.mark.parametrize("codebook", ["3inst", "mcg", "mul1"])
def test_tensors_decide(codebook):
    parsed = parse_exl3(config(3.5, codebook))
    assert parsed.kv_cache is None and not parsed.claims("lm_head")


def test_what_early_releases_wrote():
    early = {"quant_method": "exl3", "version": "0.0.1", "bits": 4, "head_bits": 6}
    assert parse_exl3(early) == parse_exl3({"quant_method": "exl3"})


@pytest.mark.parametrize(
    ("field", "value", "words", "error"),
    [
        ("bits", "4", "bits '4' is not a number", CheckpointError),
        ("head_bits", True, "head_bits True is not a number", CheckpointError),
        ("codebook", 3, "codebook 3 is not a string", CheckpointError),
        (
            "codebook",
            "2mad",
            "quantization method 'exl3' with codebook '2mad': not decoded",
            UnsupportedFormat,
        ),
    ],
)
def test_what_is_refused(field, value, words, error):
    with pytest.raises(error) as caught:
        parse_exl3(config() | {field: value})
    assert type(caught.value) is error and str(caught.value).endswith(words)
