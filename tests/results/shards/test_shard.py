"""Which passes a shard has, for any numbers of both."""

import pytest

from scoremode.errors import UsageError
from scoremode.results.shards import Shard


@pytest.mark.parametrize("passes", [1, 2, 3, 7, 8, 100])
def test_shards_share_out_all_passes_in_order_and_as_even_as_whole_ones_can_be(passes):
    for of in range(1, passes + 1):
        shares = [Shard(i, of).among(passes) for i in range(1, of + 1)]
        assert [p for share in shares for p in share] == list(range(passes))
        sizes = {len(share) for share in shares}
        assert max(sizes) - min(sizes) <= 1 and min(sizes) >= 1


def test_more_shards_than_passes_leave_some_empty():
    assert [len(Shard(i, 4).among(2)) for i in range(1, 5)] == [0, 1, 0, 1]


@pytest.mark.parametrize("text", ["1/1", "2/4", "4/4", "007/9"])
def test_a_shard_is_read_as_it_is_written(text):
    number, of = map(int, text.split("/"))
    shard = Shard.parsed(text)
    assert (shard.number, shard.of) == (number, of)
    assert str(shard) == f"{number}/{of}" and shard.to_json() == {"number": number, "of": of}


@pytest.mark.parametrize(
    "text",
    ["0/4", "5/4", "1/0", "0/0", "-1/4", "1/-4", "1.0/4", "1/4.0", "1", "1/4/4", "a/b", "", "1 /4",
     "٣/٤", "1/9999999999"],
)  # fmt: skip
def test_what_is_no_shard_is_refused_with_what_would_be_one(text):
    with pytest.raises(UsageError, match="must be i/N, with i from 1 to N") as refused:
        Shard.parsed(text)
    assert str(refused.value).startswith(f"--shard {text}: ")
