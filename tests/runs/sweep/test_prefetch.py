"""A model made ready beside another one."""

import threading
from dataclasses import replace

import pytest
from support.sweeps import pair

from scoremode.errors import CheckpointError, UsageError
from scoremode.runs.sweep import model
from scoremode.runs.sweep.model import Prepared, free_memory


def test_it_is_opened_planned_and_hashed_while_others_work(quant, text, base):
    begun = threading.Event()
    requests = [replace(pair(base, text, length), model=str(quant)) for length in (64, 32)]
    prepared = Prepared(requests, free=lambda: begun.set() or 1 << 40)
    assert begun.wait(60)
    opened = prepared.opened()
    lengths = [p.plan.protocol.context_length for p in opened.planned if not isinstance(p, str)]
    assert lengths == [64, 32] and opened.checkpoint.source == str(quant)
    assert opened.checkpoint._hashings and opened.checkpoint.hash_files()
    prepared.close()
    assert not opened.checkpoint._hashings


def test_one_that_memory_has_no_room_for_is_not_read_ahead(quant, text, base):
    request = replace(pair(base, text), model=str(quant))
    size = Prepared([request], free=lambda: 0).opened().checkpoint.bytes
    prepared = Prepared([request], free=lambda: size - 1)
    assert not prepared.opened().checkpoint._hashings
    prepared = Prepared([request], free=lambda: size)
    assert prepared.opened().checkpoint._hashings
    prepared.close()


def test_a_text_that_cant_be_planned_is_a_line_and_the_others_are_planned(quant, text, base):
    request = replace(pair(base, text), model=str(quant))
    wrong = replace(request, tokenizer="/no/such/tokenizer")
    one, two = Prepared([wrong, request]).opened().planned
    assert isinstance(one, str) and "/no/such/tokenizer" in one and not isinstance(two, str)


def test_a_model_that_cant_be_opened_is_its_error_when_it_is_asked_for(base, text, quant):
    prepared = Prepared([replace(pair(base, text), model="/no/such/model")])
    with pytest.raises(CheckpointError, match="no such folder"):
        prepared.opened()
    prepared.close()
    other = replace(pair(base, text), model=str(quant), quantization="gptq")
    with pytest.raises(UsageError, match="--quantization gptq"):
        Prepared([other]).opened()


def test_free_memory_is_what_the_system_says(monkeypatch):
    assert 0 < free_memory() < 1 << 50

    class Nowhere:
        def __init__(self, path):
            pass

        def read_text(self, encoding):
            raise OSError

    monkeypatch.setattr(model, "Path", Nowhere)
    assert free_memory() == 0
