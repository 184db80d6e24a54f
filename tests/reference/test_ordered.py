"""A kept reference's rows in another order."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from scoremode.engines.torch.options import TorchOptions
from scoremode.reference.stored import OrderedReference, StoredReference
from scoremode.runs.measure import measure
from scoremode.runs.request import Request
from scoremode.text.corpus import from_string
from scoremode.text.protocol import preset

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def stored(demo, tmp_path_factory) -> StoredReference:
    output = tmp_path_factory.mktemp("kept") / "reference"
    measure(
        Request(
            model=str(demo / "model"),
            corpus=from_string((demo / "heldout.txt").read_text()[:3000]),
            # The last window is shorter, and overlapping ones have other counts of targets.
            protocol=preset("strided").override(context_length=32, stride=24),
            options=TorchOptions(device="cpu", dtype="float32"),
            output=output,
            keep="stored",
        )
    )
    return StoredReference(output)


def test_each_row_is_the_one_of_the_same_place(stored):
    plan = stored.plan()
    drawn = plan.drawn(replace(plan.protocol, stop_when="kld±1%", seed=3))
    assert len(set(plan.counts.tolist())) > 1
    ordered = OrderedReference(stored, drawn)
    rows = ordered.rows(0, drawn.scored)
    assert sorted(rows.tolist()) == list(range(plan.scored))
    window = np.repeat(np.arange(len(drawn)), drawn.counts)
    place = (drawn.start + drawn.first)[window] + np.arange(drawn.scored) - drawn.offsets[window]
    assert np.array_equal(stored.scores.index[rows], place)
    assert np.array_equal(stored.scores.target[rows], drawn.tokens[place])
    assert np.array_equal(ordered.rows(17, 90), rows[17:90])
    assert drawn.in_text_order().sha256 == plan.sha256


def test_logits_are_of_these_rows(stored):
    plan = stored.plan()
    drawn = plan.drawn(replace(plan.protocol, stop_when="kld±1%", seed=3))
    ordered = OrderedReference(stored, drawn)
    assert ordered.vocabulary == stored.vocabulary and ordered.extra_sums is None
    for spans in ([(0, int(drawn.offsets[4]))], [(3, 40), (int(drawn.offsets[-2]), drawn.scored)]):
        ordered.expect(spans, CPU)
        rows = np.concatenate([ordered.rows(*span) for span in spans])
        wanted = stored.logits([(int(r), int(r) + 1) for r in rows], CPU, (1024, 1024))
        found = ordered.logits(spans, CPU, (1024, 1024))
        for logits in (wanted, found):
            logits.load(0, stored.vocabulary)
        every = slice(0, len(rows))
        assert torch.equal(found(every), wanted(every))
