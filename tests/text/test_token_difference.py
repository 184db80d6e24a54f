"""Where two tokenizers part."""

import numpy as np
import pytest

from scoremode.text.tokenizer import difference, load_tokenizer


@pytest.mark.parametrize(
    ("own", "other", "said"),
    [
        ([5, 6], [5, 6], None),
        ([], [], None),
        ([5, 6, 7], [5, 8, 7], "token 1 is 6 ({6!r}) and not 8 ({8!r}); 3 tokens and not 3"),
        ([5], [5, 8], "token 1 is none and not 8 ({8!r}); 1 tokens and not 2"),
        ([5, 6], [5], "token 1 is 6 ({6!r}) and not none; 2 tokens and not 1"),
        ([10**6], [5], "token 0 is 1000000 (None) and not 5 ({5!r}); 1 tokens and not 1"),
    ],
)
def test_the_first_difference_in_words(own, other, said, demo):
    tokenizer = load_tokenizer(demo / "model")
    found = difference(tokenizer, np.array(own, np.int32), tokenizer, np.array(other, np.int32))
    names = [tokenizer.backend.id_to_token(i) for i in range(9)]
    assert found == (None if said is None else said.format(*names))
