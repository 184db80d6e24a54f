"""Lines of a run's table."""

import pytest

from scoremode.report.table import _device, _left_out, _memory, _seconds, caveats, text_words


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
    assert _device(engine) == words


@pytest.mark.parametrize(
    ("length", "stride", "words"),
    [(512, 512, None), (2048, 512, None), (256, 512, "256 of every 512 tokens")],
)
def test_what_lies_between_windows_is_told(length, stride, words):
    rows = _left_out({"context_length": length, "stride": stride})
    assert [name for name, _ in rows] == ([] if words is None else ["left out"])
    if words is not None:
        assert rows[0][1].startswith(words) and "--stride 256 " in rows[0][1]


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
    rows = caveats({"engine": engine, "checkpoint": {"kv_cache_declared": None}})
    assert [f"{name.removesuffix(' THAN DECLARED')}: {text}" for name, text in rows] == (
        [] if row is None else [row]
    )


def test_seconds_add_up():
    stages = {"start": 0.5, "engine": 1.0, "score": 8.0, "finish": 0.5, "total": 10.0}
    record = {"seconds": stages, "engine": {"seconds": {"load": 1.0, "layers": 6.0}}}
    assert _seconds(record) == (
        "10.00 in all: start 0.50, engine 1.00, score 8.00, finish 0.50; engine and score are "
        "load 1.00, layers 6.00, other 2.00"
    )


def test_a_gpu_that_loads_meanwhile_leaves_nothing_over():
    record = {
        "seconds": {"engine": 0.0, "score": 1.0, "total": 1.0},
        "engine": {"seconds": {"load": 0.5, "layers": 0.9}},
    }
    assert _seconds(record).endswith("load 0.50, layers 0.90")


def test_llama_cpps_arithmetic_is_named():
    engine = {
        "arithmetic": "llama.cpp",
        "dtype": "float32",
        "kv_cache_dtype": "float16",
        "unused_tensors": [],
        "activations": {"declared": None, "ran": "quantized"},
    }
    rows = caveats({"engine": engine, "checkpoint": {"kv_cache_declared": None}})
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
    assert _memory({"engine": engine, "schedule": schedule}) == words


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
    assert text_words(corpus | ({} if seed is None else {"row_seed": seed})) == words
