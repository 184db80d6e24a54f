"""The torch engine's schedule, Slot, head and refusals."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file
from support.engine import make_engine, score
from support.models import (
    library_logprobs,
    library_model,
    make_checkpoint,
    random_plan,
)

from scoremode.checkpoint.files import open_checkpoint
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.base import Schedule
from scoremode.engines.torch.engine import build_engine
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import EngineError, UsageError
from scoremode.schemes.base import Scratch
from scoremode.schemes.resolve import resolve
from scoremode.text.corpus import from_file
from scoremode.text.plan import make_plan
from scoremode.text.protocol import PRESETS, Protocol, preset
from scoremode.text.tokenizer import load_tokenizer, tokenize


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("models") / "llama", "llama")


def decoded_copy(source, target):
    """A dense checkpoint of what `source`'s packed weights decode to."""
    checkpoint = open_checkpoint(str(source))
    schemes = resolve(checkpoint).quantized
    tensors = {}
    for name in checkpoint.tensors:
        module = name.rpartition(".")[0]
        if module not in schemes:
            tensors[name] = checkpoint.read(name)
            continue
        scheme = schemes[module]
        dtype = checkpoint.read(f"{module}.weight_scale").dtype
        # Scales of a byte belong to weights that are rounded to bfloat16.
        out = torch.empty(scheme.shape, dtype=torch.bfloat16 if dtype.itemsize == 1 else dtype)
        packed = {s: checkpoint.read(f"{module}.{s}") for s in scheme.tensors}
        scheme.decode(packed, out, Scratch())
        tensors[f"{module}.weight"] = out
    target.mkdir()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    config = {k: v for k, v in checkpoint.config.items() if k != "quantization_config"}
    (target / "config.json").write_text(json.dumps(config))
    return target


# Other libraries' linears don't fit this model's sizes, or its text; each has a test of its own.
COMPRESSED_TENSORS = [v for v in VARIANTS if v.config()["quant_method"] == "compressed-tensors"]


@pytest.mark.parametrize("variant", COMPRESSED_TENSORS, ids=lambda v: v.name)
def test_quantized_checkpoint_equals_the_library_on_its_decoded_weights(variant, tmp_path):
    dense = make_checkpoint(tmp_path / "dense", "llama", dtype=torch.bfloat16)
    quantize_folder(dense, tmp_path / "quantized", variant)
    decoded = decoded_copy(tmp_path / "quantized", tmp_path / "decoded")
    plan = random_plan()
    engine = make_engine(tmp_path / "quantized", dtype="float32", arithmetic="weights")
    ours = score(engine, plan)
    theirs = library_logprobs(library_model(decoded, torch.float32), plan)
    original = library_logprobs(library_model(dense, torch.float32), plan)
    assert np.abs(ours.logprob - theirs).max() < 1e-5
    assert np.abs(original - theirs).max() > 1e-3


def test_grouping_of_windows_changes_no_bit_that_the_plan_does_not_name(llama):
    plan = random_plan(windows=6)
    engine = make_engine(llama)
    one = score(engine, plan, Schedule(pass_windows=2, batch_windows=1))
    again = score(make_engine(llama), plan, Schedule(pass_windows=2, batch_windows=1))
    assert np.array_equal(one.logprob, again.logprob)
    other = score(engine, plan, Schedule(pass_windows=7, batch_windows=4))
    assert np.abs(one.logprob - other.logprob).max() < 1e-5


def test_resuming_at_any_pass_gives_the_same_bits(llama):
    plan = random_plan(windows=7)
    schedule = Schedule(pass_windows=2, batch_windows=2)
    whole = list(make_engine(llama).score(plan, schedule))
    for first in range(len(whole)):
        rest = list(make_engine(llama).score(plan, schedule, first))
        assert len(rest) == len(whole) - first
        for a, b in zip(whole[first:], rest, strict=True):
            assert np.array_equal(a.logprob, b.logprob)


@pytest.mark.parametrize("name", ["score-mode", "llama.cpp", "strided", "hf-strided", "gptq"])
def test_overlaps_second_halves_and_window_bos_equal_the_librarys_forward(name, llama):
    tokens = np.random.default_rng(3).integers(3, 101, 150).astype(np.int32)
    protocol = PRESETS[name].override(context_length=24, stride=8 if "s" in name[:5] else None)
    plan = make_plan(tokens, protocol.resolve(64), window_bos=1 if name == "llama.cpp" else None)
    ours = score(make_engine(llama), plan)
    theirs = library_logprobs(library_model(llama, torch.float32), plan)
    assert np.abs(ours.logprob - theirs).max() < 1e-5


def test_states_that_are_not_one_a_target_are_not_scored(llama):
    """Beside a base as many as there are targets would be taken of them, each one place too early."""
    engine, plan = make_engine(llama), random_plan(windows=3)
    score(engine, plan)
    finish = engine.way.finish

    def late(ids: torch.Tensor, out: object) -> torch.Tensor:
        final = finish(ids, out)
        return torch.cat([final[:, :1], final], 1)

    engine.way.finish = late
    with pytest.raises(AssertionError, match=r"\d+, \d+\] states for \[\d+"):
        score(engine, plan)


@pytest.mark.parametrize("vocabulary", [60, 101, 500, None])
def test_softmax_runs_over_the_protocols_vocabulary(vocabulary, llama):
    plan = random_plan(vocabulary=60)
    engine = make_engine(llama, vocabulary)
    width = min(vocabulary or 101, 101)
    assert engine.vocabulary == width
    ours = score(engine, plan)
    model = library_model(llama, torch.float32)
    window = plan[0]
    ids = torch.from_numpy(window.inputs.astype(np.int64))[None]
    logits = model(input_ids=ids, use_cache=False).logits[0, :, :width].double()
    theirs = logits.log_softmax(-1)[range(len(window.targets)), window.targets]
    assert np.abs(ours.logprob[: len(theirs)] - theirs.detach().numpy()).max() < 1e-5
    assert (ours.top1 < width).all()


def test_sharded_checkpoint_scores_alike(llama, tmp_path):
    tensors = load_file(llama / "model.safetensors")
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({n: tensors[n] for n in part}, tmp_path / file)
        weight_map |= dict.fromkeys(part, file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "config.json").write_bytes((llama / "config.json").read_bytes())
    plan = random_plan()
    one, two = score(make_engine(llama), plan), score(make_engine(tmp_path), plan)
    assert np.array_equal(one.logprob, two.logprob)


def test_memory_does_not_grow_with_the_text(llama):
    engine = make_engine(llama, batch_windows=2)
    list(engine.score(random_plan(windows=4), Schedule(2, 2)))
    before = engine.parts.slot.bytes, len(engine.way.preamble._known)
    list(engine.score(random_plan(windows=40), Schedule(2, 2)))
    assert (engine.parts.slot.bytes, len(engine.way.preamble._known)) == before


def test_schedule_is_made_of_fixed_quantities_and_bounded_by_max_memory(llama):
    plan = random_plan(length=64, windows=300, tail=0)
    roomy = make_engine(llama).schedule(plan)
    tight = make_engine(llama, max_memory=8 * 64 * 32 * 4 * 40).schedule(plan)
    assert tight.pass_windows <= 40 < roomy.pass_windows
    assert tight.pass_windows % tight.batch_windows == 0
    with pytest.raises(EngineError, match="--batch-size"):
        make_engine(llama, max_memory=8 * 64 * 32 * 4, batch_windows=2).schedule(plan)


def test_no_window_depends_on_the_windows_before_it(tmp_path):
    """Dynamic NTK rope stretches its table by the longest window so far, in the library's model."""

    def dynamic(settings):
        settings["max_position_embeddings"] = 16
        settings["rope_parameters"] = {
            "rope_type": "dynamic",
            "factor": 4.0,
            "rope_theta": 10000.0,
        }

    folder = make_checkpoint(tmp_path, "llama", change=dynamic)
    plan = random_plan(length=40, windows=3, tail=24)
    schedule = Schedule(pass_windows=1, batch_windows=1)
    parts = list(make_engine(folder).score(plan, schedule))
    for i, part in enumerate(parts):
        (alone, *_) = make_engine(folder).score(plan, schedule, i)
        assert np.array_equal(part.logprob, alone.logprob)
        window = plan[i]
        ids = np.append(window.inputs, window.targets[-1]).astype(np.int32)
        one_window = make_plan(ids, replace(plan.protocol, short_text="one-window"))
        theirs = library_logprobs(library_model(folder, torch.float32), one_window)
        assert np.abs(part.logprob - theirs).max() < 1e-5


def test_unknown_device_is_one_clear_error(llama):
    checkpoint = open_checkpoint(str(llama))
    for name, kind in (("abacus", UsageError), ("mps", EngineError)):
        with pytest.raises(kind, match=name):
            build_engine(checkpoint, TorchOptions(device=name))


def test_auto_dtype_is_the_checkpoints_or_float32(tmp_path):
    folder = make_checkpoint(tmp_path, "llama", dtype=torch.bfloat16)
    flags = torch.cpu.get_capabilities()
    native = any(flags.get(f) for f in ("avx512_bf16", "amx_bf16", "bf16"))
    assert make_engine(folder).dtype == (torch.bfloat16 if native else torch.float32)
    assert make_engine(folder, dtype="bfloat16").dtype == torch.bfloat16


def test_real_model_on_wikitext_equals_the_independent_anchor(data):
    """807,708 targets of stories260K, computed independently in fp32 with float64 log-softmax."""
    text = from_file(data / "wikitext2" / "wiki.test.raw").text("rows")
    protocol = preset("disjoint").override(context_length=512, bos="never").resolve(512)
    plan = tokenize(text, load_tokenizer(data / "stories260K"), protocol)
    ours = score(make_engine(data / "stories260K", dtype="float32"), plan)
    assert len(ours) == 807_708
    assert float(np.exp(ours.nll.mean())) == pytest.approx(119.408507, abs=2e-4)
    full = plan.lengths[ours.window] == 512
    assert full.sum() == 807_380
    assert float(np.exp(ours.nll[full].mean())) == pytest.approx(119.437763, abs=2e-4)


@pytest.mark.parametrize("bits", [4, 8])
def test_real_model_quantized_by_the_library_equals_its_decoded_forward(bits, data, tmp_path):
    """stories260K made W4A16 and W8A16 group 32 by compressed-tensors, where `in` allows it."""
    source = data / "stories260K"
    tensors = load_file(source / "model.safetensors")
    packed, decoded = {}, {}
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        if not name.endswith("_proj.weight") or tensor.shape[1] % 32:
            packed[name] = decoded[name] = tensor
            continue
        state, decoded[name] = library_pack(tensor, bits)
        packed |= {f"{module}.{suffix}": value for suffix, value in state.items()}
    config = json.loads((source / "config.json").read_text())
    quantized = VARIANTS[1].config()
    quantized["ignore"] += ["re:.*down_proj"]
    quantized["config_groups"]["group_0"]["weights"]["num_bits"] = bits
    for folder, weights, settings in (
        (tmp_path / "packed", packed, config | {"quantization_config": quantized}),
        (tmp_path / "decoded", decoded, config),
    ):
        folder.mkdir()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(settings))
    text = from_file(data / "wikitext2" / "wiki.test.raw").text("rows")[:60_000]
    protocol = preset("disjoint").override(context_length=512, bos="never").resolve(512)
    plan = tokenize(text, load_tokenizer(source), protocol)
    ours = score(make_engine(tmp_path / "packed", dtype="float32"), plan)
    theirs = library_logprobs(library_model(tmp_path / "decoded", torch.float32), plan)
    assert np.abs(ours.logprob - theirs).max() < 5e-5
    assert ours.logprob.mean() == pytest.approx(theirs.mean(), abs=1e-7)


def library_pack(weight, bits):
    """The library's tensors of one linear, symmetric group 32, and its own decompression."""
    scheme = QuantizationScheme(
        targets=["Linear"],
        weights=QuantizationArgs(num_bits=bits, strategy="group", group_size=32, symmetric=True),
    )
    grouped = weight.unflatten(1, (-1, 32))
    scale = grouped.abs().amax(2) / ((2**bits - 1) / 2)
    state = {
        "weight": weight,
        "weight_scale": scale,
        "weight_zero_point": torch.zeros(scale.shape, dtype=torch.int8),
    }
    state = PackedQuantizationCompressor.compress(state, scheme)
    return state, PackedQuantizationCompressor.decompress(state, scheme)["weight"]


def test_one_token_of_input_is_a_window(llama):
    plan = make_plan(
        np.array([5, 9], np.int32),
        Protocol("t", context_length=8, short_text="one-window").resolve(64),
    )
    ours = score(make_engine(llama), plan)
    theirs = library_logprobs(library_model(llama, torch.float32), plan)
    assert len(ours) == 1 and abs(ours.logprob[0] - theirs[0]) < 1e-5
