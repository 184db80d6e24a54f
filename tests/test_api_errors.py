"""Errors that a Python program meets: they name keywords, as it writes them, and never flags."""

import json
import re

import pytest

import scoremode
from scoremode.spec.keywords import in_keywords

WORDS = "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 20
TEXT = {"text": WORDS, "context_length": 16}
FILES = {"text": None, "context_length": None}
MEASURED = [
    ({"context_length": 1}, "context length 1: a window needs at least 2 tokens"),
    ({"context_length": "many"}, "context_length: 'many' is not a number of tokens"),
    ({"context_length": 4096}, "positions: give context_length=512 or less"),
    ({"batch_size": 0}, "batch_size=0: must be at least 1"),
    ({"dtype": "int4"}, "dtype: 'int4' is none of 'auto', 'float32'"),
    ({"device": "tpu"}, "device='tpu': "),
    ({"bos": ["auto"]}, r"bos: takes one value, not ['auto']"),
    ({"gpu_memory_utilization": 3}, "gpu_memory_utilization=3.0: must be above 0"),
    ({"engine_arg": ["a=1"]}, "engine_arg='a=1': is for engine='vllm'"),
    ({"max_num_batched_tokens": 3}, "the torch engine takes batch_size in windows"),
    ({"engine": "vllm", "device": "cpu"}, "device='cpu': is for engine='torch'"),
    ({"arithmetic": "weights+activations"}, "arithmetic='weights+activations': the checkpoint"),
    ({"kv_cache": "k=f16"}, "kv_cache='k=f16': says nothing of the other side"),
    ({"kv_scales": "x.safetensors"}, "kv_scales='x.safetensors': goes with kv_cache=FORMAT"),
    ({"quantization": "gptq"}, "quantization='gptq': "),
    ({"file": "words.txt"}, "several texts: text and file"),
    ({"num_samples": 3}, "num_samples=3: changes nothing with text; it is for dataset_file"),
    ({"seed": 3}, "seed=3: draws what is asked for by num_samples or stop_when"),
    ({"stop_when": "kld ±2 %"}, "there is no KLD without reference=BASE"),
    ({"shard": "3/2"}, "shard: 3/2: must be i/N"),
    ({"max_kld": -1, "reference": "BASE"}, "max_kld=-1: must be at least 0 and finite"),
    ({"min_top1": "101%", "reference": "BASE"}, "min_top1='101%': a share is at most 100 %"),
    ({"max_kld": 1}, "max_kld=1: changes nothing without a reference to compare with"),
    ({"head": "checkpoint"}, "head='checkpoint': changes nothing without keep=True"),
    ({"keep": True, "max_kld": 1}, "max_kld=1: is not for keep=True"),
    ({"keep": True}, "no folder to write to: give output=DIR"),
    ({"reference": "BASE", "reference_revision": "x"}, "reference_revision='x': changes nothing"),
    ({"revision": "x"}, ": revision='x' has no meaning"),
    ({"swap": "x"}, "swap='x': give PATTERN=OTHER"),
    ({"output": "words.txt"}, "output='words.txt': is not a folder"),
    (FILES | {"file": "words.txt", "group_by": "x"}, "group_by='x': texts of file are grouped"),
    (FILES | {"file": "rows.jsonl"}, "give it with dataset_file and text_field=NAME"),
    (FILES | {"file": ["words.txt"] * 2, "group_by": "file"}, "file='words.txt' is given twice"),
    (FILES | {"conversations": "chats.jsonl"}, "give one with chat_template=FILE"),
    (FILES | {"conversations": "chats.jsonl", "stride": 4}, "stride=4: changes nothing with"),
    (FILES | {"preset": "nope"}, "preset='nope': no text has that name"),
]  # fmt: skip
OTHERS = [
    (scoremode.plan, (None,), {"text": "a"}, "no model and no tokenizer"),
    (scoremode.inspect, ("BASE",), {"config": "c.json"}, " and config='c.json': give one"),
    (scoremode.inspect, ("BASE",), {"device": "tpu"}, "device='tpu': "),
    (scoremode.verify, ("BASE",), {"windows": 0}, "windows=0: must be at least 1"),
    (scoremode.verify, ("BASE",), {"engines": "jax"}, "engines='jax': jax is not one of"),
    (scoremode.attribute, ("BASE",), {}, "attribute: reference must be given"),
    (scoremode.attribute, ("BASE",), {"reference": "BASE", "engine": "vllm"},
     "engine='vllm': is not for attribute"),
    (scoremode.attribute, ("BASE",), {"reference": "BASE", "others": ["x"]},
     "others='x': is of a recipe: give its size by budget=BITS"),
    (scoremode.attribute, ("BASE",), {"reference": "BASE", "budget": 2, "alone": True},
     "alone: changes nothing of a recipe, which budget makes"),
    (scoremode.tasks, ("BASE", []), {}, "tasks"),
    (scoremode.generate, ("BASE", "words.txt", "o.txt"), {}, "output='o.txt': the output is JSON"),
    (scoremode.generate, ("BASE", "words.txt", "o.jsonl"), {"top_p": 4}, "top_p=4.0: must be"),
    (scoremode.generate, ("BASE", "words.txt", "o.jsonl"), {"split": "x"}, "split='x': changes"),
    (scoremode.generate, ("BASE", "words.txt", "o.jsonl"), {"tensor_parallel_size": 2},
     "tensor_parallel_size: is for engine='vllm'"),
    (scoremode.compare, ([],), {}, "no runs: give at least one"),
    (scoremode.compare, ("runs",), {"by": "x"}, "by: 'x' is none of 'kld', 'ppl'"),
    (scoremode.check, ("runs",), {"share": 0.5}, "share=0.5: changes nothing without against=MODEL"),
    (scoremode.merge, ("runs", "m"), {"gate_on": "upper"}, "gate_on='upper': there is no gate"),
    (scoremode.sweep, ("BASE", ["BASE"]), {"file": "words.txt", "batch_size": 0}, "batch_size=0: "),
    (scoremode.sweep, ("BASE", []), {}, "sweep: has no models"),
    (scoremode.sweep, ("BASE", ["BASE"]), {"file": "words.txt", "stop_when": "kld ±2 %"},
     "stop_when='kld±2%': is for one MODEL"),
]  # fmt: skip


@pytest.fixture
def places(demo, tmp_path, monkeypatch):
    """What stands for BASE, in a folder that has the texts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text(WORDS)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": WORDS}) + "\n")
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b c"}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": turns}) + "\n")

    def with_base(value):
        if isinstance(value, tuple | list):
            return type(value)(map(with_base, value))
        return demo / "model" if value == "BASE" else value

    return with_base


def refused(words, call):
    with pytest.raises(scoremode.ScoremodeError, match=re.escape(words)) as error:
        call()
    assert not re.search(r"(?<!\w)--?[a-z]", str(error.value))


@pytest.mark.parametrize(("keywords", "words"), MEASURED)
def test_what_a_measurement_refuses_is_told_by_keywords(places, keywords, words):
    given = {name: places(value) for name, value in (TEXT | keywords).items()}
    refused(words, lambda: scoremode.measure(places("BASE"), quiet=True, **given))


@pytest.mark.parametrize(("function", "given", "keywords", "words"), OTHERS)
def test_and_so_is_what_every_function_refuses(places, function, given, keywords, words):
    named = {name: places(value) for name, value in keywords.items()}
    refused(words, lambda: function(*places(given), **named))


def test_a_keyword_that_there_is_not_is_a_type_error_with_the_nearest(demo):
    for function in (scoremode.plan, scoremode.verify, scoremode.measure):
        with pytest.raises(TypeError, match=r"did you mean context_length\?") as error:
            function(demo / "model", contextlength=3)  # pyright: ignore[reportCallIssue]
        assert str(error.value).startswith(f"{function.__name__}() got an unexpected keyword")


def test_a_value_behind_a_flag_is_told_from_the_sentences_next_word():
    for message, given, said in (
        ("give --tokenizer gives both one", {}, "give tokenizer gives both one"),
        ("--arithmetic weights measures it", {}, "arithmetic='weights' measures it"),
        ("--context-length 32k: no", {}, "context_length=32k: no"),
        ("--reference x y: no", {"reference": "x y"}, "reference='x y': no"),
        ("--swap a=b: no", {"swap": ["c", "a=b"]}, "swap='a=b': no"),
        ("--chat-template=t.jinja", {"chat_template": "t.jinja"}, "chat_template='t.jinja'"),
        ("scoremode reference --resume goes on", {}, "scoremode reference resume goes on"),
        ("/a/--limit/b and pre--limit", {}, "/a/--limit/b and pre--limit"),
        ("--by ppl or --by layer", {}, "by='ppl' or by='layer'"),
        ("--devices 2 is the command line's", {}, "--devices 2 is the command line's"),
    ):
        assert in_keywords(message, given) == said
