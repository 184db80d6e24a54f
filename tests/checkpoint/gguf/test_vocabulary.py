"""What a file says of its vocabulary, believed only where it holds together."""

import numpy as np
import pytest
from support.gguf.vocabularies import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, metadata_of

from scoremode.checkpoint.gguf.tokenizer import read_vocabulary
from scoremode.errors import TokenizerError

PLAIN = {
    "model": "gpt2",
    "tokens": ["a", "b", "ab", "<s>", "</s>", "x y"],
    "token_type": [NORMAL, NORMAL, NORMAL, CONTROL, CONTROL, USER_DEFINED],
    "merges": ["a b"],
}


def vocabulary(**changes):
    return read_vocabulary(metadata_of(PLAIN, **changes), "v.gguf")


def added(**changes):
    return {a.text: a for a in vocabulary(**changes).added()}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens": None}, "has no tokenizer.ggml.tokens: give --tokenizer"),
        ({"tokens": []}, "has no tokenizer.ggml.tokens"),
        ({"tokens": "abc"}, "has no tokenizer.ggml.tokens"),
        ({"tokens": ["a", "b", "c", "b", "d", "e"]}, "tokens 1 and 3 are both 'b'"),
        ({"tokens": ["a", "[EMPTY_2]", "", "b", "d", "e"]}, r"tokens 1 and 2 are both '\[EMPTY_2\]'"),
        ({"token_type": [1, 1]}, "token_type has 2 entries for 6 tokens"),
        ({"token_type": [1, 1, 9, 1, 1, 1]}, "token 2 is of type 9"),
        ({"token_type": [1, 1, 1, -1, 1, 1]}, "token 3 is of type -1"),
        ({"token_type": np.ones(6, np.float32)}, "is array of float32, not an array of int32"),
        ({"token_type": "normal"}, "token_type is 'normal', not an array"),
        ({"scores": [0.0]}, "scores has 1 entries for 6 tokens"),
        ({"scores": [0, 1, float("nan"), 0, 0, 0]}, "token 2 has score nan"),
        ({"scores": np.zeros(6, np.float64)}, "is array of float64, not an array of float32 or"),
    ],
)  # fmt: skip
def test_damaged_lists_are_refused(changes, said):
    with pytest.raises(TokenizerError, match=f"v.gguf: .*{said}"):
        vocabulary(**changes)


@pytest.mark.parametrize("value", [6, -1, 1 << 40, 1.0, True, "a"])
def test_ids_lie_within(value):
    with pytest.raises(TokenizerError, match=r"bos_token_id is .*, and it has 6 tokens"):
        vocabulary(bos_token_id=value).token_id("bos_token_id")


def test_flags_are_flags():
    assert vocabulary(add_bos_token=True).flag("add_bos_token", default=False)
    assert vocabulary().flag("add_bos_token", default=True)
    with pytest.raises(TokenizerError, match="add_bos_token is 1, neither true nor false"):
        vocabulary(add_bos_token=1).flag("add_bos_token", default=False)


def test_merges_are_pairs_and_each_is_there_once():
    merges = ["a b", "▁ a", "a b", "  a", "\n \n"]
    found = vocabulary(merges=merges).merges()
    assert found == [("a", "b"), ("▁", "a"), (" ", "a"), ("\n", "\n")]
    for bad in ("ab", "a ", "", "  "):
        with pytest.raises(TokenizerError, match=f"merges has {bad!r}, not two tokens"):
            vocabulary(merges=["a b", bad]).merges()
    for missing in (None, [], np.zeros(2)):
        with pytest.raises(TokenizerError, match=r"has no tokenizer\.ggml\.merges"):
            vocabulary(merges=missing).merges()


def test_a_token_without_a_name_gets_one():
    assert vocabulary(tokens=["a", "", "b", "ab", "c", ""]).tokens[1::4] == [
        "[EMPTY_1]",
        "[EMPTY_5]",
    ]


def test_kinds_say_which_tokens_are_found_first():
    found = added(token_type=[NORMAL, UNKNOWN, NORMAL, CONTROL, CONTROL, USER_DEFINED])
    assert {k: v.special for k, v in found.items()} == {
        "b": True, "<s>": True, "</s>": True, "x y": False
    }  # fmt: skip
    assert not any(a.lstrip or a.rstrip for a in found.values())
    # Without kinds all are normal; names alone say what ends a text.
    assert [*added(token_type=None)] == ["</s>"]


@pytest.mark.parametrize(
    ("tokens", "kind", "wanted"),
    [
        (["<|im_end|>", "[EOS]"], NORMAL, {"<|im_end|>": True, "[EOS]": True}),
        (["<|eot_id|>"], USER_DEFINED, {"<|eot_id|>": True}),
        (["<PRE>", "<fim-suffix>", "[PAD]", "<plain>"], NORMAL,
         {"<PRE>": True, "<fim-suffix>": True, "[PAD]": True}),
        # gpt-oss: its roles, and <|end|> beside <|return|> and <|call|>.
        (["<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|message|>"], CONTROL,
         {"<|start|>": False, "<|end|>": False, "<|return|>": True, "<|call|>": True,
          "<|message|>": False}),
        (["<|end|>", "<|return|>"], CONTROL, {"<|end|>": True, "<|return|>": True}),
        # Gemma 4's "</s>" is HTML.
        (["</s>", "<|tool_response>"], CONTROL, {"<|tool_response>": True}),
    ],
)  # fmt: skip
def test_names_overrule_kinds(tokens, kind, wanted):
    found = added(tokens=tokens, token_type=[kind] * len(tokens))
    assert {k: v.special for k, v in found.items()} == wanted


def test_a_part_with_an_id_is_not_looked_for_by_name():
    assert "<PRE>" not in added(
        tokens=["<PRE>", "p"], token_type=[NORMAL] * 2, fim_pre_token_id=1
    )  # fmt: skip


def test_white_space_beside_special_tokens():
    tokens = ["<|user|>", "</s>", "<s>", "<|endoftext|>"]
    found = added(tokens=tokens, token_type=[CONTROL] * 4, **{"general.name": "Phi-3 mini"})
    assert [t for t, a in found.items() if a.rstrip] == ["<|user|>", "</s>"]
    found = added(tokens=["<mask>", "</s>"], token_type=[CONTROL] * 2, pre="jina-v2-code")
    assert [t for t, a in found.items() if a.lstrip] == ["<mask>"]
