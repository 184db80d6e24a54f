"""A text known by its token ids alone: what is proven of a model's tokenizer, and what is refused."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest

from scoremode.errors import CorpusError, ReferenceUnusable
from scoremode.text.kept_text import kept_text
from scoremode.text.plan import make_plan
from scoremode.text.protocol import preset
from scoremode.text.token_class import token_table
from scoremode.text.tokenizer import load_tokenizer, tokenize

TEXT = "A café isn’t 1,234 naïve things:\n\n\tthe value is computed once. " * 20


def record_of(tokenizer, text: str, plan) -> dict:
    data = text.encode()
    section = {"rule": "rows", "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    corpus = {"name": "t", "source": "t.txt", "source_sha256": "0", "rows": 3, "row_limit": None}
    return {"corpus": {**corpus, "text": section}, "tokenizer": tokenizer.to_json()}


def kept_by(tokenizer, protocol, text: str = TEXT):
    plan = tokenize(text, tokenizer, protocol)
    return kept_text("ref", record_of(tokenizer, text, plan), plan)


@pytest.fixture(scope="module")
def demo_tokenizer(demo):
    return load_tokenizer(demo / "model")


def another(tokenizer):
    """The same tokenizer as another file."""
    return replace(tokenizer, sha256="f" * 64)


@pytest.fixture
def protocol():
    return preset("disjoint").override(context_length=32).resolve(None)


def test_the_same_tokenizer_needs_no_proof(demo_tokenizer, protocol):
    kept = kept_by(demo_tokenizer, protocol)
    assert kept.planned(protocol, demo_tokenizer) is kept.plan
    with pytest.raises(CorpusError, match="ref: keeps the token ids"):
        kept.text("rows")
    assert kept.to_json()["rows"] == 3 and "text" not in kept.to_json()


def test_another_file_of_the_same_tokenizer_is_proven(demo_tokenizer, protocol):
    for name in ("disjoint", "score-mode", "llama.cpp", "exl3"):
        rule = preset(name).override(context_length=32, stride=16).resolve(None)
        kept = kept_by(demo_tokenizer, rule)
        assert kept.planned(rule, another(demo_tokenizer)) is kept.plan


def test_real_tokenizers_are_proven_as_other_files(data, protocol):
    # Of bytes, and SentencePiece's kind.
    folders = [data / "tokenizers" / name for name in ("gpt2", "qwen2")] + [data / "stories260K"]
    for folder in folders:
        tokenizer = load_tokenizer(folder)
        kept = kept_by(tokenizer, protocol)
        assert kept.planned(protocol, another(tokenizer)) is kept.plan, folder


def test_fewer_windows_are_the_first_kept_ones_and_no_more_than_were_kept(demo_tokenizer, protocol):
    kept = kept_by(demo_tokenizer, protocol)
    first = kept.planned(protocol.override(max_windows=2), demo_tokenizer)
    assert len(first) == 2 < len(kept.plan) and first.scored == kept.plan.offsets[2]
    assert np.array_equal(first.tokens[: len(first[0].inputs)], kept.plan[0].inputs)
    limited = kept_by(demo_tokenizer, protocol.override(max_windows=2))
    assert limited.planned(protocol.override(max_windows=2), demo_tokenizer) is limited.plan
    with pytest.raises(ReferenceUnusable, match="max_windows is 2, this run's 3"):
        limited.planned(protocol.override(max_windows=3), demo_tokenizer)


def test_other_ids_of_the_same_text_are_refused(demo_tokenizer, protocol):
    """The kept ids spell the text, and the tokenizer would have made others of it."""
    plan = tokenize(TEXT, demo_tokenizer, protocol)
    pieces = token_table(demo_tokenizer).pieces
    # The first token of several bytes becomes those bytes.
    at = next(i for i, t in enumerate(plan.tokens) if len(pieces[t] or b"") > 1 and i > 3)
    own = [pieces.index(bytes([byte])) for byte in pieces[plan.tokens[at]] or b""]
    tokens = np.concatenate([plan.tokens[:at], own, plan.tokens[at + 1 :]])
    split = make_plan(tokens.astype(np.int32), protocol, stream_bos=plan.stream_bos)
    kept = kept_text("ref", record_of(demo_tokenizer, TEXT, split), split)
    with pytest.raises(ReferenceUnusable, match="makes other token ids of its text"):
        kept.planned(protocol, another(demo_tokenizer))


def test_a_tokenizer_that_spells_another_text_is_refused_by_what_differs(
    data, demo_tokenizer, protocol
):
    kept = kept_by(demo_tokenizer, protocol)
    other = load_tokenizer(data / "tokenizers" / "gpt2")
    with pytest.raises(ReferenceUnusable, match="its size is 1024, not 50257; --tokenizer BASE"):
        kept.planned(protocol, other)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stride": 8}, "its protocol's stride is 32, this run's 8"),
        ({"vocabulary": "head"}, "vocabulary is config, this run's head"),
        ({"stride": 8, "max_windows": 2}, "its protocol's stride is 32, this run's 8"),
    ],
)
def test_another_protocol_is_refused_by_the_field(demo_tokenizer, protocol, changes, words):
    kept = kept_by(demo_tokenizer, protocol)
    with pytest.raises(ReferenceUnusable, match=words):
        kept.planned(protocol.override(**changes), demo_tokenizer)
    assert kept.planned(replace(protocol, name="another name"), demo_tokenizer) is kept.plan


@pytest.mark.parametrize("path", ["corpus.source", "corpus.source_sha256", "tokenizer.adds"])
def test_a_record_that_lacks_a_field_is_named(demo_tokenizer, protocol, path):
    kept = kept_by(demo_tokenizer, protocol)
    record = json.loads(json.dumps(kept.record))
    section, field = path.split(".")
    del record[section][field]
    with pytest.raises(ReferenceUnusable, match=rf"^ref: its record has no {path}$"):
        kept_text("ref", record, kept.plan)
