"""Schedules and places on devices of made sizes: no GPU is needed to count."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from scoremode.engines.base import Schedule
from scoremode.engines.torch.device import Device
from scoremode.engines.torch.memory.activations import Activations
from scoremode.engines.torch.memory.budget import (
    Memory,
    choose_place,
    head_bytes,
    per_token,
)
from scoremode.errors import EngineError

GIB = 1 << 30
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
# Tokens of a pass, by where the packed layers lie.
PASS = {"device": 65_536, "host": 131_072, "disk": 524_288}


def memory(
    size: int, *, device=CUDA, fixed=GIB, batch_token=1 << 18, pass_token=1 << 13, place=None
):
    """By default that of an 8B model: 2 GiB for a micro-batch, 512 MiB for a pass's states."""
    return Memory(Device(device, "made", size), fixed, batch_token, pass_token, place)


def taken(memory: Memory, schedule: Schedule, length: int) -> int:
    tokens = schedule.batch_windows * length, schedule.pass_windows * length
    return memory.fixed + tokens[0] * memory.batch_token + tokens[1] * memory.pass_token


@pytest.mark.parametrize("place", PASS)
@pytest.mark.parametrize(
    ("length", "batch"), [(2048, 8), (512, 32), (8192, 2), (32_768, 1), (3000, 5)]
)
def test_with_room_a_gpus_passes_last_as_long_as_weights_take_to_come(length, batch, place):
    schedule = memory(140 * GIB, place=place).schedule(length, None)
    whole = max(batch, PASS[place] // length)
    assert schedule == Schedule(whole - whole % batch, batch)
    assert schedule.pass_windows * length > PASS[place] - batch * length


def test_a_cpus_passes_are_shorter_and_bounded_by_a_share():
    roomy = memory(64 * GIB, device=CPU)
    assert roomy.schedule(512, None) == Schedule(32, 4)
    # An eighth of 256 MiB holds 32 MiB: 8 windows of 4 MiB.
    small = memory(256 << 20, device=CPU)
    assert small.schedule(512, None) == Schedule(8, 4)
    assert small.schedule(512, 3) == Schedule(6, 3)
    with pytest.raises(EngineError, match=r"4 windows of 512 tokens take 16\.000 MiB") as error:
        memory(64 << 20, device=CPU).schedule(512, None)
    assert "8.000 MiB of the 64.000 MiB allowed" in str(error.value)


@pytest.mark.parametrize("length", [300, 2048, 5000])
@pytest.mark.parametrize("place", PASS)
def test_the_micro_batch_is_halved_until_it_fits_and_all_stays_within(place, length):
    unbounded = memory(999 * GIB, place=place).schedule(length, None).batch_windows
    halvings = [unbounded >> n for n in range(unbounded.bit_length())]
    seen = set()
    for size in range(12 * GIB, 1 * GIB, -(GIB // 16)):
        asked = memory(size, place=place)
        try:
            schedule = asked.schedule(length, None)
        except EngineError:
            assert asked.fixed + length * (asked.batch_token + asked.pass_token) > size * 15 // 16
            continue
        seen.add(batch := schedule.batch_windows)
        assert taken(asked, schedule, length) <= size * 15 / 16
        assert schedule.pass_windows % batch == 0 and schedule.pass_windows >= batch
        # One more micro-batch of the pass is too much, unless it is as long as it should be.
        more = Schedule(schedule.pass_windows + batch, batch)
        assert (
            taken(asked, more, length) > size * 15 / 16 or more.pass_windows > PASS[place] // length
        )
        # What it was halved from is too much: the largest one beside a whole pass, others at all.
        before = halvings[max(0, halvings.index(batch) - 1)]
        least = PASS[place] // length if before == unbounded else before
        assert before == batch or taken(asked, Schedule(least, before), length) > size * 15 / 16
    assert seen == set(halvings)


def test_the_users_micro_batch_is_taken_as_it_is_or_refused():
    roomy = memory(140 * GIB)
    assert roomy.schedule(2048, 3) == Schedule(30, 3)
    assert roomy.schedule(2048, 50) == Schedule(50, 50)
    small = memory(3 * GIB)
    assert small.schedule(2048, None).batch_windows == 2
    with pytest.raises(EngineError) as error:
        small.schedule(2048, 4)
    needed = 1024 + 4 * 2048 * ((1 << 18) + (1 << 13)) / 2**20
    assert str(error.value) == (
        f"4 windows of 2048 tokens take {needed:.3f} MiB, more than the 2880.000 MiB of the "
        "3072.000 MiB allowed: raise --max-memory by 274 MiB, or give --batch-size 3"
    )


@pytest.mark.parametrize("device", [CPU, CUDA], ids=["cpu", "gpu"])
@pytest.mark.parametrize("batch", [None, 1, 3, 50])
@pytest.mark.parametrize("size", [1, 1 << 20, 40 << 20, 3 * GIB])
def test_what_is_said_to_fit_fits_and_nothing_less(device, batch, size):
    """The flags that the error names, taken at their word."""
    small = memory(size, device=device)
    try:
        small.schedule(2048, batch)
    except EngineError as error:
        raised, fitting = re.search(
            r"by (\d+) MiB(?:, or give --batch-size (\d+))?$", str(error)
        ).groups()
    else:
        return
    more = memory(size + (int(raised) << 20), device=device)
    more.schedule(2048, batch)
    with pytest.raises(EngineError):
        memory(more.device.memory - (2 << 20), device=device).schedule(2048, batch)
    if fitting:
        small.schedule(2048, int(fitting))
        with pytest.raises(EngineError):
            small.schedule(2048, int(fitting) + 1)
    else:
        with pytest.raises(EngineError):
            small.schedule(2048, 1)


def test_a_window_that_does_not_fit_alone_is_refused_in_one_line():
    with pytest.raises(EngineError, match=r"^1 window of 40000 tokens takes") as error:
        memory(8 * GIB).schedule(40_000, None)
    assert "\n" not in str(error.value) and "--max-memory" in str(error.value)
    # What is fixed is more than all there is.
    with pytest.raises(EngineError, match=r"^1 window of 10 tokens takes 4098"):
        memory(2 * GIB, fixed=4 * GIB).schedule(10, None)


def test_a_schedule_does_not_depend_on_what_is_free(monkeypatch):
    def refuse(*_):
        raise AssertionError("asked for what happens to be free")

    monkeypatch.setattr(torch.cuda, "mem_get_info", refuse)
    monkeypatch.setattr(torch.cuda, "memory_reserved", refuse)
    assert memory(80 * GIB).schedule(2048, None) == memory(80 * GIB).schedule(2048, None)


# Of an 8B model on a GPU: 37 KB a token whatever the chunk, 64 KB in the gated products.
LAYER = Activations(37 << 10, 0, 33 << 10, 64 << 10)
LONG = 131_072


def long_memory(size: int, *, device=CUDA, layer: Activations = LAYER, **more) -> Memory:
    return Memory(
        Device(device, "made", size), 6 * GIB, 180 << 10, 8 << 10, more.get("place"), layer
    )


@pytest.mark.parametrize("length", [512, 8192])
def test_ordinary_windows_never_go_in_chunks(length):
    for size in range(5, 40, 5):
        with_layer, without = long_memory(size * GIB), replace(long_memory(size * GIB), layer=None)
        try:
            expected = without.schedule(length, None)
        except EngineError as error:
            with pytest.raises(EngineError) as found:
                with_layer.schedule(length, None)
            assert str(found.value) == str(error)
        else:
            assert with_layer.schedule(length, None) == expected
            assert expected.chunk_tokens is None


def test_long_windows_go_whole_with_room_and_else_in_the_longest_chunks_that_fit():
    # 6 GiB fixed, 1 of states; whole by the old count 22.5, in chunks 4.6.
    assert long_memory(32 * GIB).schedule(LONG, None) == Schedule(1, 1)
    assert long_memory(31 * GIB).schedule(LONG, None) == Schedule(1, 1, 8192)
    seen = []
    for size in range(31 * GIB, 12 * GIB, -GIB // 16):
        asked = long_memory(size)
        try:
            chunk = asked.schedule(LONG, None).chunk_tokens
        except EngineError:
            break
        seen.append(chunk)
        needed = 6 * GIB + LONG * (8 << 10) + LAYER.bytes(1, LONG, chunk)
        assert needed <= size * 15 // 16
        larger = 2 * chunk
        more = 6 * GIB + LONG * (8 << 10) + LAYER.bytes(1, LONG, larger)
        assert chunk == 8192 or more > size * 15 // 16
    assert seen == sorted(seen, reverse=True)


def test_what_a_long_window_needs_in_the_shortest_chunks_is_named():
    layer = replace(LAYER, gated_chunk=1 << 20)
    small = long_memory(10 * GIB, layer=layer)
    with pytest.raises(EngineError, match=r"^1 window of 131072 tokens takes") as error:
        small.schedule(LONG, None)
    assert "in chunks of 1024, more than the" in str(error.value)
    (raised,) = re.search(r"raise --max-memory by (\d+) MiB", str(error.value)).groups()
    size = small.device.memory + (int(raised) << 20)
    assert long_memory(size, layer=layer).schedule(LONG, None).chunk_tokens == 1024
    with pytest.raises(EngineError):
        long_memory(size - (2 << 20), layer=layer).schedule(LONG, None)
    # What no chunk makes less is named, too.
    pairs = replace(LAYER, pair=4, chunked_pair=4)
    with pytest.raises(EngineError, match=r"and 4 bytes for every two positions in its attention"):
        long_memory(40 * GIB, layer=pairs).schedule(LONG, None)


def test_the_users_micro_batch_of_long_windows_goes_in_chunks_as_it_is():
    assert long_memory(20 * GIB).schedule(32_768, 4) == Schedule(4, 4, 8192)
    with pytest.raises(EngineError, match=r"^8 windows of 32768 tokens take"):
        long_memory(16 * GIB).schedule(32_768, 8)


def test_a_pass_of_long_windows_is_as_long_as_weights_take_to_come():
    assert long_memory(12 * GIB).schedule(32_768, None) == Schedule(2, 1, 8192)
    assert long_memory(12 * GIB, place="host").schedule(32_768, None) == Schedule(4, 1, 8192)
    assert long_memory(12 * GIB, place="disk").schedule(32_768, None).chunk_tokens == 8192
    tight = long_memory(12 * GIB, place="disk")
    most = tight.schedule(32_768, None).pass_windows
    assert tight.most_windows(32_768, 1, 8192) == most < 16


def test_a_cpus_long_windows_go_whole_in_a_quarter_of_its_memory_and_in_chunks_in_half():
    whole = LONG * (180 << 10)
    assert long_memory(4 * whole, device=CPU).schedule(LONG, None).chunk_tokens is None
    assert long_memory(4 * whole - 4, device=CPU).schedule(LONG, None).chunk_tokens == 8192
    with pytest.raises(EngineError, match="in chunks of 1024"):
        long_memory(12 * GIB, device=CPU).schedule(LONG, None)


def test_weights_make_room_for_the_longest_window():
    """Resident, they leave too little for 128k tokens: so they stay on the host."""
    alone = replace(long_memory(14 * GIB), fixed=GIB)
    layers = [GIB // 4] * 28
    assert choose_place(None, layers, alone, 64 * GIB)[0] == "device"
    assert choose_place(None, layers, alone, 64 * GIB, 8192)[0] == "device"
    place, found = choose_place(None, layers, alone, 64 * GIB, LONG)
    assert place == "host" and found.schedule(LONG, None).chunk_tokens == 8192


def test_the_estimate_has_what_the_allocator_loses():
    asked = long_memory(20 * GIB)
    taken = 6 * GIB + LONG * (8 << 10) + LAYER.bytes(1, LONG, 8192)
    assert asked.estimate(LONG, Schedule(1, 1, 8192)) == int(taken * 16 / 15)
    on_cpu = long_memory(20 * GIB, device=CPU)
    assert on_cpu.estimate(LONG, Schedule(1, 1, 8192)) == taken - 6 * GIB


LAYERS = [GIB // 4] * 31 + [GIB // 8] * 2
BESIDE = GIB + 2 * GIB + GIB // 2  # fixed, micro-batch, pass


@pytest.mark.parametrize(
    ("wanted", "device", "host", "place", "fixed"),
    [
        (None, 80 * GIB, 64 * GIB, "device", 9 * GIB),
        # 11.5 GiB are needed, and a sixteenth more.
        (None, (BESIDE + 8 * GIB) * 16 // 15 + 16, 64 * GIB, "device", 9 * GIB),
        (None, (BESIDE + 8 * GIB) * 16 // 15 - 16, 64 * GIB, "host", GIB + GIB // 2),
        # Half of the host's memory may be pinned.
        (None, 8 * GIB, 16 * GIB, "host", GIB + GIB // 2),
        (None, 8 * GIB, 16 * GIB - 2, "disk", GIB + GIB // 2),
        # What the user wants, whatever there is.
        ("device", 8 * GIB, 64 * GIB, "device", 9 * GIB),
        ("host", 80 * GIB, 1 * GIB, "host", GIB + GIB // 2),
        ("disk", 80 * GIB, 64 * GIB, "disk", GIB + GIB // 2),
    ],
)
def test_packed_layers_go_to_the_fastest_place_with_room(wanted, device, host, place, fixed):
    chosen, result = choose_place(wanted, LAYERS, memory(device), host)
    assert chosen == result.place == place
    assert result.fixed == fixed
    assert (result.batch_token, result.pass_token) == (1 << 18, 1 << 13)


def config(**more):
    return SimpleNamespace(hidden_size=64, **more)


def count(config, dtype=torch.bfloat16, attention="sdpa", *, quantized=False) -> int:
    return per_token(config, dtype, attention, quantized=quantized)


def test_intermediates_of_a_token_grow_with_what_a_layer_has():
    plain = count(config(intermediate_size=256))
    assert plain == 2 * (8 * 64 + 3 * 256) + 2 * 4 * 64
    assert count(config(intermediate_size=256), torch.float32) == 4 * (8 * 64 + 3 * 256) + 512
    # Four times the width where a config says nothing, or None.
    assert count(config()) == count(config(intermediate_size=None)) == plain
    # The widest of the layers'.
    for sizes in ([64, 256, 128], (256, 1)):
        assert count(config(intermediate_size=sizes)) == plain
    # Codes, and sums in float32.
    assert count(config(intermediate_size=256), quantized=True) == plain + 6 * 256


def test_llama_4s_experts_each_have_a_copy_of_a_token():
    plain = count(config(intermediate_size=256))
    mixture = config(intermediate_size=256, model_type="llama4_text", num_local_experts=16)
    assert count(mixture) == plain + 4 * 2 * 64 * 16


def test_experts_count_as_often_as_a_token_has_them():
    plain = count(config(intermediate_size=256))
    four = config(intermediate_size=64, moe_intermediate_size=64, num_experts_per_tok=4)
    assert count(four) == plain
    lists = config(
        intermediate_size=[64, 32], moe_intermediate_size=[32, 64], num_experts_per_tok=[2, 4, 1]
    )
    assert count(lists) == plain
    # A dense layer that is wider than all experts of a token.
    wide = config(intermediate_size=256, moe_intermediate_size=16, num_experts_per_tok=2)
    assert count(wide) == plain
    none = config(intermediate_size=256, moe_intermediate_size=64, num_experts_per_tok=None)
    assert count(none) == plain


def test_eager_attention_has_a_row_of_scores_a_head():
    shape = {"intermediate_size": 256, "num_attention_heads": 8}
    plain = count(config(**shape))
    assert count(config(**shape), attention="eager") == plain + 8 * 2048 * 8
    short = config(**shape, max_position_embeddings=512)
    assert count(short, attention="eager") == plain + 8 * 512 * 8
    assert count(short, torch.float32, "eager") - count(short, torch.float32) == 8 * 512 * 12
    long = config(**shape, max_position_embeddings=1 << 17)
    assert count(long, attention="eager") == plain + 8 * 2048 * 8


@pytest.mark.parametrize("device", [CUDA, CPU])
def test_a_head_holds_two_models_tiles_and_their_states(device, monkeypatch):
    monkeypatch.setattr("scoremode.engines.torch.memory.budget.tile_of", lambda d: (100, 1000))
    assert head_bytes(device, 64, torch.bfloat16) == 2 * 4 * 100 * 1000 + 100 * 64 * 2
