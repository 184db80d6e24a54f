"""Runs by the tokenizer in a GGUF file: its folder's ids or refused, and what overrules it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.gguf.golden import make_pair, rewrite
from support.run_requests import request

from scoremode.checkpoint.tokenizer import checkpoint_tokenizer, has_tokenizer
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import ReferenceUnusable
from scoremode.runs.measure import measure
from scoremode.runs.planning import plan_text
from scoremode.text.corpus import from_string
from scoremode.text.protocol import preset

TEXT = "A word. It is a truth universally acknowledged, that a single man, " * 20
FLOAT = TorchOptions(device="cpu", dtype="float32", batch_windows=4)


def with_tokenizer(source: Path, out: Path, merge: str, pre: str | None = "gpt-2") -> Path:
    """A copy of a file whose token 256 is what `merge` makes."""

    def edit(values: dict[str, Any], tensors: Any) -> None:
        values["tokenizer.ggml.tokens"][256] = merge.replace(" ", "")
        values["tokenizer.ggml.merges"] = [merge]
        values["tokenizer.ggml.pre"] = pre
        if pre is None:
            del values["tokenizer.ggml.pre"]

    return rewrite(source, out, edit)


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Path, Path]:
    """A folder, and the file of it; both have "th" as token 256."""
    return make_pair(tmp_path_factory.mktemp("pair"), "llama")


def test_the_files_own_tokenizer_is_taken_and_its_ids_are_the_folders(pair, tmp_path):
    folder, file = pair
    record = measure(
        request(file, TEXT, tmp_path / "runs", options=FLOAT, reference=str(folder))
    ).record.document
    assert record["tokenizer"]["source"] == str(file)
    assert record["tokenizer"]["sha256"] == checkpoint_tokenizer(str(file)).sha256
    assert record["reference"]["tokenizer"]["source"] == str(folder)
    assert record["metrics"]["kld"]["value"] == pytest.approx(0, abs=1e-9)
    assert record["tokenizer"]["auto_tokenizer"] is None


def test_one_other_token_is_refused_by_name(pair, tmp_path):
    folder, file = pair
    other = with_tokenizer(file, tmp_path / "at.gguf", "t i")
    said = (
        r"has other tokens of this text than .*at\.gguf makes: token \d+ is 256 \('th'\) and not 83 "
        r"\('t'\); 1,\d+ tokens and not 1,\d+\. --tokenizer gives both the same one"
    )
    for reference in (folder, file):
        with pytest.raises(ReferenceUnusable, match=said) as error:
            measure(request(other, TEXT, tmp_path / "r", options=FLOAT, reference=str(reference)))
        assert str(error.value).startswith(f"{reference}: ")
    given = request(other, TEXT, tmp_path / "g", options=FLOAT, reference=str(file))
    assert (
        measure(replace(given, tokenizer=str(file))).record.document["metrics"]["kld"]["value"] == 0
    )


def test_a_given_tokenizer_overrules_and_the_user_is_told(pair, tmp_path):
    folder, file = pair
    other = with_tokenizer(file, tmp_path / "other.gguf", "t i")
    for model, said in (
        (file, f"{folder} reads this text as {file} does"),
        (other, f"{folder} reads this text otherwise than {other}, whose tokenizer it overrules: "),
    ):
        lines: list[str] = []
        ran = measure(
            request(model, TEXT, tmp_path / model.stem, options=FLOAT, tokenizer=str(folder)),
            notify=lines.append,
        )
        assert ran.record.document["tokenizer"]["source"] == str(folder)
        assert [line for line in lines if line.startswith(said)]


def test_a_file_that_does_not_say_how_it_splits(pair, tmp_path):
    old = with_tokenizer(pair[1], tmp_path / "old.gguf", "t h", pre=None)
    lines: list[str] = []
    measure(request(old, TEXT, tmp_path / "runs", options=FLOAT), notify=lines.append)
    assert [line for line in lines if "tokenizer.ggml.pre" in line]


def test_a_folder_with_a_file_and_a_tokenizer_of_its_own(pair, tmp_path):
    """The model's is the file's; a folder given as a tokenizer means its tokenizer.json."""
    folder, file = pair
    both = tmp_path / "both"
    both.mkdir()
    (both / "model.gguf").write_bytes(file.read_bytes())
    (both / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    corpus, rules = from_string(TEXT), preset("disjoint").override(context_length=64)
    own = plan_text(corpus, rules, model=str(both))
    assert own.tokenizer.source == str(both / "model.gguf")
    assert plan_text(corpus, rules, tokenizer=str(both)).tokenizer.source == str(both)
    assert has_tokenizer(str(both / "model.gguf"))
    assert own.plan.sha256 == plan_text(corpus, rules, model=str(file)).plan.sha256
