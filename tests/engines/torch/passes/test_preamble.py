"""What layers are called with: equal tensors become one, different ones never."""

import torch

from scoremode.engines.torch.model.layer_recorder import Call
from scoremode.engines.torch.passes.execution import merge_calls


def call(*args, at=0, **kwargs):
    return Call(args, kwargs, at)


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in tensors(v)] if isinstance(value, tuple) else []


def test_equal_tensors_become_the_known_ones_wherever_they_are():
    known = [call(ones(2), None, pair=(ones(3), (ones(4), "x")), flag=True)]
    new = [call(ones(2), None, pair=(ones(3), (ones(4), "x")), flag=True)]
    (merged,) = merge_calls(new, known)
    assert merged.args[0] is known[0].args[0] and merged.args[1] is None
    assert merged.kwargs["pair"][0] is known[0].kwargs["pair"][0]
    assert merged.kwargs["pair"][1][0] is known[0].kwargs["pair"][1][0]
    assert merged.kwargs["pair"][1][1] == "x" and merged.kwargs["flag"] is True


def test_what_differs_in_value_shape_or_dtype_stays_apart():
    known = [call(ones(2), mask=ones(2, 2), table=ones(3), more=ones(4))]
    new = [
        call(
            ones(2) * 2,
            mask=ones(2, 2, dtype=torch.bfloat16),
            table=ones(1, 3),
            more=torch.full((4,), torch.nan),
        )
    ]
    (merged,) = merge_calls(new, known)
    assert tensors(merged.args) == tensors(new[0].args)
    for name, value in new[0].kwargs.items():
        assert merged.kwargs[name] is value, name


def test_values_are_the_new_ones_where_the_known_call_has_another_form():
    known = [call(ones(2), cache=ones(3), pair=(ones(2),), gone=ones(1))]
    new = [call(7, cache=None, pair=(ones(2) * 2, ones(2) * 3), added=ones(5))]
    (merged,) = merge_calls(new, known)
    assert merged.args == (7,) and set(merged.kwargs) == {"cache", "pair", "added"}
    assert merged.kwargs["cache"] is None
    assert [float(t[0]) for t in merged.kwargs["pair"]] == [2.0, 3.0]
    assert merged.kwargs["added"] is new[0].kwargs["added"]


def test_layers_that_get_equal_tensors_of_their_own_share_one():
    """A dense mask for every layer would outgrow everything else, of the first batch too."""
    calls = [call(mask=ones(4, 4), scale=ones(1) * i) for i in range(3)]
    for known in (calls, [call(mask=ones(4, 4) * 5, scale=ones(1) * 9) for _ in range(3)]):
        merged = merge_calls(calls, known)
        assert len({id(c.kwargs["mask"]) for c in merged}) == 1
        assert [float(c.kwargs["scale"]) for c in merged] == [0.0, 1.0, 2.0]


def test_one_tensor_that_all_layers_get_is_compared_once(monkeypatch):
    compared = []
    equal = torch.equal
    monkeypatch.setattr(torch, "equal", lambda a, b: compared.append(1) or equal(a, b))
    mask, known = ones(4, 4), ones(4, 4)
    merged = merge_calls([call(mask=mask)] * 30, [call(mask=known)] * 30)
    assert all(c.kwargs["mask"] is known for c in merged) and len(compared) == 1
