import pytest
from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES, preset_name_to_scheme
from support.schemes import quantization

from scoremode.schemes.compressed_tensors_config import parse_quantization, preset_formats


@pytest.mark.parametrize("name", PRESET_SCHEMES)
def test_equals_the_librarys_preset(name):
    """The short form and the library's own fields, read by the same parser."""
    written = preset_name_to_scheme(name, ["Linear"]).model_dump(mode="json")
    for short in (name, name.lower()):
        config = parse_quantization(quantization({short: ["Linear"], "fields": written}))
        given, fields = config.groups
        assert (given.weights, given.inputs) == (fields.weights, fields.inputs)
        assert given.outputs is fields.outputs is None


@pytest.mark.parametrize(
    "name",
    ["W1A16", "W9A16", "W5A4", "W8A4", "W4A6", "W16A16", "W4A16_SYM", "MXFP6", "FP4", "", "W"],
)
def test_what_the_library_does_not_have_neither_do_we(name):
    assert name.upper() not in PRESET_SCHEMES
    with pytest.raises(KeyError):
        preset_formats(name)
