"""Swaps of a command line, and a record's mixture opened again."""

import pytest
from msgspec import UNSET

from scoremode.checkpoint.model_files import resolve_local
from scoremode.checkpoint.virtual import Mixture
from scoremode.errors import CheckpointError, UsageError
from scoremode.results.record.model import Mixture as Taken
from scoremode.results.record.section import decode
from scoremode.runs.models import mixture_section, opened, reopened, swaps_of
from scoremode.runs.request import Swap


def test_a_pattern_may_hold_an_equals_sign(demo):
    (swap,) = swaps_of([], ["re:(?=model).*=a/b"], None, None)
    assert (swap.pattern, swap.source, swap.flag) == ("re:(?=model).*", "a/b", "--swap")
    (kept,) = swaps_of(["layers.0"], [], str(demo / "model"), "main")
    assert kept == Swap("layers.0", str(demo / "model"), "main", True)
    for words in ("layers.0", "=a", "layers.0="):
        with pytest.raises(UsageError, match="give PATTERN=OTHER"):
            swaps_of([], [words], None, None)


def test_a_path_may_hold_an_equals_sign(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x=y").mkdir()
    (swap,) = swaps_of([], ["layers.0=./x=y"], None, None)
    assert (swap.pattern, swap.source) == ("layers.0", "./x=y")
    (tmp_path / "y").mkdir()
    with pytest.raises(UsageError, match=r"may be \./x=y or y, and both are there"):
        swaps_of([], ["layers.0=./x=y"], None, None)


def test_a_base_without_weights_is_refused(tmp_path):
    (tmp_path / "logits.bin").write_bytes(b"_logits_")
    with pytest.raises(UsageError, match=r"--keep-dense layers\.0: .* no weights"):
        swaps_of(["layers.0"], [], str(tmp_path / "logits.bin"), None)


def test_a_base_that_is_another_one_now_is_refused(demo):
    model = str(demo / "model")
    with pytest.raises(CheckpointError, match="is not the base any more"):
        opened(resolve_local(model), [Swap("layers.0", model, None, True, "0" * 64)], code=False)


def test_a_record_s_mixture_opens_again(demo):
    model = str(demo / "model")
    lines = []
    swaps = [Swap("layers.0", model), Swap("down_proj", model)]
    first = opened(resolve_local(model), swaps, code=False, notify=lines.append)
    assert isinstance(first, Mixture) and lines == []
    asked = []

    def place(take):
        asked.append(take.pattern)
        return resolve_local(model)

    again = reopened(
        decode(mixture_section(first)["mixture"], Taken), resolve_local(model), place, code=False
    )
    assert again.fingerprint == first.fingerprint and asked == ["layers.0", "down_proj"]
    plain = opened(resolve_local(model), [], code=False)
    assert mixture_section(plain) == {} and not isinstance(plain, Mixture)
    assert reopened(UNSET, resolve_local(model), place, code=False).fingerprint == plain.fingerprint
