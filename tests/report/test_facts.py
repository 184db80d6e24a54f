"""Lines of a run's table."""

from typing import Any

import pytest
from support.record_fields import fields

from scoremode.report.facts import (
    _device,
    _memory,
    _seconds,
    calibration_rows,
    caveats,
    chat_sentence,
    chat_words,
    conversation_rows,
    left_out_rows,
    template_rows,
    text_words,
)
from scoremode.report.inspection import _dropped_tail
from scoremode.text.protocol import preset


def caveats_of(engine: dict[str, Any]) -> list[tuple[str, str]]:
    record = fields(
        {"engine": {"kv_cache_dtype": None} | engine, "checkpoint": {"kv_cache_declared": None}}
    )
    record.document = {}
    return caveats(record)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"device": {"name": "a CPU", "threads": 2}}, "a CPU, 2 threads"),
        (
            {"device": {"name": "a CPU", "threads": 1}, "devices": [{}, {}]},
            "2 × a CPU, 1 thread each",
        ),
        ({"device": {"name": "a GPU", "threads": None}, "placement": "device"}, "a GPU"),
        ({"device": {"name": "a GPU", "threads": None}}, "a GPU"),
        (
            {
                "device": {"name": "a GPU", "threads": None},
                "devices": [{}, {}],
                "placement": "pinned host memory",
            },
            "2 × a GPU, weights in pinned host memory",
        ),
    ],
)
def test_what_it_ran_on(engine, words):
    assert _device(fields({"placement": None} | engine)) == words


@pytest.mark.parametrize(
    ("length", "stride", "words"),
    [(512, 512, None), (2048, 512, None), (256, 512, "256 of every 512 tokens")],
)
def test_what_lies_between_windows_is_told(length, stride, words):
    rows = left_out_rows(fields({"context_length": length, "stride": stride}))
    assert [name for name, _ in rows] == ([] if words is None else ["left out"])
    if words is not None:
        assert rows[0][1].startswith(words) and "--stride 256 " in rows[0][1]


@pytest.mark.parametrize(
    ("tail", "windows", "most", "left"),
    [("drop", 7, None, 334), ("drop-exact", 7, None, 334), ("drop", 7, 7, 0), ("keep", 8, None, 0)],
)
def test_a_tail_that_the_protocol_drops_is_told(tail, windows, most, left):
    lengths = {"context_length": 512, "stride": 512, "stop_when": None}
    protocol = fields(lengths | {"tail": tail, "max_windows": most})
    rows = _dropped_tail(fields({"tokens": 3918, "windows": windows}), protocol)
    assert [text.partition(" ")[0] for _, text in rows] == ([str(left)] if left else [])


@pytest.mark.parametrize(
    ("declared", "ran", "row"),
    [
        ("int8 token", "quantized", None),
        (None, None, None),
        (
            "int8 token, outliers from 6 apart",
            "not quantized",
            "LESS: activations are declared int8 token, outliers from 6 apart, and here not quantized",
        ),
        (None, "quantized", "MORE: activations are not declared quantized, and here quantized"),
        (None, "mixed", "MORE: activations are not declared quantized, and here mixed"),
    ],
)
def test_activations_other_than_declared_are_told(declared, ran, row):
    activations = {"declared": declared, "ran": ran}
    engine = {"dtype": "bfloat16", "activations": activations, "unused_tensors": []}
    rows = caveats_of(engine)
    assert [f"{name.removesuffix(' THAN DECLARED')}: {text}" for name, text in rows] == (
        [] if row is None else [row]
    )


def test_seconds_add_up():
    stages = {"start": 0.5, "engine": 1.0, "score": 8.0, "finish": 0.5, "total": 10.0}
    record = {"seconds": stages, "engine": {"seconds": {"load": 1.0, "layers": 6.0}}}
    assert _seconds(fields(record)) == (
        "10.00 in all: start 0.50, engine 1.00, score 8.00, finish 0.50; engine and score are "
        "load 1.00, layers 6.00, other 2.00"
    )


def test_a_gpu_that_loads_meanwhile_leaves_nothing_over():
    record = {
        "seconds": {"engine": 0.0, "score": 1.0, "total": 1.0},
        "engine": {"seconds": {"load": 0.5, "layers": 0.9}},
    }
    assert _seconds(fields(record)).endswith("load 0.50, layers 0.90")


def test_llama_cpps_arithmetic_is_named():
    engine = {
        "arithmetic": "llama.cpp",
        "dtype": "float32",
        "kv_cache_dtype": "float16",
        "unused_tensors": [],
        "activations": {"declared": None, "ran": "quantized"},
    }
    rows = caveats_of(engine)
    assert [name for name, _ in rows] == ["KV cache", "arithmetic"]
    assert rows[1][1].startswith("llama.cpp's: inputs of linears rounded")


@pytest.mark.parametrize(
    ("kind", "expected", "chunk", "words"),
    [
        ("cuda", None, None, "3.00 GiB"),
        ("cuda", 7, None, "3.00 GiB, 3.50 expected"),
        ("cuda", 7, 8192, "3.00 GiB, 3.50 expected; long windows in chunks of 8,192 tokens"),
        # A process's memory has more in it than what was expected of windows.
        ("cpu", 7, 4096, "3.00 GiB; long windows in chunks of 4,096 tokens"),
    ],
)
def test_memory_is_told_with_what_was_expected_of_long_windows(kind, expected, chunk, words):
    engine = {"peak_bytes": 3 << 30, "device": {"type": kind}}
    if expected is not None:
        engine["estimated_bytes"] = expected << 29
    schedule = {} if chunk is None else {"chunk_tokens": chunk}
    assert _memory(fields({"engine": engine, "schedule": schedule})) == words


@pytest.mark.parametrize(
    ("limit", "seed", "words"),
    [
        (None, None, "t, 9 bytes (rows)"),
        (9, None, "t, first 9 of 1100 rows, 9 bytes (rows)"),
        (9, 5, "t, 9 of 1100 rows drawn by seed 5, 9 bytes (rows)"),
        # More are asked for than there are.
        (5000, 5, "t, 1100 of 1100 rows drawn by seed 5, 9 bytes (rows)"),
        (5000, None, "t, first 1100 of 1100 rows, 9 bytes (rows)"),
    ],
)
def test_how_many_rows_a_text_is_of(limit, seed, words):
    corpus = {"name": "t", "rows": 1100, "row_limit": limit, "text": {"bytes": 9, "rule": "rows"}}
    assert text_words(fields(corpus | ({} if seed is None else {"row_seed": seed}))) == words


@pytest.mark.parametrize(
    ("rule", "words"), [("rows", "t, 9 bytes"), ("pages", "t, 9 bytes (pages)")]
)
def test_a_text_file_has_no_rows(rule, words):
    corpus = {"name": "t", "rows": None, "row_limit": None, "text": {"bytes": 9, "rule": rule}}
    assert text_words(fields(corpus)) == words


SECTION = {"name": "c4<b>.jsonl", "tokens": 1234, "ngram": 13, "targets": 5, "share": 0.5}


def test_a_text_that_is_not_held_out_has_a_row():
    (row,) = calibration_rows(fields({"calibration": SECTION}))
    assert row[0] == "NOT HELD OUT" and row[1].startswith("50.00% of the targets stand in c4")
    assert (
        "1,234 tokens" in row[1]
        and calibration_rows(fields({"calibration": SECTION}), held_out=True) == []
    )


def test_the_worst_group_is_named():
    labels = {"a": 0.1, "b|c": 0.9}
    ((_, words),) = calibration_rows(fields({"calibration": SECTION | {"labels": labels}}))
    assert words.endswith("; of b|c 90.00%")


def test_one_that_is_held_out_has_its_row_where_all_is_said():
    section = SECTION | {"targets": 0, "share": 0.0}
    assert (
        calibration_rows(fields({"calibration": section}))
        == []
        == calibration_rows(fields({}), held_out=True)
    )
    ((name, words),) = calibration_rows(fields({"calibration": section}), held_out=True)
    assert name == "held out" and words.startswith("none of the targets stand in")


FACTS: dict[str, Any] = {
    "template": {"source": "m/t.jinja", "sha256": 64 * "a", "arguments": {}, "date": None},
    "ends": [2],
    "read": 1200,
    "bad_rows": 0,
    "bad": [],
    "long": 0,
    "lost": 0,
    "turns": 3,
    "apart": 0,
    "unended": 0,
    "unprompted": 0,
    "straddling": 0,
}


def test_a_text_has_no_rows_of_them():
    assert conversation_rows(fields({"name": "x"})) == template_rows(fields({"name": "x"})) == []


def test_what_is_not_said_did_not_happen():
    assert conversation_rows(fields({"conversations": FACTS})) == [
        ("turns", "1,200 conversations; 3 turns")
    ]
    source = f"m/t.jinja, sha256 {12 * 'a'}…"
    assert template_rows(fields({"conversations": FACTS})) == [("chat template", source)]


def test_all_that_may_happen_is_said():
    names = ("bad_rows", "long", "lost", "apart", "unended", "unprompted", "straddling", "unmarked")
    names += ("without_calls", "outside", "prompted", "behind", "opening", "beyond")
    spread = {"least": 0, "median": 2.5, "most": 1200}
    facts = FACTS | dict.fromkeys(names, 1) | {"turn_targets": spread}
    assert conversation_rows(fields({"conversations": facts})) == [
        (
            "turns",
            "1,200 conversations, 1 bad and left out, 1 longer than a window, 1 without a target "
            "left; 3 turns of 0 to 1,200 targets (median 2.5), 1 with a text of their own, 1 without "
            "an end, 1 that begin otherwise than the template prompts, 1 whose tool calls the chat "
            "template leaves out (--chat-template FILE)",
        ),
        (
            "not scored",
            "1 turn that the chat template doesn't mark as generated, 1 token outside the template's "
            "marks, 1 token marked, and given by the prompt, 1 token shared with what the model didn't "
            "generate, 1 token behind the end of a turn, 1 token with nothing before, 1 token beyond "
            "the context length",
        ),
    ]


def test_bad_rows_and_a_template_s_values_are_shown_harmless():
    given = {"arguments": {"enable_thinking": False}, "date": "2025-01-01"}
    facts = FACTS | {"template": FACTS["template"] | given, "bad": ["x.jsonl, line 3: \x1b[31m"]}
    (_, words), left_out = template_rows(fields({"conversations": facts}))
    assert words.endswith('given {"enable_thinking": false}, for which today is 2025-01-01')
    assert left_out == ("left out", r"x.jsonl, line 3: \x1b[31m")


def test_a_protocol_in_a_line():
    rules = preset("chat").override(scored="completion", long="split").resolve(None).to_json()
    rules = fields(rules)
    assert chat_words(rules) == (
        "chat+scored=completion+long=split (the last turn's targets; longer than 4,096 tokens: split)"
    )
    assert chat_sentence(rules, fields(FACTS)) == (
        f"each conversation by itself by chat template {12 * 'a'}, those longer than 4,096 tokens "
        "split into windows, the last turn's targets"
    )
    assert chat_sentence(rules, fields(FACTS | {"template": None})).startswith(
        "each conversation by itself, "
    )
