"""A config that is missing, or says what no model is; and what is read of one that is right."""

from pathlib import Path

import pytest
from support.checkpoint_folders import refusal

from scoremode.checkpoint.config import (
    check_config,
    dtype_of,
    language_config,
    layers_of,
    longest_of,
    positions_of,
    quantizations,
)
from scoremode.errors import CheckpointError

FILE = Path("config.json")


def test_no_config(single):
    (Path(single) / "config.json").unlink()
    assert refusal(single) == f"{single}/config.json: No such file or directory"


@pytest.mark.parametrize("outer", [None, "text_config", "thinker_config"])
@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("num_hidden_layers", 10_001, "is 10001, and no model has more than 10,000"),
        ("n_layer", True, "is True, not a whole number above 0"),
        ("vocab_size", 0, "is 0, not a whole number above 0"),
        ("some_dim", 100_000_001, "no model has more than 100,000,000"),
        ("logit_scale", False, "is False, not a number other than 0"),
        ("final_logit_softcapping", 0.0, "is 0.0, not a number other than 0"),
        ("num_experts", 10**4000, f"is 1{'0' * 79}…, and no model has more than 100,000,000"),
        ("hidden_size", "x" * 100, f"is '{'x' * 79}…, not a whole number above 0"),
    ],
)
def test_a_value_that_no_model_has_is_named(outer, field, value, said):
    config = {field: value} if outer is None else {outer: {field: value}}
    with pytest.raises(CheckpointError) as error:
        check_config(FILE, config)
    assert str(error.value).startswith(f"config.json: {field} ") and said in str(error.value)


@pytest.mark.parametrize("part", [None, "text_config", "vision_config"])
def test_a_million_labels_are_not_named_one_by_one(part):
    """transformers would: of 2^40 it never ends."""
    labels = {"num_labels": 1_000_000}
    with pytest.raises(CheckpointError, match="num_labels is 1000000, and no model has more than"):
        check_config(FILE, labels if part is None else {part: labels})
    check_config(FILE, {"vision_config": {"num_labels": 21_843}})


@pytest.mark.parametrize("part", ["text_config", "vision_config"])
def test_a_part_whose_type_is_no_name_is_an_error(part):
    """transformers looks it up in a table."""
    with pytest.raises(CheckpointError, match=r"^config.json: the model_type \[\] of a part is no"):
        check_config(FILE, {part: {"model_type": []}})
    check_config(FILE, {part: {"model_type": None}, "model_type": "llava"})


@pytest.mark.parametrize("key", ["llm_config", "quantization_config"])
def test_a_part_that_is_no_object_is_named(key):
    with pytest.raises(CheckpointError, match=f"its {key} is not an object"):
        check_config(FILE, {"text_config": {key: [1]}})


FP8 = {"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"quantization_config": {"bits": 4}, "text_config": {"quantization_config": {"bits": 8}}},
            "its quantization_config and its text_config.quantization_config differ "
            "in 'bits': 4 and 8; ",
        ),
        (
            {"quantization_config": FP8, "text_config": {"quantization_config": FP8 | {"x": 1}}},
            "differ in 'x': None and 1; ",
        ),
        (
            {"thinker_config": {"quantization_config": FP8,
                                "text_config": {"compression_config": {"quant_method": "awq"}}}},
            "its thinker_config.quantization_config and its thinker_config.text_config."
            "compression_config differ in 'modules_to_not_convert': ['lm_head'] and None; ",
        ),
        # Made of float8 by MLX, and the old config left.
        (
            {"quantization_config": FP8, "quantization": {"bits": 4, "group_size": 64}},
            "its quantization_config and its quantization differ in 'bits': None and 4; ",
        ),
        (
            {"quantization_config": {"quant_method": "awq"}, "quantization": {"quant_method": "mlx"}},
            "differ in 'quant_method': 'awq' and 'mlx'; ",
        ),
    ],
)  # fmt: skip
def test_two_quantizations_that_differ(config, words):
    with pytest.raises(CheckpointError) as error:
        check_config(FILE, config)
    assert str(error.value).startswith("config.json: its ") and words in str(error.value)
    assert str(error.value).endswith("; remove the one that its weights don't follow")


def test_two_quantizations_that_are_the_same():
    check_config(FILE, {"quantization_config": FP8, "text_config": {"quantization_config": FP8}})
    mlx = {"bits": 4, "group_size": 64}
    check_config(FILE, {"quantization_config": mlx | {"quant_method": "mlx"}, "quantization": mlx})
    # None at all, and what is no quantization.
    check_config(FILE, {"quantization_config": {}, "quantization": "none"})
    config = {"text_config": {"compression_config": FP8}, "quantization": False}
    assert quantizations(config) == [("text_config.compression_config", FP8)]


def test_what_models_have_is_taken():
    check_config(
        FILE,
        {
            **{"num_hidden_layers": 10_000, "vocab_size": 1, "hidden_size": None, "head_dim": -1},
            **{"final_logit_softcapping": 30, "logits_scaling": None, "text_config": None},
            **{"max_length": 10**8, "rope_theta": 10**12},
        },
    )


def test_the_language_models_part_is_the_innermost():
    inner = {"num_hidden_layers": 3}
    assert language_config({"thinker_config": {"text_config": inner}}) is inner
    whole = {"text_config": {}, "n_layers": 2}
    assert language_config(whole) is whole
    assert layers_of({"num_layers": 2, "llm_config": inner}) == 3 and layers_of({}) == 0


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({}, None),
        ({"max_position_embeddings": None, "n_ctx": 512}, 512),
        ({"max_position_embeddings": 2048, "max_seq_len": 512}, 2048),
        ({"n_positions": "1024"}, None),
    ],
)
def test_positions_are_those_that_the_config_says(config, positions):
    assert positions_of(config) == positions


def scaled(kind: str, factor: object, **more: object) -> dict:
    return {"max_position_embeddings": 512, "rope_scaling": {"type": kind, "factor": factor} | more}


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({}, None),
        ({"max_position_embeddings": 512}, 512),
        ({"max_position_embeddings": 512, "rope_scaling": None}, 512),
        (scaled("dynamic", 4.0), 2048),
        (scaled("linear", 4), 2048),
        (scaled("yarn", 4.0, original_max_position_embeddings=256), 1024),
        # Positions that count their scaling, as most do.
        (scaled("yarn", 2.0, original_max_position_embeddings=256), 512),
        (scaled("llama3", 8.0, original_max_position_embeddings=64), 512),
        (scaled("longrope", 32.0), 512),
        ({"model_type": "gemma3_text"} | scaled("linear", 8.0), 512),
        # Of layers of two kinds.
        ({"max_position_embeddings": 512, "rope_parameters": {"full": {"factor": 8}}}, 512),
        # What no config should say.
        (scaled("yarn", "4"), 512),
        (scaled("yarn", None), 512),
        (scaled("dynamic", 0.5), 512),
        (scaled("dynamic", float("nan")), 512),
        (scaled("dynamic", float("inf")), 512),
        (scaled("dynamic", 2.0, original_max_position_embeddings="9"), 1024),
        ({"max_position_embeddings": 512, "rope_scaling": [4]}, 512),
    ],
)
def test_a_window_reaches_as_far_as_scaled_positions_do(config, longest):
    assert longest_of(config) == longest


AUTO_ROUND = {"quant_method": "auto-round", "packing_format": "mlx", "bits": 4, "group_size": 32}


def test_autorounds_words_beside_those_of_mlx():
    """As its export to MLX writes both: the tensors are described by MLX's."""
    down = {"language_model.model.layers.0.down": {"bits": 6}}
    mlx = {"bits": 4, "group_size": 32, **down}
    inner = {"bits": 4, "group_size": 32, "model.layers.0.down": {"bits": 6}}
    for nested in ({}, inner, {"bits": 4, "group_size": 32}):
        config = {
            "quantization": mlx,
            "quantization_config": AUTO_ROUND,
            "text_config": {"quantization": nested, "quantization_config": AUTO_ROUND},
        }
        check_config(FILE, config)
        assert quantizations(config)[0] == ("quantization", mlx)
    for changed in ({"bits": 8}, {"model.layers.0.down": {"bits": 8}}, {"model.x": {"bits": 8}}):
        config = {"quantization": mlx, "text_config": {"quantization": inner | changed}}
        with pytest.raises(CheckpointError, match=r"and its text_config\.quantization differ in"):
            check_config(FILE, config)
    with pytest.raises(
        CheckpointError, match="and its quantization_config differ in 'bits': 4 and 8"
    ):
        check_config(FILE, {"quantization": mlx, "quantization_config": AUTO_ROUND | {"bits": 8}})


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"torch_dtype": "auto"}, None),
        ({"dtype": None, "torch_dtype": "torch.float16"}, "float16"),
        ({"dtype": "float32", "text_config": {"dtype": "auto"}}, "float32"),
        ({"dtype": "float32", "text_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({}, None),
    ],
)
def test_the_dtype_that_a_config_says(config, dtype):
    assert dtype_of(config) == dtype
