"""A recipe as llm-compressor reads it."""

import json

import pytest
import yaml
from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme

from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.errors import UnsupportedFormat
from scoremode.runs.recipe import check_expressible, recipe_yaml


@pytest.fixture(scope="module")
def quants(demo, tmp_path_factory):
    home = tmp_path_factory.mktemp("recipe")
    for variant in VARIANTS:
        if variant.name in ("W4A16-g32", "NVFP4", "W4A16-g32-AWQ"):
            quantize_folder(demo / "model", home / variant.name, variant)
    return home


def modifier(text):
    (stage,) = yaml.safe_load(text).values()
    return stage["quantization_modifiers"]["QuantizationModifier"]


def test_groups_are_the_quants_own_with_the_modules_that_were_chosen(demo, quants):
    down = [f"model.layers.{i}.mlp.down_proj" for i in range(3)]
    chosen = {
        str(quants / "W4A16-g32"): ["model.layers.0.mlp.up_proj", "model.layers.0.input_layernorm"],
        str(quants / "NVFP4"): down,
    }
    found = modifier(recipe_yaml(str(demo / "model"), chosen))
    first, second = found["config_groups"].values()
    assert first["targets"] == ["model.layers.0.mlp.up_proj"] and second["targets"] == down
    assert "model.layers.1.mlp.up_proj" in found["ignore"] and "lm_head" in found["ignore"]
    assert not set(found["ignore"]) & {*down, "model.layers.0.mlp.up_proj"}
    for group, name in ((first, "W4A16-g32"), (second, "NVFP4")):
        config = json.loads((quants / name / "config.json").read_text())["quantization_config"]
        (wanted,) = QuantizationConfig.model_validate(config).config_groups.values()
        read = QuantizationScheme.model_validate(group)
        assert read.weights == wanted.weights and read.input_activations == wanted.input_activations


def test_two_quants_of_one_format_share_a_group(demo, quants):
    chosen = {
        str(quants / "W4A16-g32"): ["model.layers.0.mlp.up_proj"],
        f"{quants}/./W4A16-g32": ["model.layers.1.mlp.up_proj"],
    }
    (group,) = modifier(recipe_yaml(str(demo / "model"), chosen))["config_groups"].values()
    assert len(group["targets"]) == 2


def test_llm_compressor_s_own_parser_takes_it(demo, quants, tmp_path):
    recipe = pytest.importorskip("llmcompressor.recipe", reason="llm-compressor is not installed")
    file = tmp_path / "recipe.yaml"
    chosen = {str(quants / "W4A16-g32"): ["model.layers.0.mlp.up_proj"]}
    file.write_text(recipe_yaml(str(demo / "model"), chosen))
    (made,) = recipe.Recipe.create_instance(str(file)).modifiers
    assert type(made).__name__ == "QuantizationModifier"
    (group,) = made.config_groups.values()
    assert group.targets == ["model.layers.0.mlp.up_proj"] and group.weights.num_bits == 4


def test_other_libraries_formats_are_refused(demo, quants):
    check_expressible([str(quants / "W4A16-g32"), str(quants / "NVFP4")])
    for model, words in ((demo / "model", "not quantized"), (quants / "W4A16-g32-AWQ", "is awq")):
        with pytest.raises(UnsupportedFormat, match=words):
            check_expressible([str(model)])
