"""MLX's `quantization`: what is read of it, and what is refused."""

import pytest

from scoremode.errors import CheckpointError
from scoremode.schemes.mlx import Mode, parse_mlx
from scoremode.schemes.resolve import method_of


def test_one_for_all():
    config = {"group_size": 32, "bits": 6}
    parsed = parse_mlx(config)
    assert method_of(config) == "mlx"
    assert parsed.of("m") == Mode("affine", 32, 6) and not parsed.claims("m")
    assert parsed.kv_cache is None


def test_modules_of_their_own():
    """As mlx-lm's mixed recipes write them."""
    parsed = parse_mlx({
        "group_size": 64, "bits": 4, "mode": "affine", "a": {"bits": 6}, "lm_head": False,
        "b": {"group_size": 32, "bits": 4, "mode": "mxfp4"}, "c": True,
    })  # fmt: skip
    assert parsed.of("a") == Mode("affine", 64, 6) and parsed.of("c") == Mode("affine", 64, 4)
    assert parsed.of("b") == Mode("mxfp4", 32, 4) and parsed.of("lm_head") is None
    assert [m for m in ("a", "b", "c", "lm_head", "d") if parsed.claims(m)] == ["a", "b", "c"]


def test_a_module_of_its_own_has_nothing_of_the_others():
    """mlx gives its object to `to_quantized`, and quantizes nothing by an empty one."""
    parsed = parse_mlx(
        {
            "group_size": 32,
            "bits": 8,
            "a": {"bits": 6},
            "b": {"group_size": 128},
            "c": {},
            "d": None,
        }
    )
    assert parsed.of("a") == Mode("affine", 64, 6) and parsed.of("b") == Mode("affine", 128, 4)
    assert parsed.of("c") is None and parsed.of("d") is None
    assert parsed.of("e") == Mode("affine", 32, 8)


@pytest.mark.parametrize(
    ("mode", "size", "bits"), [("mxfp4", 32, 4), ("mxfp8", 32, 8), ("nvfp4", 16, 4)]
)
def test_modes_of_small_floats(mode, size, bits):
    expected = Mode(mode, size, bits)
    assert parse_mlx({"mode": mode, "group_size": size, "bits": bits}).default == expected
    assert parse_mlx({"mode": mode}).default == expected


def test_names_with_other_beginnings():
    """A wrapper's tensors may be called otherwise than the config calls its modules."""
    name, other = "model.language_model.a", "language_model.model.a"
    parsed = parse_mlx({"bits": 4, "group_size": 64, name: {"bits": 8}, other: {"bits": 8}})
    assert parsed.of(other) == parsed.of("model.a") == Mode("affine", 64, 8)
    assert parsed.claims(other) and not parsed.claims("model.language_model.b")
    with pytest.raises(CheckpointError, match=rf"'{other}' is named twice, with other beginnings"):
        parse_mlx({"bits": 4, "group_size": 64, name: {"bits": 8}, other: False})
