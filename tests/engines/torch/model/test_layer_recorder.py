"""Stand-ins for layers: what they note, and what they refuse to hand on."""

from typing import Any

import pytest
import torch
from torch import nn

from scoremode.engines.torch.model.layer_recorder import (
    Call,
    NotSeparable,
    Placeholder,
    Reached,
    StandIn,
    Tape,
    unknown,
)


def pair(**tape: Any) -> tuple[Tape, StandIn, StandIn]:
    made = Tape(**tape)
    return (
        made,
        StandIn(nn.Linear(2, 2), made, 0, last=False),
        StandIn(nn.ReLU(), made, 1, last=True),
    )


def test_a_placeholder_has_the_attributes_and_none_of_the_parameters():
    linear = nn.Linear(3, 5)
    placeholder = Placeholder(linear)
    assert placeholder.out_features == 5 and placeholder.weight is linear.weight
    assert not list(placeholder.parameters()) and not list(placeholder.children())
    with pytest.raises(AttributeError, match="nonesuch"):
        _ = placeholder.nonesuch


def test_calls_are_noted_without_the_hidden_state_and_it_is_handed_through():
    tape, first, second = pair()
    hidden, mask = torch.ones(1, 2, 2), torch.ones(2)
    assert second(hidden_states=first(hidden, mask, flag=True)) is hidden
    assert tape.embedded is hidden
    assert [(c.at, c.args, c.kwargs) for c in tape.calls] == [
        (0, (None, mask), {"flag": True}),
        ("hidden_states", (), {}),
    ]


def test_a_call_is_made_with_the_state_in_its_place_and_others_beside():
    def layer(*args, **kwargs):
        return args, kwargs

    call = Call((None, 7), {"flag": True, "cache": None}, 0)
    assert call.run(layer, 5, {"cache": 3}) == ((5, 7), {"flag": True, "cache": 3})
    assert Call((7,), {}, "hidden_states").run(layer, 5) == ((7,), {"hidden_states": 5})


@pytest.mark.parametrize("change", [lambda h: h * 1, lambda h: h.mul_(1)], ids=["copy", "in place"])
def test_a_state_that_changes_between_layers_is_found(change):
    _, first, second = pair()
    with pytest.raises(NotSeparable, match="changes the hidden state between layers"):
        second(change(first(torch.ones(1, 2, 2))))


def test_a_tape_begins_anew_with_what_is_asked_of_it():
    tape, first, second = pair()
    hidden, result = torch.ones(1, 2, 2), torch.zeros(1, 2, 2)
    first(hidden)
    tape.rewind(result=result)
    assert second(first(hidden)) is result and len(tape.calls) == 2
    tape.rewind(perturb=True)
    seen = first(hidden)
    assert (seen != hidden).any() and second(seen) is seen
    tape.rewind(stop_at_first=True)
    with pytest.raises(Reached):
        first(hidden)


@pytest.mark.parametrize(
    "write",
    [
        lambda d, _: d.update(a=1),
        lambda d, _: d.pop("a"),
        lambda _, x: x.append(1),
        lambda _, x: x.__setitem__(0, 1),
    ],
)
def test_what_layers_share_is_read_only_at_every_depth(write):
    tape, first, _ = pair()
    first(torch.ones(1, 2, 2), tables={"a": [1, 2]})
    tables = tape.calls[0].kwargs["tables"]
    assert tables == {"a": [1, 2]}
    with pytest.raises(NotSeparable, match=r"share state through a (dict|list)"):
        write(tables, tables["a"])


@pytest.mark.parametrize("shared", [{}, [], {1, 2}])
def test_what_is_there_to_be_written_to_is_refused(shared):
    with pytest.raises(NotSeparable, match=f"share state through a {type(shared).__name__}"):
        pair()[1](torch.ones(1, 2, 2), shared=shared)


def test_what_a_later_layer_would_return_can_be_handed_on_and_not_looked_at():
    _, first, second = pair(rest=(unknown(torch.ones(3)), unknown(None)))
    hidden, beside, nothing = first(torch.ones(1, 2, 2))
    assert nothing is None
    second(hidden, beside)
    for look in (lambda: beside + 1, lambda: beside.shape, lambda: torch.relu(beside)):
        with pytest.raises(NotSeparable, match="what others return beside"):
            look()
    with pytest.raises(NotSeparable, match="what others return beside"):
        second(hidden, unknown("a cache"))


def test_a_layer_without_a_state_in_a_known_place_is_refused():
    with pytest.raises(NotSeparable, match="without a hidden state in a known place"):
        pair()[1](3, states=torch.ones(2))
