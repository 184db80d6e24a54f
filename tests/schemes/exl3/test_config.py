"""`quant_method: exl3`: what is read of it, and what is refused."""

import pytest
from support.families.exl3 import config

from scoremode.schemes.exl3 import parse_exl3


@pytest.mark.parametrize("codebook", ["3inst", "mcg", "mul1"])
def test_tensors_decide(codebook):
    parsed = parse_exl3(config(3.5, codebook))
    assert parsed.kv_cache is None and not parsed.claims("lm_head")


def test_what_early_releases_wrote():
    early = {"quant_method": "exl3", "version": "0.0.1", "bits": 4, "head_bits": 6}
    assert parse_exl3(early) == parse_exl3({"quant_method": "exl3"})
