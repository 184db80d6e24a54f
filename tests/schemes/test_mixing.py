"""Which modules a pattern names, and which of them may make one model."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from scoremode.checkpoint.files import open_checkpoint
from scoremode.demo.quantize import VARIANTS, Variant, quantize_folder
from scoremode.errors import UnsupportedModel, UsageError
from scoremode.schemes.mixing import Take, mixed, modules_named
from scoremode.schemes.resolve import resolve
from scoremode.schemes.summary import summarize


@pytest.fixture(scope="module")
def folders(demo, tmp_path_factory):
    """The dense model, and the same in 4 bits and by AWQ."""
    home = tmp_path_factory.mktemp("mixing")
    found = {"base": demo / "model"}
    for variant in VARIANTS:
        if variant.name in ("W4A16-g32", "W8A16", "NVFP4", "W4A16-g32-AWQ"):
            found[variant.name] = home / variant.name
            quantize_folder(demo / "model", home / variant.name, variant)
    return {name: open_checkpoint(str(folder)) for name, folder in found.items()}


@pytest.mark.parametrize(
    ("pattern", "named", "others"),
    [
        ("layers.1", ["model.layers.1.mlp.up_proj", "model.layers.1.input_layernorm"],
         ["model.layers.10.mlp.up_proj", "model.layers.11", "lm_head"]),
        ("layers.1.*", ["model.layers.1.mlp.up_proj"], ["model.layers.1", "model.layers.12.mlp"]),
        ("down_proj", ["model.layers.3.mlp.down_proj", "model.layers.0.mlp.experts.7.down_proj"],
         ["model.layers.3.mlp.up_down_proj", "model.layers.3.mlp.down_proj2"]),
        ("layers.[01].mlp", ["model.layers.0.mlp.up_proj"], ["model.layers.2.mlp.up_proj"]),
        ("layers.*.mlp.up_proj", ["model.layers.31.mlp.up_proj"], ["model.layers.3.mlp.gate_proj"]),
        ("re:.*down_proj", ["model.layers.3.mlp.down_proj", "a.up_down_proj"], ["model.layers.3.mlp"]),
        (r"re:model\.layers\.1\.", ["model.layers.1.mlp.up_proj"], ["x.model.layers.1.mlp"]),
        ("lm_head", ["lm_head", "language_model.lm_head"], ["my_lm_head"]),
    ],
)  # fmt: skip
def test_a_pattern_names_modules_and_what_is_within(pattern, named, others):
    is_named = modules_named(pattern, "--swap")
    assert all(map(is_named, named)) and not any(map(is_named, others))


def test_each_module_is_one_checkpoints_with_its_format_and_its_bits(folders):
    own, base = folders["W4A16-g32"], folders["base"]
    mixture = mixed(own, [Take("layers.0", base, "--keep-dense", is_base=True)])
    schemes = resolve(mixture)
    assert not any(".layers.0." in module for module in schemes.quantized)
    assert {m for m in resolve(own).quantized if ".layers.1." in m} <= schemes.quantized.keys()
    assert not schemes.claims("model.layers.0.mlp.up_proj")
    assert schemes.claims("model.layers.1.mlp.up_proj")
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(mixture.read(name), base.read(name))
    assert f"{name}_packed" not in mixture.tensors and f"{name}_packed" in own.tensors
    (take,) = mixture.taken
    assert take.differing == () and len(take.modules) == 9
    # Half of the layers' weights in 4.5 bits, half in 16.
    dense, packed = summarize(base), summarize(own)
    found = summarize(mixture)
    assert found.parameters == dense.parameters == packed.parameters
    layers = json.loads((own.path / "config.json").read_text())["num_hidden_layers"]
    wanted = (16 + (layers - 1) * packed.body_bits) / layers
    assert found.body_bits == pytest.approx(wanted)
    assert mixture.fingerprint not in (own.fingerprint, base.fingerprint)
    assert len(mixture.hash_files()) == len(own.hash_files()) + len(base.hash_files())


def test_all_of_another_is_the_other(folders):
    own, base = folders["NVFP4"], folders["base"]
    mixture = mixed(own, [Take("re:.*", base, "--swap")])
    assert mixture.tensors == base.tensors and resolve(mixture).quantized == {}


def test_what_a_pattern_names_twice_is_one_checkpoints_alone(folders):
    own, base, other = (folders[n] for n in ("W4A16-g32", "base", "W8A16"))
    twice = [Take("layers.0", base, "--keep-dense"), Take("down_proj", base, "--keep-dense")]
    mixture = mixed(own, twice)
    assert "model.layers.0.mlp.down_proj" in mixture.taken[0].modules
    assert "model.layers.0.mlp.down_proj" not in mixture.taken[1].modules
    with pytest.raises(
        UsageError, match=r"layers\.0\.mlp\.down_proj is taken from .* by layers\.0$"
    ):
        mixed(own, [twice[0], Take("down_proj", other, "--swap")])


@pytest.mark.parametrize(
    ("pattern", "words"),
    [("layers.99", "has no such module"), ("re:(", "not a regular expression"), ("", "is empty")],
)
def test_a_pattern_that_says_nothing_is_refused(folders, pattern, words):
    with pytest.raises(UsageError, match=f"--swap.*{words}"):
        mixed(folders["W4A16-g32"], [Take(pattern, folders["base"], "--swap")])


def test_another_kind_of_model_is_refused(folders, tmp_path):
    shutil.copytree(folders["base"].path, tmp_path / "other")
    config = json.loads((tmp_path / "other/config.json").read_text())
    (tmp_path / "other/config.json").write_text(json.dumps(config | {"model_type": "qwen2"}))
    other = open_checkpoint(str(tmp_path / "other"))
    with pytest.raises(UnsupportedModel, match=r"is a qwen2, and .* a llama"):
        mixed(folders["W4A16-g32"], [Take("layers.0", other, "--swap")])


def test_scales_that_were_moved_into_norms_are_found(folders):
    """AWQ multiplies what is before a linear by what it divides the linear by: the linear alone doesn't
    fit another's norm; a whole layer does."""
    own, base = folders["W4A16-g32-AWQ"], folders["base"]
    (take,) = mixed(own, [Take("layers.0.mlp.down_proj", base, "--swap")]).taken
    assert take.differing and all(".layers.0." in name for name in take.differing)
    assert mixed(own, [Take("layers.0", base, "--swap")]).taken[0].differing == ()


def test_a_norm_that_differs_outside_of_layers_is_told_of(folders, tmp_path):
    base = folders["base"]
    shutil.copytree(base.path, tmp_path / "rotated")
    file = tmp_path / "rotated/model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * 2
    save_file(tensors, file, metadata={"format": "pt"})
    own = open_checkpoint(str(tmp_path / "rotated"))
    (take,) = mixed(own, [Take("layers.0", base, "--swap")]).taken
    assert take.differing == ("model.norm.weight",)


def test_variants_that_the_tests_name_are_there():
    assert {"W4A16-g32", "W8A16", "NVFP4", "W4A16-g32-AWQ"} <= {v.name for v in VARIANTS}
    assert isinstance(VARIANTS[0], Variant)
