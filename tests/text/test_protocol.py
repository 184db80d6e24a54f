"""The presets, field by field, and what may be changed about them."""

import dataclasses
import re
from pathlib import Path

import pytest

from scoremode.errors import ProtocolError
from scoremode.text.protocol import PRESETS, Protocol, preset

PAGE = Path(__file__).parents[2] / "docs" / "protocols.md"
# By the tools' own sources: text, BOS and where, L, S, scored, tail, at most R windows, vocabulary,
# average.
FACTS = {
    "score-mode": (
        "rows",
        "auto",
        "special-tokens",
        2048,
        512,
        "all",
        "drop-exact",
        None,
        "config",
    ),
    "score-mode-nonblank": (
        *("nonblank-rows", "auto", "special-tokens"),
        *(2048, 512, "all", "drop-exact", None, "config"),
    ),
    "exl3": ("rows", "never", None, 2048, 2048, "all", "drop-exact", 100, "tokenizer"),
    "exl3-s512": ("rows", "never", None, 2048, 512, "all", "drop-exact", 100, "tokenizer"),
    "exl3-compare-q": ("rows", "auto", "stream", 2048, 512, "all", "drop-exact", 100, "head"),
    "exl3-qbench": (
        *("nonblank-rows", "never", None),
        *(2048, 2048, "all", "drop-exact", 10, "tokenizer"),
    ),
    "gptq": ("rows", "auto", "special-tokens", 2048, 2048, "all", "drop", None, "config"),
    "llama.cpp": ("raw-file", "auto", "windows", 512, 512, "second-half", "drop", None, "head"),
    "disjoint": ("rows", "auto", "stream", 2048, 2048, "all", "keep", None, "config"),
    "strided": ("rows", "auto", "special-tokens", 1024, 512, "new", "keep", None, "config"),
    "hf-strided": ("rows", "auto", "special-tokens", 1024, 512, "new", "keep", None, "config"),
    "lm-eval": ("pages", "never", None, 1024, 1024, "continuation", "keep", None, "config"),
    "chat": ("conversations", "never", None, 4096, 4096, "assistant", "keep", None, "config"),
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_what_the_tools_do(name):
    # GPT-2 has 1024 positions, and the strided protocols take the model's.
    p = preset(name).resolve(1024 if "strided" in name or name == "lm-eval" else None)
    text, bos, bos_at, length, stride, scored, tail, windows, vocabulary = FACTS[name]
    assert p.name == name
    assert (p.text, p.bos, p.context_length, p.stride) == (text, bos, length, stride)
    assert bos_at in (None, p.bos_at)
    assert (p.scored, p.tail, p.max_windows) == (scored, tail, windows)
    assert p.vocabulary == vocabulary
    assert p.average == ("hf-guide" if name == "hf-strided" else "token")
    assert p.all_windows_required == (name == "exl3-qbench")
    assert p.min_contexts == (2 if name == "llama.cpp" else 1)
    one_window = {"score-mode", "score-mode-nonblank", "disjoint", "strided", "hf-strided", "chat",
                  "lm-eval"}  # fmt: skip
    assert p.short_text == ("one-window" if name in one_window else "error")


def test_every_preset_has_its_facts():
    assert FACTS.keys() == PRESETS.keys()
    assert all(name == protocol.name for name, protocol in PRESETS.items())


def test_every_preset_has_its_row_on_the_page():
    rows = re.findall(r"^\| `([^`]+)`.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == list(PRESETS)


def test_a_name_may_be_written_with_underscores():
    assert preset("score_mode_nonblank") is PRESETS["score-mode-nonblank"]


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ProtocolError, match=r"'wiki2': one of score-mode, .*hf-strided"):
        preset("wiki2")


@pytest.mark.parametrize(
    ("name", "changes", "renamed"),
    [
        ("exl3", {"stride": 1024}, "exl3+stride=1024"),
        ("exl3", {"stride": 1024, "bos": "always"}, "exl3+bos=always+stride=1024"),
        ("exl3", {"max_windows": 20}, "exl3+max-windows=20"),
        ("exl3", {"context_length": 1024, "stride": 1024}, "exl3+context-length=1024"),
        ("exl3", {"context_length": 1024, "stride": 2048}, "exl3+context-length=1024+stride=2048"),
        ("score-mode", {"stride": 2048}, "score-mode+stride=2048"),
        ("strided", {"stride": 512, "context_length": 2048}, "strided+context-length=2048"),
    ],
)
def test_an_override_renames(name, changes, renamed):
    changed = preset(name).override(**changes)
    assert changed.name == renamed
    assert changed.sha256 != preset(name).sha256
    for key, value in changes.items():
        assert getattr(changed.resolve(None), key) == value


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("exl3", {}),
        ("exl3", {"stride": None, "bos": None}),
        ("exl3", {"max_windows": 100, "bos": "never", "context_length": 2048}),
        ("exl3", {"stride": 2048}),
        ("gptq", {"stride": 2048, "context_length": 2048}),
        ("score-mode", {"stride": 512}),
    ],
)
def test_an_override_that_changes_nothing_does_not(name, changes):
    assert preset(name).override(**changes) == preset(name)


@pytest.mark.parametrize(
    ("name", "changes", "positions", "said"),
    [
        ("exl3", {"stride": 0}, None, "stride 0"),
        ("exl3", {"stride": -1}, None, "stride -1"),
        ("exl3", {"context_length": 0}, None, "context length 0"),
        ("exl3", {"context_length": 1}, None, "context length 1"),
        ("exl3", {"max_windows": 0}, None, "limit of 0 windows"),
        ("gptq", {}, 1024, "2048 exceeds the model's 1024 positions"),
        ("strided", {"stride": 1025}, 1024, "stride 1025 exceeds the context length 1024"),
        ("hf-strided", {"stride": 65, "context_length": 64}, 1024, "stride 65 exceeds"),
        ("strided", {}, None, "give --context-length"),
    ],
)
def test_what_cannot_be_is_refused(name, changes, positions, said):
    with pytest.raises(ProtocolError, match=said) as refused:
        preset(name).override(**changes).resolve(positions)
    assert "\n" not in str(refused.value)


def test_a_window_may_reach_as_far_as_positions_are_scaled():
    """What is taken by default are the positions, as before."""
    longer = preset("gptq").override(context_length=4096)
    assert longer.resolve(1024, 4096).context_length == 4096
    with pytest.raises(ProtocolError, match=r"4097 exceeds the model's 4096 positions") as refused:
        preset("gptq").override(context_length=4097).resolve(1024, 4096)
    assert refused.value.instead == {"--context-length": "4096"}
    own = Protocol("own", context_length=None)
    assert own.resolve(1024, 4096).context_length == own.resolve(1024).context_length == 1024


def test_an_unknown_field_is_a_mistake_in_the_caller():
    with pytest.raises(AssertionError):
        preset("exl3").override(window=3)


def test_the_hash_is_of_every_field_but_the_name():
    base = Protocol("a")
    assert dataclasses.replace(base, name="b").sha256 == base.sha256
    others = {
        "text": "raw-file",
        "bos": "never",
        "bos_at": "stream",
        "context_length": 512,
        "stride": 3,
        "scored": "new",
        "tail": "keep",
        "short_text": "one-window",
        "min_contexts": 2,
        "max_windows": 5,
        "all_windows_required": True,
        "vocabulary": "head",
        "average": "hf-guide",
    }
    assert others.keys() | {"name"} == base.to_json().keys()
    digests = {dataclasses.replace(base, **{k: v}).sha256 for k, v in others.items()}
    assert len(digests | {base.sha256}) == len(others) + 1
