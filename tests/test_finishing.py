"""What is found beside a run for its record."""

from types import SimpleNamespace
from typing import Any

from scoremode.finishing import auto_tokenizer_beside
from scoremode.text.kept import KeptText


def test_a_kept_text_has_no_characters_to_tokenize_again(demo):
    """`kld MODEL --reference ref` failed when all was scored."""
    corpus = KeptText.__new__(KeptText)
    request: Any = SimpleNamespace(tokenizer=str(demo / "model"), corpus=corpus)
    planned: Any = SimpleNamespace(plan=SimpleNamespace(protocol=None), tokenizer=None)
    assert auto_tokenizer_beside(request, planned, print).result() is None
