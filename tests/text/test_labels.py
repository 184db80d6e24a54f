"""Labels of tokens, and what names a group."""

import numpy as np
import pytest

from scoremode.errors import CorpusError
from scoremode.text.plan import Labels
from scoremode.text.rows import check_labels, label_of


def test_tokens_have_the_labels_of_their_places():
    labels = Labels.of_places(["b", "a", "b", "unused"], np.array([0, 0, 1, 2, 1]))
    assert labels.names == ("a", "b")
    assert labels.at(np.array([4, 3, 2, 1, 0])).tolist() == ["a", "b", "a", "b", "b"]
    assert labels.counts(np.array([0, 1, 3])) == {"b": 3}
    assert labels.counts(np.arange(5)) == {"a": 2, "b": 3}


def test_the_hash_is_of_which_token_has_which_label():
    at = np.arange(3)
    one = Labels.of_places(["a", "b"], np.array([0, 1, 1]))
    # What else has a label, and how labels are numbered, is of no account.
    for names, places in ((["b", "a"], [1, 0, 0]), (["0", "a", "b"], [1, 2, 2, 0])):
        assert Labels.of_places(names, np.array(places)).sha256(at) == one.sha256(at)
    for names, places in ((["a", "b"], [0, 0, 1]), (["a", "c"], [0, 1, 1])):
        assert Labels.of_places(names, np.array(places)).sha256(at) != one.sha256(at)


@pytest.mark.parametrize(("value", "label"), [("code", "code"), (" de ", "de"), (3, "3")])
def test_a_text_or_a_number_names_a_group(value, label):
    assert label_of(value, "row 1", "domain") == label


@pytest.mark.parametrize("value", [None, "", "  ", True, 1.5, ["a"], {}, "x" * 201, "\ud800"])
def test_anything_else_is_refused_by_row_and_field(value):
    with pytest.raises(CorpusError, match=r"row 1: domain is .* which names no group"):
        label_of(value, "row 1", "domain")


def test_as_many_groups_as_rows_are_no_groups():
    check_labels([str(i % 256) for i in range(1000)], "x: id")
    with pytest.raises(CorpusError, match="x: id: makes 257 groups, and a table has 256 at most"):
        check_labels([str(i) for i in range(257)], "x: id")
