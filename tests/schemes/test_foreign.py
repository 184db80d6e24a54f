import json

import pytest
from schemes_helpers import group, quantization
from transformers.utils.quantization_config import QuantizationMethod

from scoremode.schemes.foreign import foreign_method, method_of
from scoremode.schemes.resolve import READ


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "exl2", "bits": 4.0}, ("'exl2'", "ExLlamaV2")),
        ({"quant_method": "fbgemm_fp8"}, ("'fbgemm_fp8'", "FBGEMM")),
        ({"quant_method": "quanto", "weights": "int8"}, ("'quanto'", "optimum-quanto")),
        ({"quant_method": "tomorrow"}, ("'tomorrow': not known",)),
        ({"quant_method": 4}, ("4: not known",)),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else None,
)
def test_another_librarys_config_is_refused_by_its_name(config, words):
    assert method_of(config) not in READ
    message = foreign_method(config)
    assert all(word in message for word in words), message
    assert "\n" not in message
    assert message.startswith("quantization method ")


@pytest.mark.parametrize("method", QuantizationMethod)
def test_every_method_of_transformers_is_read_or_refused(method):
    refused = foreign_method({"quant_method": method.value})
    assert (method.value in READ) or f"quantization method {method.value!r}" in refused


@pytest.mark.parametrize("change", [{}, {"quant_method": None}])
def test_groups_without_a_method_are_ours(change):
    config = quantization({"g": group()}) | change
    assert method_of(config) in (None, "compressed-tensors")
    del config["quant_method"]
    assert method_of(config) is None
