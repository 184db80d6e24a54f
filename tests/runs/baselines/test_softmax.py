"""Flags that give a model and its base one softmax, whatever the widths of their heads."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.run_requests import request

from scoremode.runs.run import common_softmax
from scoremode.text.corpus_plan import PlannedText


def advice(
    *,
    tokens: int,
    entries: int,
    base: dict[str, Any],
    base_entries: int,
    vocabulary: str = "config",
) -> tuple[str, dict[str, str]]:
    ask = replace(request(Path("model"), "text", Path("runs")), reference="base")
    planned = SimpleNamespace(
        tokenizer=SimpleNamespace(size=tokens),
        plan=SimpleNamespace(protocol=SimpleNamespace(vocabulary=vocabulary)),
    )
    return common_softmax(ask, cast("PlannedText", planned), entries, base, base_entries)


def live(size: int) -> dict[str, Any]:
    return {"kind": "model", "tokenizer": {"source": "base", "size": size}}


def stored(size: int) -> dict[str, Any]:
    return {"kind": "stored", "tokenizer": {"source": "kept base", "size": size}}


FILE = {"kind": "llama.cpp"}
ONE = "--vocabulary tokenizer gives both one"


@pytest.mark.parametrize(
    ("found", "words", "flags"),
    [
        (advice(tokens=32_000, entries=32_064, base=live(32_000), base_entries=32_000),
         ONE, {"--vocabulary": "tokenizer"}),
        (advice(tokens=32_016, entries=32_064, base=live(32_000), base_entries=32_000),
         "--vocabulary tokenizer --tokenizer base gives both one",
         {"--vocabulary": "tokenizer", "--tokenizer": "base"}),
        (advice(tokens=31_990, entries=32_000, base=live(32_000), base_entries=32_064),
         "--vocabulary tokenizer --tokenizer model gives both one",
         {"--vocabulary": "tokenizer", "--tokenizer": "model"}),
        (advice(tokens=32_016, entries=32_016, base=live(32_064), base_entries=32_000),
         "neither tokenizer fits 32000 entries, so no flag gives both one vocabulary", {}),
        (advice(tokens=1024, entries=1030, base=FILE, base_entries=1024),
         ONE, {"--vocabulary": "tokenizer"}),
        (advice(tokens=1030, entries=1030, base=FILE, base_entries=1024),
         "no flag gives both one vocabulary", {}),
        (advice(tokens=32_000, entries=32_064, base=stored(32_000), base_entries=32_000),
         "keep the reference anew with --vocabulary tokenizer, and give that here as well", {}),
        (advice(tokens=32_016, entries=32_016, base=stored(32_000), base_entries=32_000,
                vocabulary="tokenizer"),
         "--tokenizer kept base gives both one", {"--tokenizer": "kept base"}),
    ],
)  # fmt: skip
def test_the_tokenizer_that_fits_both_heads_is_named(found, words, flags):
    assert found == (words, flags)
