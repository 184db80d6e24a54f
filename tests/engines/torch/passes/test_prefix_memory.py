"""Rows of trees: their masks are counted, and they are as long as costs least."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.request_plans import plan_of, shared_plan

from scoremode.engines.base import Schedule
from scoremode.engines.torch.device import Device
from scoremode.engines.torch.memory.budget import Memory
from scoremode.engines.torch.passes.prefix_schedule import RowMemory, choose_rows
from scoremode.text.plan import Plan
from scoremode.text.task_requests import TokenRequest

GIB = 1 << 30
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
CONFIG = SimpleNamespace(hidden_size=4096, num_attention_heads=32, head_dim=128)


def memory(size: int, device: torch.device = CUDA) -> Memory:
    return Memory(Device(device, "made", size), GIB, 1 << 18, 1 << 13, "device")


def rows_of(
    size: int, device: torch.device = CUDA, config=CONFIG, attention: str = "sdpa"
) -> RowMemory:
    return RowMemory.of(memory(size, device), config, torch.bfloat16, attention)


def apart(plan: Plan, rows: RowMemory) -> Schedule:
    return rows.memory.schedule_of_many(plan.lengths, None, pads=True)


def few_shot(questions: int, shots: int, question: int, choice: int, choices: int = 4) -> Plan:
    """Questions of random tokens with choices, all behind the same shots."""
    rng = np.random.default_rng(0)
    before = rng.integers(3, 9999, shots).tolist()
    requests = []
    for number in range(questions):
        context = before + rng.integers(3, 9999, question).tolist()
        requests += [
            TokenRequest(context, rng.integers(3, 9999, choice).tolist(), number)
            for _ in range(choices)
        ]
    return plan_of(requests, 16_384)


@pytest.mark.parametrize("row", [512, 2048, 4096])
def test_each_token_has_its_part_of_a_mask(row):
    """Truth values while the pass lasts; while a layer runs the same as numbers, too."""
    plain, own = memory(140 * GIB), rows_of(140 * GIB).of_rows(row)
    tables = 2 * 2 * 128 + 4 * 8
    assert own.pass_token - plain.pass_token == row + tables
    assert own.batch_token - plain.batch_token >= row * (1 + 2)
    assert (own.fixed, own.device) == (plain.fixed, plain.device)
    two = SimpleNamespace(**vars(CONFIG), layer_types=["full_attention", "sliding_attention"] * 2)
    kinds = rows_of(140 * GIB, config=two).of_rows(row)
    assert kinds.pass_token - plain.pass_token == 2 * row + 2 * 2 * 2 * 128 + 4 * 8


def test_eager_attention_holds_scores_and_numbers_for_masks():
    plain = memory(140 * GIB)
    short, long = (rows_of(140 * GIB, attention="eager").of_rows(row) for row in (2048, 4096))
    assert short.pass_token - plain.pass_token == 2 * 2048 + 2 * 2 * 128 + 4 * 8
    # What is beyond the 2,048 places of any micro-batch's scores, for 32 heads.
    assert long.batch_token - short.batch_token == 2048 * (4 + 2) + 32 * (4 + 4) * 2048


def test_masks_make_a_pass_shorter_where_memory_is_short():
    plan = few_shot(300, 600, 80, 20)
    roomy, tight = (
        choose_rows(plan, apart(plan, r), r, None) for r in map(rows_of, (140 * GIB, 4 * GIB))
    )
    assert roomy is not None and tight is not None
    assert roomy.pass_tokens == 65_536 and roomy.batch_tokens == 16_384
    assert tight.pass_tokens is not None and tight.batch_tokens is not None
    own = rows_of(4 * GIB).of_rows(max(tight.row_tokens or 0, int(plan.lengths.max()) - 1))
    taken = own.fixed + tight.batch_tokens * own.batch_token + tight.pass_tokens * own.pass_token
    assert taken <= 4 * GIB * 15 / 16 and tight.pass_tokens < roomy.pass_tokens


def test_rows_are_longer_where_more_is_shared():
    rows = rows_of(140 * GIB)
    found = [
        choose_rows(plan, apart(plan, rows), rows, None)
        for plan in (few_shot(400, 60, 60, 25), few_shot(400, 1200, 80, 1))
    ]
    lengths = [s.row_tokens for s in found if s is not None]
    assert lengths == sorted(lengths) and len(set(lengths)) == 2 and lengths[1] in (2048, 4096)


def test_windows_with_little_in_common_go_apart():
    rows = rows_of(140 * GIB)
    plan = few_shot(300, 4, 80, 8, choices=1)
    assert choose_rows(plan, apart(plan, rows), rows, None) is None


def test_a_long_context_and_its_choices_lie_in_one_row():
    rows = rows_of(140 * GIB)
    plan = few_shot(3, 1, 3000, 30)
    found = choose_rows(plan, apart(plan, rows), rows, None)
    assert found is not None and (found.row_tokens or 0) >= 3000 + 4 * 30
    (batch, *_) = found.batches(plan, range(len(plan)))
    assert len(batch) >= 4


def test_a_cpus_rows_are_short_and_what_does_not_fit_is_not_taken():
    plan = few_shot(300, 1200, 80, 20)
    cpu = rows_of(64 * GIB, CPU)
    found = choose_rows(plan, apart(plan, cpu), cpu, None)
    assert found is not None and found.row_tokens == 2048
    # Its hidden states fit, and no masks beside them.
    plain = memory(0, CPU)
    small = rows_of(8 * 1350 * plain.pass_token, CPU)
    assert choose_rows(plan, apart(plan, small), small, None) is None


def test_the_users_micro_batch_bounds_its_windows():
    plan = shared_plan(99)
    rows = rows_of(140 * GIB)
    found = choose_rows(plan, apart(plan, rows), rows, 3)
    assert found is not None and found.batch_windows == 3
    assert max(map(len, found.batches(plan, range(len(plan))))) == 3
    assert replace(found, batch_windows=99).batches(plan, range(len(plan)))[0].stop > 3
