"""A second run: the record's options, the base by rows, and what is not as it was."""

import copy
from dataclasses import replace

import pytest
from support.forged_runs import wrong
from support.records import typed

from scoremode.checkpoint.model_files import resolve_local
from scoremode.errors import UsageError
from scoremode.results.audit.findings import Findings
from scoremode.results.folders.store import read_record
from scoremode.results.record.model import Reference
from scoremode.results.record.section import decode
from scoremode.runs.check.check import Rerun, check
from scoremode.runs.check.inputs import Sources
from scoremode.runs.check.second_run import (
    _open_base,
    differing_conditions,
    options_of,
    score_again,
)
from scoremode.runs.check.text import audited_plan
from scoremode.runs.rescore.rescore import drawn_windows, micro_batches


def test_options_are_the_records(published):
    engine = read_record(published.ppl)["engine"]
    options = options_of(engine, None)
    assert (options.dtype, options.arithmetic, options.attention, options.device) == (
        engine["dtype"], "weights", engine["attention"], "cpu",
    )  # fmt: skip
    assert options.batch_windows == 3 and options.kv_cache == "none"
    vllm = engine | {"engine": "vllm", "arithmetic": "vllm's", "attention": "FLASH",
                     "activations": {"declared": "int8", "ran": "quantized"}}  # fmt: skip
    options = options_of(vllm, None)
    assert options.arithmetic == "weights+activations" and options.attention is None
    declared = engine | {"kv_cache_dtype": "float8"}
    assert options_of(declared, None).kv_cache == "as-declared"
    assert options_of(declared | {"arithmetic": "llama.cpp"}, None).kv_cache == "none"


def test_conditions_are_the_device_the_options_and_the_versions(published):
    record = read_record(published.ppl)
    engine = copy.deepcopy(record["identity"]["engine"])
    assert differing_conditions(typed(record), engine) == []
    engine["device"]["name"], engine["dtype"] = "another", "float32"
    record["versions"]["torch"] = "1.0"
    words = " | ".join(differing_conditions(typed(record), engine))
    assert "device name" in words and "another now" in words
    assert "dtype bfloat16 then, float32 now" in words
    assert "torch 1.0 then" in words


def test_another_dtype_is_judged_by_what_its_rounding_explains(published, monkeypatch):
    def float32(*args, **more):
        return replace(options_of(*args, **more), dtype="float32")

    monkeypatch.setattr("scoremode.runs.check.second_run.options_of", float32)
    result = check([published.against_model], rerun=Rerun(str(published.quant), share=0.5))
    found = {f["name"]: f for f in result["runs"][0]["findings"] if f["part"] == "second run"}
    assert found["scores"]["status"] == found["mean KLD"]["status"] == "held", wrong(result)
    assert "agrees: as bfloat16 with float32 logits rounds" in found["scores"]["words"]
    assert "not expected to be the same bits: dtype" in found["scores"]["words"]
    again = result["runs"][0]["second_run"]
    assert not again["same_bits"] and 0 < again["difference"]["rms"] < 0.4
    assert 0 < abs(again["ppl_moved"]) < 0.01


def test_without_the_base_the_models_own_scores_are_compared(published, tmp_path):
    places = Sources(reference=str(tmp_path))
    result = check([published.against_kept], places, Rerun(str(published.quant)))
    found = {f["name"]: f for f in result["runs"][0]["findings"] if f["part"] == "second run"}
    assert found["comparison with the base"]["status"] == "unchecked"
    assert found["scores"]["status"] == "held" and "kld" not in found["scores"]["words"]


def test_a_base_is_made_again_with_the_cache_that_it_had(published):
    """A base of before had the cache that its checkpoint declares, where its model had."""
    section = copy.deepcopy(read_record(published.against_model)["reference"])
    for cache in (None, "int8-token"):
        section["engine"]["kv_cache_dtype"] = cache
        options = options_of(section["engine"], None)
        base = _open_base(decode(section, Reference), Sources(), options, 64)
        try:
            assert base._engine is not None
            assert base._engine.identity().get("kv_cache_dtype") == cache
        finally:
            base.close()


def test_a_model_that_lacks_a_token_is_another_one(published):
    record = read_record(published.ppl)
    found = audited_plan(typed(record), Sources(), Findings())
    assert found is not None
    plan, _ = found
    drawn = drawn_windows(plan, micro_batches(typed(record), plan), 0.1, 0)
    record["engine"]["vocabulary"] = 5
    options = options_of(record["engine"], None)
    with pytest.raises(UsageError, match="is another model: the run has token id"):
        model = resolve_local(published.quant)
        score_again(typed(record), drawn, model, Sources(), options, full=False, draft=None,
                    progress=lambda *_: None)  # fmt: skip
