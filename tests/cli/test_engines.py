"""Flags of engines, from the command line to an engine's options."""

import pytest
from support import specs

from scoremode.cli.engines import torch_options, vllm_options
from scoremode.cli.measure import Ppl
from scoremode.errors import UsageError


def parse(*flags: str):
    return specs.given(Ppl, "model", "--text", "a b", *flags)


@pytest.mark.parametrize(
    ("flags", "place"),
    [
        ([], None),
        (["--placement", "auto"], None),
        (["--placement", "device"], "device"),
        (["--placement", "host"], "host"),
        (["--placement=disk"], "disk"),
    ],
)
def test_placement_is_the_torch_engines_and_auto_is_its_own_choice(flags, place):
    assert torch_options(parse(*flags)).place == place


def test_a_placement_that_there_is_not_is_refused():
    with pytest.raises(UsageError, match=r"--placement.*nvme"):
        parse("--placement", "nvme")


def test_vllm_is_not_told_where_to_put_weights():
    with pytest.raises(UsageError, match="--placement host: is for --engine torch"):
        vllm_options(parse("--engine", "vllm", "--placement", "host"))
    vllm_options(parse("--engine", "vllm", "--placement", "auto"))


def test_micro_batch_and_memory_reach_the_torch_engine():
    options = torch_options(parse("--batch-size", "3", "--max-memory", "2GiB"))
    assert (options.batch_windows, options.max_memory) == (3, 2 << 30)
    assert torch_options(parse("--gpu-memory-utilization", "0.5")).memory_share == 0.5
