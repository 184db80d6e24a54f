"""Every preset of compressed-tensors, in the format it is stored in, against the library."""

import json
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors.mxfp6.helpers import unpack_fp6_from_uint8
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors import safe_open
from safetensors.torch import load_file
from support.schemes import (
    DTYPES,
    PRESETS,
    build,
    compress,
    decode,
    decompress,
    dtype_name,
    factor,
    preset,
    quantization,
    random_weight,
    same,
    write_checkpoint,
)

from scoremode.checkpoint.files import open_checkpoint
from scoremode.schemes.base import Scratch
from scoremode.schemes.compressed_tensors import FORMATS
from scoremode.schemes.decoding.unpack import BLOCK_ELEMENTS
from scoremode.schemes.resolve import resolve

GOLDEN = {file.stem: file for file in (Path(__file__).parents[2] / "golden").glob("*.safetensors")}
LABELS = {
    "W4A16_ASYM": "W4A16 g128 asym",
    "W8A8": "W8A8 channel",
    "INT8": "W8A8 channel",
    "W4AFP8": "W4AFP8 g128",
    "MXFP4XFP8": "MXFP4xFP8",
    **{
        name: name
        for name in (
            *("FP8", "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4A16", "NVFP4", "MXFP4A16", "MXFP4"),
            *("MXFP6A16", "MXFP6A8", "MXFP8A16", "MXFP8"),
        )
    },
}


def exact(stored, scheme, form) -> torch.Tensor:
    """float64: stored elements times their own scales, not rounded; no global scale."""
    packed, scale = stored.get("weight_packed"), stored["weight_scale"]
    if form in ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized"):
        return decompress(stored | {"weight_scale": scale.double()}, scheme, form)
    if form == "mxfp6-pack-quantized":
        rows, width = packed.shape
        q = unpack_fp6_from_uint8(packed, rows, width * 4 // 3, torch.float64)
    elif packed is not None:
        q = unpack_fp4_from_uint8(packed, packed.shape[0], 2 * packed.shape[1], torch.float64)
    else:
        q = stored["weight"].double()
    scale = 2.0 ** (scale.double() - 127) if form.startswith("mx") else scale.double()
    return dequantize(q, scale, args=scheme.weights, dtype=torch.float64)


@pytest.mark.parametrize("shape", [(1, 128), (8, 256), (47, 384)], ids=str)
@pytest.mark.parametrize("name", PRESETS)
def test_decodes_to_the_librarys_bits(name, shape):
    scheme, form = preset(name)
    for dtype in DTYPES:
        stored = compress(random_weight(*shape, dtype), scheme, form)
        ours, expected = build(stored, scheme, form), decompress(stored, scheme, form)
        assert ours.shape == shape
        for out_dtype in DTYPES:
            same(decode(ours, stored, out_dtype), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=dtype_name)
@pytest.mark.parametrize("name", PRESETS)
def test_codes_times_scales_are_the_exact_weight(name, dtype):
    scheme, form = preset(name)
    stored = compress(random_weight(47, 384, dtype), scheme, form)
    ours, expected = build(stored, scheme, form), exact(stored, scheme, form)
    own = {"int": [torch.int8], "float8": [torch.float8_e4m3fn], "float": []}[ours.codes.type]
    if ours.codes.limit is not None and ours.codes.limit > 128:
        own = []
    for code_dtype in (torch.bfloat16, torch.float32, *own):
        codes, scale = factor(ours, stored, code_dtype)
        if "weight_global_scale" in stored:
            assert torch.equal(scale.float()[0, 0], 1 / stored["weight_global_scale"][0])
            scale = torch.ones_like(scale)
        assert torch.equal(codes.double() * scale, expected)
        if ours.codes.limit is not None:
            assert codes.double().abs().max() <= ours.codes.limit


@pytest.mark.parametrize("name", ["W3A16", "W4A16_ASYM", "W8A16", "W8A8", "FP8", "FP8_BLOCK",
                                  "NVFP4A16", "MXFP4A16", "MXFP6A16", "MXFP8A16"])  # fmt: skip
def test_several_row_blocks(name):
    shape = (1400, 384)
    assert shape[0] * shape[1] > BLOCK_ELEMENTS["cpu"]
    scheme, form = preset(name)
    stored = compress(random_weight(*shape, torch.bfloat16), scheme, form)
    ours = build(stored, scheme, form)
    same(decode(ours, stored, torch.float32), decompress(stored, scheme, form))
    codes, scale = factor(ours, stored, torch.bfloat16)
    scale = torch.ones_like(scale) if "weight_global_scale" in stored else scale
    assert torch.equal(codes.double() * scale, exact(stored, scheme, form))


def test_scratch_is_shared_by_all_formats_and_tensors_are_left_alone():
    scratch = Scratch()
    for seed, name in enumerate([*PRESETS, *reversed(PRESETS)]):
        scheme, form = preset(name)
        dtype = DTYPES[seed % 3]
        stored = compress(random_weight(3 + seed % 9, 384, dtype, seed), scheme, form)
        before = {key: tensor.clone() for key, tensor in stored.items()}
        actual = decode(build(stored, scheme, form), stored, dtype, scratch)
        same(actual, decompress(before, scheme, form))
        factor(build(stored, scheme, form), stored, torch.bfloat16)
        for key, tensor in before.items():
            same(stored[key], tensor)


def test_presets_through_a_file(tmp_path):
    """All of them in one checkpoint of mixed precision, read from the memory-mapped file."""
    tensors, groups, expected = {}, {}, {}
    for number, name in enumerate(PRESETS):
        scheme, form = preset(name)
        stored = compress(random_weight(9, 256, torch.bfloat16, number), scheme, form)
        tensors |= {f"{name}.{key}": tensor for key, tensor in stored.items()}
        groups[f"group_{number}"] = scheme.model_dump(mode="json") | {
            "targets": [name],
            "format": form,
        }
        expected[name] = decompress(stored, scheme, form)
    config = quantization(groups, "mixed-precision", version="0.20.0")
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, tensors, config))
    schemes = resolve(checkpoint).quantized
    assert sorted(schemes) == sorted(PRESETS)
    for name, scheme in schemes.items():
        stored = {suffix: checkpoint.read(f"{name}.{suffix}") for suffix in scheme.tensors}
        same(decode(scheme, stored, torch.bfloat16), expected[name])
        bits = name.partition("A")[0][1:]
        known = LABELS.get(name) or f"W{bits}{name[2:]} g128"
        assert scheme.label == known


def golden_cases() -> list[tuple[str, str]]:
    cases = []
    for stem, file in sorted(GOLDEN.items()):
        with safe_open(file, "pt") as opened:
            about = json.loads(opened.metadata()["about"])
        cases += [(stem, name) for name in about["cases"]]
    return cases


@pytest.mark.parametrize(("stem", "name"), golden_cases())
def test_equals_the_golden_file(stem, name, tmp_path):
    """What the release that knows the format made of it."""
    with safe_open(GOLDEN[stem], "pt") as opened:
        about = json.loads(opened.metadata()["about"])
    group = about["cases"][name]
    if "weights" not in group:
        group = {"weights": group}
    tensors, prefix = load_file(GOLDEN[stem]), f"{name}."
    stored = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
    expected = stored.pop("weight_dense" if "weight_dense" in stored else "weight")
    config = quantization(
        {"0": {"targets": ["Linear"]} | group},
        group.get("format", "pack-quantized"),
        version=about["compressed-tensors"],
    )
    model = write_checkpoint(tmp_path, {f"m.{k}": v for k, v in stored.items()}, config)
    scheme = resolve(open_checkpoint(model)).quantized["m"]
    for dtype in {expected.dtype, torch.float32}:
        same(decode(scheme, stored, dtype), expected)
    if "weight_g_idx" in stored:
        in_order = stored | {"weight_g_idx": stored["weight_g_idx"].sort().values}
        assert not torch.equal(decode(scheme, in_order, expected.dtype), expected)


def test_golden_files_cover_every_format():
    covered = set()
    for file in GOLDEN.values():
        with safe_open(file, "pt") as opened:
            cases = json.loads(opened.metadata()["about"])["cases"]
        covered |= {case.get("format", "pack-quantized") for case in cases.values()}
        assert file.stat().st_size < 200_000
        release = file.stem.rpartition("_")[2]
        assert file.with_name(f"make_{file.stem}.py").exists(), release
    assert covered == set(FORMATS)


def test_every_format_is_in_the_docs_with_both_modes():
    """A row for each mode; a format's second row leaves its name out."""
    lines = (Path(__file__).parents[3] / "docs" / "formats.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]
    name, modes = "", dict[str, list[str]]()
    for form, mode, *cells in [row for row in rows if len(row) == 5][2:]:
        name = form.strip("`") or name
        modes.setdefault(name, []).append(mode)
        assert all(cells)
    ours = {form: modes.pop(form) for form in FORMATS}
    assert ours == {form: ["`weights`", "`weights+activations`"] for form in FORMATS}
    # Other libraries', of which some have no quantized inputs.
    assert all(first == "`weights`" for first, *_ in modes.values()) and len(modes) > 5
