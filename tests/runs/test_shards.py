"""Shards of runs: whole passes of the whole run's schedule, and the same bits."""

import json
from dataclasses import replace

import numpy as np
import pytest
from support.chats.runs import chat_model, write_rows
from support.forged_runs import flipped, sealed
from support.shard_runs import SCHEDULE, asked, refusal, run, shards
from support.tampered_runs import Stop, interrupted_after
from support.uneven_plans import unequal_plan

from scoremode.cli.main import main
from scoremode.engines.base import OutOfMemory, Schedule
from scoremode.errors import RunFolderError, UsageError
from scoremode.results.folders.store import RECORD, SCORES, read_scores
from scoremode.results.shards import Shard
from scoremode.results.shards.merge import merge
from scoremode.runs.planning import plan_text
from scoremode.runs.shards import batches_sha256, shard_section, share_of
from scoremode.text.protocol import preset


def counted(passes: list):
    """Lets an engine's passes through, and notes each."""

    def tamper(parts):
        for part in parts:
            passes.append(part)
            yield part

    return tamper


@pytest.fixture
def request_(demo, tmp_path):
    return asked(demo, tmp_path / "runs")


@pytest.fixture
def plan(request_):
    return plan_text(request_.corpus, request_.protocol, model=request_.model).plan


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(8, 4),
        Schedule(5, 2),
        Schedule(1000, 4),
        Schedule(16, 8, pass_tokens=500, batch_tokens=256, pads=True),
    ],
)
def test_the_shares_of_all_shards_are_the_passes_of_the_plan(plan, schedule):
    passes = schedule.passes(plan)
    assert share_of(schedule, None, plan).passes == passes
    for of in range(1, len(passes) + 1):
        found, targets = [], 0
        for number in range(1, of + 1):
            section = shard_section(Shard(number, of), schedule, plan)
            share = share_of(schedule, Shard(number, of), plan)
            assert share.before == len(found) == section["passes"][0]
            assert section["windows"] == [share.windows.start, share.windows.stop]
            found += share.passes
            targets += section["targets"]
            # What an engine is given, whose first passes and micro-batches are the whole plan's.
            part = plan.first_windows(share.windows.stop)
            assert schedule.passes(part) == found
            for windows in share.passes:
                assert schedule.batches(part, windows) == schedule.batches(plan, windows)
        assert found == passes and targets == plan.scored


@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_lengths_a_share_has_the_whole_plans_passes_and_micro_batches(seed):
    """Of random plans and schedules: conversations of unequal lengths, and a text's windows."""
    rng = np.random.default_rng(seed)
    plan = unequal_plan(int(rng.integers(5, 120)), 500, seed=seed)
    if seed % 2:
        # As texts apart have them: windows of several lengths, in any order.
        plan = replace(plan, conversation=None, counted=None, turn_place=None)
    most, batch = int(rng.integers(2, 20)), int(rng.integers(1, 6))
    schedule = Schedule(most, batch)
    if plan.conversation is not None:
        tokens = int(rng.integers(40, 400))
        schedule = Schedule(most, batch, None, 3 * tokens, tokens, bool(rng.integers(2)))
    passes = schedule.passes(plan)
    of = int(rng.integers(1, len(passes) + 1))
    found, rows = [], 0
    for number in range(1, of + 1):
        share = share_of(schedule, Shard(number, of), plan)
        part = plan.first_windows(share.windows.stop)
        # What an engine does: the passes of this part of the plan, but for those of others.
        found += schedule.passes(part)[share.before :]
        assert found == passes[: len(found)]
        for windows in share.passes:
            assert schedule.batches(part, windows) == schedule.batches(plan, windows)
            assert part.offsets[windows.start] == plan.offsets[windows.start] == rows
            rows += int(plan.counts[windows.start : windows.stop].sum())
    assert found == passes and rows == plan.scored


def test_the_micro_batches_hash_tells_all_that_a_score_depends_on(plan):
    sha256 = batches_sha256(Schedule(8, 4), plan)
    assert batches_sha256(Schedule(16, 4), plan) == sha256
    assert batches_sha256(Schedule(8, 2), plan) != sha256
    assert batches_sha256(Schedule(8, 4, chunk_tokens=1024), plan) != sha256


def test_more_shards_than_passes_are_refused_before_anything_is_written(request_, plan):
    passes = len(SCHEDULE.passes(plan))
    words = refusal(run, request_, shard=f"1/{passes + 1}")
    assert words == (
        f"--shard 1/{passes + 1}: the run has {passes} passes (a pass is 8 of its {len(plan)} "
        f"windows), and each shard takes whole ones: N may be at most {passes}"
    )
    assert not request_.output.exists()
    with pytest.raises(UsageError):
        shard_section(Shard(1, 2), Schedule(len(plan), 4), plan)


def test_shards_have_the_whole_runs_scores_and_no_metrics(request_):
    whole = run(request_)
    wanted = read_scores(whole.folder).columns()
    for of in (1, 2, 3):
        parts = []
        for folder in shards(request_, of, output=request_.output / f"{of}"):
            parts.append(read_scores(folder).columns())
        for name, column in wanted.items():
            found = np.concatenate([part[name] for part in parts])
            assert found.tobytes() == column.tobytes()


def test_a_shards_record_says_so_and_has_no_number_of_the_text(request_):
    record = run(request_, shard="2/3").record.document
    assert record["status"] == "shard" and record["identity"]["shard"] == {"number": 2, "of": 3}
    assert record["shard"]["passes"] == [2, 4] and record["shard"]["of_passes"] == 7
    assert record["shard"]["windows"] == [16, 32]
    assert not {"metrics", "intervals", "breakdown", "distribution", "parts"} & record.keys()
    assert record["plan"]["scored"] > record["scores"]["rows"] == record["shard"]["targets"]


def test_progress_and_estimates_are_of_the_share(request_, plan):
    from support.shard_runs import Scheduled
    from support.tampered_runs import loaded

    from scoremode.checkpoint.files import open_checkpoint
    from scoremode.runs.run import run_plan

    told, seen = [], []
    planned = plan_text(request_.corpus, request_.protocol, model=request_.model)
    run_plan(
        replace(request_, shard=Shard(2, 3)),
        open_checkpoint(request_.model),
        planned,
        lambda: Scheduled(loaded(request_.model, request_.options, planned.vocabulary), SCHEDULE),
        progress=lambda done, total: told.append((done, total)),
        watch=seen.append,
    )
    own = int(plan.lengths[16:32].sum())
    assert {total for _, total in told} == {own}
    assert sum(done for done, _ in told) == pytest.approx(own) and not seen


def test_a_shard_out_of_memory_ends_with_what_all_shards_need(request_, monkeypatch):
    from scoremode.engines.torch.engine import TorchEngine

    def fail(self, work):
        raise OutOfMemory("CUDA out of memory.")

    monkeypatch.setattr(TorchEngine, "launch", fail)
    words = refusal(run, request_, shard="2/3")
    assert words == (
        "--shard 2/3: CUDA out of memory: all shards have the same micro-batches, so this one can't "
        "go on in others than 4 windows: give a smaller --batch-size to all of them"
    )
    assert not list(request_.output.iterdir())


def test_a_killed_shard_goes_on_to_the_same_bits_and_no_other_shard_does(request_):
    wanted = run(request_, shard="2/2", output=request_.output / "wanted")
    output = request_.output / "killed"
    with pytest.raises(Stop):
        run(request_, shard="2/2", output=output, tamper=interrupted_after(2))
    (folder,) = output.iterdir()
    assert len(json.loads((folder / RECORD).read_text())["parts"]) == 2
    # Another shard, and the whole run, begin anew.
    for other in ("1/2", None):
        assert run(request_, shard=other, output=output, resume=True).folder != folder
    begun = []
    done = run(request_, shard="2/2", output=output, resume=True, tamper=counted(begun))
    assert done.folder == folder and len(begun) == 2
    assert (folder / SCORES).read_bytes() == (wanted.folder / SCORES).read_bytes()
    assert sorted(p.name for p in folder.iterdir()) == [RECORD, SCORES]
    # And once more, which finds it done.
    again = run(request_, shard="2/2", output=output, resume=True, tamper=counted(begun))
    assert again.folder == folder and len(begun) == 2


def test_a_finished_shard_that_was_damaged_is_found_out_when_it_is_resumed(request_):
    folder = run(request_, shard="2/2").folder
    flipped(folder / RECORD)
    with pytest.raises(RunFolderError):
        run(request_, shard="2/2", output=folder, resume=True)


def test_a_killed_shards_record_that_was_edited_is_refused(request_):
    with pytest.raises(Stop):
        run(request_, shard="2/2", tamper=interrupted_after(2))
    (folder,) = request_.output.iterdir()
    record = json.loads((folder / RECORD).read_text())
    for name, value in (("windows", [0, 5]), ("of_passes", 9), ("batches_sha256", "0" * 64)):
        sealed(folder, record | {"shard": record["shard"] | {name: value}})
        words = refusal(run, request_, shard="2/2", output=folder, resume=True)
        assert f"was changed: its shard {name} is" in words


@pytest.mark.parametrize("protocol", ["strided", "hf-strided", "llama.cpp", "gptq"])
def test_any_protocols_shards_make_the_whole_run(demo, tmp_path, protocol):
    """Overlapping windows, a weight a window, a BOS in each, and equal lengths all through."""
    rule = preset(protocol).override(context_length=64)
    if rule.stride is not None:
        rule = rule.override(stride=24 if "strided" in protocol else 64)
    request = asked(demo, tmp_path / "runs", 4000, protocol=rule)
    whole = run(request, Schedule(6, 3), output=tmp_path / "whole")
    found = shards(request, 3, Schedule(6, 3))
    record = merge(found, tmp_path / "merged").document
    assert (tmp_path / "merged" / SCORES).read_bytes() == (whole.folder / SCORES).read_bytes()
    assert record["metrics"] == whole.record.document["metrics"]
    assert record["intervals"] == whole.record.document["intervals"]


def test_conversations_shards_make_the_whole_run(demo, tmp_path):
    write_rows(demo, tmp_path / "chats.jsonl", 120)
    model = chat_model(demo, tmp_path / "model")
    flags = ["ppl", str(model), "--conversations", str(tmp_path / "chats.jsonl"), "--group-by",
             "domain", "-c", "128", "--max-memory", "3300kB", "--batch-size", "4", "--device", "cpu",
             "--num-samples", "100", "--seed", "3", "--quiet"]  # fmt: skip
    assert main([*flags, "-o", str(tmp_path / "whole")]) == 0
    for i in (1, 2, 3):
        assert main([*flags, "-o", str(tmp_path / "shards"), "--shard", f"{i}/3"]) == 0
    record = merge([tmp_path / "shards"], tmp_path / "merged").document
    (whole,) = (tmp_path / "whole").iterdir()
    theirs = json.loads((whole / RECORD).read_text())
    assert theirs["schedule"]["pads"] is True
    assert (tmp_path / "merged" / SCORES).read_bytes() == (whole / SCORES).read_bytes()
    for name in ("metrics", "breakdown", "intervals", "plan", "corpus"):
        assert record[name] == theirs[name]
