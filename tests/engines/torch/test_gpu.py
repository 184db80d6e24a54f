"""The engine on a GPU: against a CPU's, against itself, and what it takes.

The limits of the perplexities' differences are those measured on an H200 (docs/log.md, "CPU against
H200"), with room for another GPU's order of sums.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.families.mxfp4_experts import make_pair as make_gpt_oss
from support.models import make_checkpoint, random_plan

from scoremode.checkpoint.files import open_checkpoint
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.base import Schedule
from scoremode.engines.torch.engine import TorchEngine, build_engine
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import EngineError
from scoremode.lib import fallback
from scoremode.results.folders.store import read_scores
from scoremode.results.scores import Scores, check, concatenate
from scoremode.runs.measure import measure
from scoremode.runs.request import Request
from scoremode.text.corpus import from_file, from_string
from scoremode.text.plan import Plan
from scoremode.text.protocol import preset
from scoremode.text.tokenizer import load_tokenizer, tokenize

GPU = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

FORMATS = ["dense", *(v.name for v in VARIANTS)]
# Relative difference of the perplexities where activations are quantized too, by dtype: native products
# and emulated ones round differently, and where a value falls between two codes that shows.
ACTIVATIONS = {
    "W8A8": {"float32": 2e-4, "bfloat16": 5e-4},
    "NVFP4": {"float32": 2e-4, "bfloat16": 1.5e-3},
    "FP8_DYNAMIC": {"float32": 8e-4, "bfloat16": 5e-4},
    "FP8-block64": {"float32": 8e-4, "bfloat16": 5e-4},
}
WEIGHTS = {"float32": 1e-6, "bfloat16": 2e-4}


@pytest.fixture(scope="module")
def folder(demo, tmp_path_factory) -> Callable[[str], Path]:
    """The demo model in a format."""
    made = {"dense": demo / "model"}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("formats") / name
            quantize_folder(demo / "model", made[name], next(v for v in VARIANTS if v.name == name))
        return made[name]

    return make


def plan_of(model: Path, text: str, context: int = 512, **rules) -> Plan:
    protocol = preset("disjoint").override(context_length=context, **rules).resolve(512)
    return tokenize(from_string(text).text("rows"), load_tokenizer(model), protocol)


@pytest.fixture(scope="module")
def text(demo) -> str:
    return (demo / "heldout.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def plan(demo, text) -> Plan:
    """All of the demo's held-out text: some 30 windows, the last one short."""
    return plan_of(demo / "model", text)


@pytest.fixture(scope="module")
def short(demo, text) -> Plan:
    return plan_of(demo / "model", text[:12_000], 128)


def score(
    model: Path,
    plan: Plan,
    device: str = GPU,
    schedule: Schedule | None = None,
    first_pass: int = 0,
    **options,
) -> Scores:
    """A new engine's Scores, checked; it is closed again."""
    engine = build_engine(open_checkpoint(str(model)), TorchOptions(device=device, **options))
    try:
        schedule = schedule or engine.schedule(plan)
        parts = list(engine.score(plan, schedule, first_pass))
    finally:
        engine.close()
    for windows, part in zip(schedule.passes(plan)[first_pass:], parts, strict=True):
        check(part, plan, windows)
    return concatenate(parts)


def assert_same(one: Scores, other: Scores) -> None:
    a, b = one.columns(), other.columns()
    assert a.keys() == b.keys()
    for name in a:
        assert np.array_equal(a[name], b[name]), name


def difference(one: Scores, other: Scores) -> float:
    """Relative, of the perplexities."""
    return abs(float(np.expm1(one.nll.mean() - other.nll.mean())))


@pytest.mark.parametrize("dtype", WEIGHTS)
@pytest.mark.parametrize("name", FORMATS)
def test_perplexities_with_weights_alone_are_a_cpus(name, dtype, folder, plan):
    options = {"dtype": dtype, "arithmetic": "weights"}
    gpu, cpu = (score(folder(name), plan, device, **options) for device in (GPU, "cpu"))
    assert difference(gpu, cpu) < WEIGHTS[dtype]
    apart = np.abs(gpu.logprob - cpu.logprob)
    if dtype == "float32":
        assert apart.max() < 5e-4
        assert (gpu.top1 == cpu.top1).mean() > 0.999
    else:
        assert np.sqrt((apart**2).mean()) < 0.03


@pytest.mark.parametrize("dtype", WEIGHTS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_perplexities_with_quantized_activations_are_a_cpus(name, dtype, folder, plan):
    gpu, cpu = (score(folder(name), plan, device, dtype=dtype) for device in (GPU, "cpu"))
    assert difference(gpu, cpu) < ACTIVATIONS[name][dtype]
    # The activations are quantized at all.
    alone = score(folder(name), plan, GPU, dtype=dtype, arithmetic="weights")
    assert np.abs(gpu.logprob - alone.logprob).mean() > 0.005


@pytest.mark.parametrize("dtype", WEIGHTS)
@pytest.mark.parametrize("name", ["dense", "W8A16", "W4A16-channel", "FP8_DYNAMIC"])
def test_a_real_models_perplexity_is_a_cpus(name, dtype, data, tmp_path):
    """stories260K, whose linears have 172 inputs: no power of two, and no multiple of a group."""
    source, model = data / "stories260K", data / "stories260K"
    if name != "dense":
        model = tmp_path / name
        quantize_folder(source, model, next(v for v in VARIANTS if v.name == name))
    whole = from_file(data / "wikitext2" / "wiki.test.raw").text("rows")[:30_000]
    protocol = preset("disjoint").override(context_length=512, bos="never").resolve(512)
    plan = tokenize(whole, load_tokenizer(source), protocol)
    options = {"dtype": dtype, "arithmetic": "weights"}
    gpu, cpu = (score(model, plan, device, **options) for device in (GPU, "cpu"))
    # Strange text to it: in bfloat16 one log-probability moves by 0.09 nats (rms) when anything is
    # rounded in another order, on one device as between two, and the mean of so few by 5e-4.
    noise = float((gpu.logprob - cpu.logprob).std()) / len(gpu) ** 0.5
    assert difference(gpu, cpu) < max(WEIGHTS[dtype], 3 * noise if dtype == "bfloat16" else 0)
    assert noise < 1e-3


@pytest.mark.parametrize(
    "name", ["gemma2", "qwen3", "phi", "gpt2", "cohere2", "mixtral", "qwen3_moe"]
)
def test_other_architectures_are_a_cpus(name, tmp_path):
    """Softcaps, sliding windows, biases, position tables, experts."""
    model, plan = make_checkpoint(tmp_path / name, name), random_plan(windows=9)
    gpu, cpu = (score(model, plan, d, dtype="float32", batch_windows=2) for d in (GPU, "cpu"))
    assert np.abs(gpu.logprob - cpu.logprob).max() < 1e-4


DETERMINED = ["dense", "W4A16-g32", "W8A8", "FP8_DYNAMIC", "NVFP4"]


@pytest.mark.parametrize("name", DETERMINED)
def test_neither_place_nor_pass_changes_a_bit(name, folder, short):
    """Nor another engine, nor where a run is resumed."""
    model = folder(name)
    whole = score(model, short, schedule=Schedule(8, 4))
    passes = Schedule(8, 4).passes(short)
    assert len(passes) > 3
    for place in ("device", "host", "disk"):
        assert_same(score(model, short, schedule=Schedule(8, 4), place=place), whole)
    for windows in (4, 12, 400):
        assert_same(score(model, short, schedule=Schedule(windows, 4)), whole)
    rest = score(model, short, schedule=Schedule(8, 4), first_pass=2)
    begin = int(short.offsets[passes[2].start])
    for column, values in rest.columns().items():
        assert np.array_equal(values, whole.columns()[column][begin:]), column


@pytest.mark.parametrize("place", ["device", "host", "disk"])
def test_experts_are_the_same_wherever_they_lie(place, tmp_path):
    model, plan = make_checkpoint(tmp_path / "m", "qwen3_moe"), random_plan(windows=9)
    scores = score(model, plan, schedule=Schedule(4, 2), place=place)
    assert_same(scores, score(model, plan, schedule=Schedule(8, 2)))


@pytest.mark.parametrize("place", ["device", "host", "disk"])
def test_experts_that_are_stored_as_one_are_a_cpus_wherever_they_lie(place, tmp_path):
    """gpt-oss', one at a time where there is no room for more."""
    (model, _), plan = make_gpt_oss(tmp_path), random_plan(windows=9)
    gpu = score(model, plan, schedule=Schedule(4, 2), place=place, dtype="float32")
    assert_same(gpu, score(model, plan, schedule=Schedule(8, 2), dtype="float32"))
    cpu = score(model, plan, "cpu", schedule=Schedule(4, 2), dtype="float32")
    assert np.abs(gpu.logprob - cpu.logprob).max() < 1e-4


@pytest.fixture
def request_(folder, text, tmp_path) -> Request:
    return Request(
        model=str(folder("W4A16-g32")),
        corpus=from_string(text[:20_000]),
        protocol=preset("disjoint").override(context_length=128),
        options=TorchOptions(device=GPU, batch_windows=4),
        output=tmp_path / "runs",
    )


@pytest.fixture
def many_passes(monkeypatch) -> None:
    monkeypatch.setattr(TorchEngine, "schedule", lambda *_: Schedule(8, 4))


@pytest.mark.parametrize("arithmetic", ["FP8_DYNAMIC", "W4A16-g32"])
def test_the_same_run_twice_gives_the_same_bits(arithmetic, request_, folder):
    runs = [measure(replace(request_, model=str(folder(arithmetic)))).folder for _ in range(2)]
    assert runs[0] != runs[1]
    assert (runs[0] / "scores.parquet").read_bytes() == (runs[1] / "scores.parquet").read_bytes()


@pytest.mark.parametrize("passes", [1, 3])
def test_an_interrupted_run_goes_on_to_the_same_bits(passes, request_, many_passes, monkeypatch):
    whole = measure(request_)
    launch = TorchEngine._launch

    def interrupt(self, work):
        # For the hashes, before which nothing is written.
        time.sleep(0.3)
        # The pass before it is queued, and lost with the process.
        if work.number == passes + 1:
            raise KeyboardInterrupt
        return launch(self, work)

    with monkeypatch.context() as patch:
        patch.setattr(TorchEngine, "_launch", interrupt)
        with pytest.raises(KeyboardInterrupt):
            measure(request_)
    lines: list[str] = []
    resumed = measure(replace(request_, resume=True), notify=lines.append)
    assert resumed.folder != whole.folder
    assert any(line.endswith(f"after {passes} passes") for line in lines)
    a, b = (r.folder / "scores.parquet" for r in (whole, resumed))
    assert a.read_bytes() == b.read_bytes()


def test_a_real_lack_of_memory_halves_the_micro_batch(request_, many_passes, monkeypatch):
    """CUDA's own error, in the middle of the third pass: the run goes on, and nothing is lost."""
    run_layers, seen = TorchEngine._run_layers, []

    def greedy(self, probes, ids, *more):
        seen.append((len(ids[0]), torch.cuda.memory_allocated()))
        if len(ids[0]) == 4 and len(seen) == 3:
            states = torch.empty(1 << 28, dtype=torch.uint8, device=GPU)
            torch.empty(1 << 50, dtype=torch.uint8, device=states.device)
        return run_layers(self, probes, ids, *more)

    monkeypatch.setattr(TorchEngine, "_run_layers", greedy)
    result = measure(request_)
    change = result.record.document["schedule_change"]
    assert change["after_passes"] == 2 and change["batch_windows_before"] == 4
    assert "out of memory" in change["reason"] and "\n" not in change["reason"]
    assert result.record.document["schedule"] == {"pass_windows": 8, "batch_windows": 2}
    assert [size for size, _ in seen[:4]] == [4, 4, 4, 2]
    # What the failed pass had allocated is free again.
    assert seen[3][1] - seen[2][1] < 1 << 26
    monkeypatch.undo()
    monkeypatch.setattr(TorchEngine, "schedule", lambda *_: Schedule(8, 4))
    plain = read_scores(measure(request_).folder)
    scores = read_scores(result.folder)
    assert np.array_equal(scores.target, plain.target)
    cut = int((scores.window < 16).sum())
    assert np.array_equal(scores.logprob[:cut], plain.logprob[:cut])
    assert np.abs(scores.logprob - plain.logprob).max() < 0.2


@pytest.mark.parametrize("name", ["dense", "W3A16-g32"])
def test_stored_and_live_bases_give_the_same_bits(name, request_, folder, tmp_path, many_passes):
    base, kept = str(folder("dense")), tmp_path / "reference"
    measure(replace(request_, model=base, output=kept, keep="stored"))
    results = [
        measure(
            replace(
                request_,
                model=str(folder(name)),
                output=tmp_path / "runs" / Path(reference).name,
                reference=reference,
                full=True,
            )
        )
        for reference in (str(kept), base)
    ]
    stored, live = (read_scores(r.folder) for r in results)
    assert_same(stored, live)
    assert stored.against is not None and stored.against.jsd is not None
    assert results[0].record.document["metrics"] == results[1].record.document["metrics"]
    assert results[0].record.document["reference"]["replay"]["bitwise"]
    kld = [np.abs(c).max() for c in (stored.against.kld, stored.against.kld_reverse)]
    if name == "dense":
        assert kld == [0, 0] and not stored.against.jsd.any()
        assert np.array_equal(stored.logprob, stored.against.base_logprob)
        assert results[0].record.document["metrics"]["ppl_ratio"]["value"] == 1.0
    else:
        assert min(kld) > 0.01 and (stored.against.kld > -1e-6).all()


@pytest.mark.parametrize("name", FORMATS)
def test_every_kernel_is_tritons_and_the_record_says_so(name, folder, short, monkeypatch):
    # What other tests of this process had run.
    monkeypatch.setattr(fallback, "_ran", {})
    monkeypatch.setattr(fallback, "_refused", {})
    engine = build_engine(open_checkpoint(str(folder(name))), TorchOptions(device=GPU))
    torch.cuda.reset_peak_memory_stats()
    scores = concatenate(list(engine.score(short, engine.schedule(short))))
    described = engine.describe()
    engine.close()
    assert len(scores) == short.scored
    plain = {k: v for k, v in described["kernels"].items() if v != "triton"}
    assert not plain
    if name != "dense":
        assert described["kernels"]
    # The model is in bfloat16, of an architecture whose parts all have kernels.
    assert described["fused"] and set(described["fused"].values()) == {"triton"}
    assert described["placement"] == "device"
    assert 0 < described["peak_bytes"] <= engine.device.memory
    assert set(described["seconds"]) == {"load", "embed", "decode", "layers", "head"}
    json.dumps(described, allow_nan=False)


def test_the_command_keeps_to_its_memory_and_place(request_, demo, tmp_path):
    """In a process of its own: a bound is the whole process's."""
    command = [sys.executable, "-m", "scoremode", "ppl", request_.model]
    command += ["-f", str(demo / "heldout.txt"), "-c", "128", "--json", "--device", GPU]
    command += ["--placement", "disk", "--max-memory", "2GiB", "-o", str(tmp_path / "own")]
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert run.returncode == 0, run.stderr
    record = json.loads(run.stdout)
    assert record["engine"]["placement"] == "files, read again in every pass"
    assert record["engine"]["peak_bytes"] <= (2 << 30) - (3 << 28)
    assert record["identity"]["engine"]["device"]["memory_bytes"] == (2 << 30) - (3 << 28)


def test_a_model_that_does_not_fit_is_refused_before_a_pass(folder, short):
    engine = build_engine(open_checkpoint(str(folder("dense"))), TorchOptions(device=GPU))
    try:
        small = replace(engine.parts.memory, device=replace(engine.device, memory=1 << 20))
        with pytest.raises(EngineError, match="--max-memory"):
            small.schedule(128, None)
    finally:
        engine.close()


@pytest.mark.parametrize("name", ["dense", "W4A16-g32", "W8A8", "FP8_DYNAMIC"])
def test_long_windows_in_chunks_score_as_whole_ones(name, folder, tmp_path):
    """In half of the memory beside what is fixed, which is what was expected of them."""
    model = Path(shutil.copytree(folder(name), tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    config["max_position_embeddings"] = 1 << 17
    (model / "config.json").write_text(json.dumps(config))
    plan = random_plan(1 << 16, windows=1, tail=9_000, vocabulary=1000)
    engine = build_engine(open_checkpoint(str(model)), TorchOptions(device=GPU))
    peaks, found = {}, {}
    for chunk in (None, 8192, 2048):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        schedule = Schedule(1, 1, chunk)
        found[chunk] = concatenate(list(engine.score(plan, schedule)))
        peaks[chunk] = torch.cuda.max_memory_allocated() - before
        again = concatenate(list(engine.score(plan, schedule)))
        assert np.array_equal(found[chunk].logprob, again.logprob)
        assert np.abs(found[chunk].nll.mean() / found[None].nll.mean() - 1) < 1e-4
        # Of tensors alone: what the allocator loses is a sixteenth of all.
        layer = engine.parts.memory.layer
        assert layer is not None
        states = (1 << 16) * engine.parts.memory.pass_token
        expected = layer.bytes(1, 1 << 16, chunk) + states
        assert peaks[chunk] < 1.15 * expected + (1 << 28)
    # Not in this order of each other: products of int8 hold something beside a chunk (13 MB of 142).
    assert max(peaks[2048], peaks[8192]) < peaks[None]
