"""A whole ladder with vLLM's steps, in processes of their own."""

import json

import pytest
from support.programs import run

from scoremode.results.folders.store import read_record, read_scores


@pytest.fixture(scope="module")
def ladder(engines, checkpoint, demo, tmp_path_factory):
    """The folder of a ladder in float32, and the command that made it."""
    from scoremode.cli.main import main

    place = tmp_path_factory.mktemp("ladder") / "whole"
    asked = ["ladder", checkpoint("dense"), "--reference", str(demo / "model"), "-f",
             str(demo / "heldout.txt"), "--protocol", "disjoint", "-c", "128", "--limit", "32",
             "--dtype", "float32", "--device", "cpu", "-o", str(place)]  # fmt: skip
    assert main([*asked, "--quiet"]) == 0
    return place, asked


def test_prefill_and_decode_are_beside_the_torch_engine_and_beside_each_other(ladder, capsys):
    place, asked = ladder
    code, out, err = run(capsys, *asked, "--json")
    value = json.loads(out)
    assert (code, err) == (0, "")
    lines = {line["step"]: line for line in value["findings"]["steps"]}
    assert list(lines) == ["weights", "vllm-prefill", "vllm-decode"]
    befores = [line["before"] for line in lines.values()]
    assert befores == ["base-float32", "weights", "vllm-prefill"]
    for name in ("vllm-prefill", "vllm-decode"):
        judged = lines[name]["judged"]
        assert not judged["alarm"] and judged["noise_tv"] > 0 and "as rounding: " in judged["words"]
    record = read_record(place / "vllm-decode")
    assert record["engine"]["engine"] == "vllm" and record["engine"]["phase"] == "decode"
    assert lines["vllm-decode"]["engine"]["phase"] == "decode"
    assert "alarm" not in value["findings"]["verdict"]


def test_the_replayed_comparison_is_that_of_the_runs_themselves(ladder):
    """Of a float32 engine nothing is rounded: both see the same log-probabilities."""
    place, _ = ladder
    value = json.loads((place / "ladder.json").read_text())
    for step in value["steps"]:
        if step["name"] not in ("vllm-prefill", "vllm-decode"):
            continue
        after = read_scores(place / step["after"])
        own, before = (read_scores(place / name) for name in (step["name"], step["before"]))
        assert after.against is not None
        assert after.logprob == pytest.approx(own.logprob, abs=1e-5)
        assert after.against.base_logprob == pytest.approx(before.logprob, abs=1e-5)


def test_a_fault_in_one_engine_alone_is_an_alarm(ladder, capsys, monkeypatch):
    """vLLM given another RoPE than the model's: a fault that no other step has."""
    place, asked = ladder
    other = [*asked[:-1], str(place.with_name("odd")), "--skip", "vllm-decode", "--engine-arg",
             'hf_overrides={"rope_theta": 5000.0, "rope_parameters": {"rope_theta": 5000.0, '
             '"rope_type": "default"}}']  # fmt: skip
    code, out, _ = run(capsys, *other)
    assert code == 3 and out.startswith("alarm at vllm-prefill: ")


@pytest.mark.large
def test_int8_inputs_are_other_codes_in_vllm_which_float32_shows(ladder, checkpoint, capsys):
    """compressed-tensors divides the largest by 127.5, vLLM by 127: an eighth of the codes."""
    place, asked = ladder
    home = str(place.with_name("w8a8"))
    other = ["ladder", checkpoint("W8A8"), *asked[2:-1], home]
    code, out, _ = run(capsys, *other, "--json")
    lines = {line["step"]: line for line in json.loads(out)["findings"]["steps"]}
    assert code == 3 and lines["vllm-prefill"]["judged"]["alarm"]
    assert lines["vllm-prefill"]["judged"]["pattern"] == "everywhere"
    assert not lines["vllm-decode"]["judged"]["alarm"]
