"""A run that is killed goes on to the same bits: by kill -9, at any touch of the disk, and by what is
in its folder, where parts and states that were changed in between are found and named."""

import json
import os
import resource
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import kill_points
from support.models import edit_tensors
from support.warm import call, run_killed

from scoremode.cli.main import main
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.torch.engine import TorchEngine
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import ReferenceUnusable, RunFolderError
from scoremode.results.folders.store import RunFolder, find_runs, read_record, read_scores, seal_of
from scoremode.runs.measure import measure
from scoremode.runs.passes import RunPasses
from scoremode.runs.request import Request
from scoremode.text.corpus import from_string
from scoremode.text.protocol import preset

# Every so many touches; 1 takes minutes.
STEP = int(os.environ.get("SCOREMODE_KILL_STEP", "20"))


@pytest.mark.parametrize("kind", ["ppl", "reference", "stopped", "shard", "merge"])
def test_a_run_killed_at_any_touch_of_the_disk_ends_with_the_same_bits(kind, tmp_path):
    code, out, err = call(kill_points.main, tmp_path, kind, STEP)
    *wrong, last = out.splitlines() or [""]
    assert not wrong and code == 0, f"{out}\n{err}"
    least = 20 if kind == "merge" else 60
    assert last.endswith(" points") and int(last.split()[0]) * STEP > least


@pytest.fixture(scope="module")
def flags(demo) -> list[str]:
    """Of a run of a few seconds in many passes, all but its output folder."""
    text = f"-f {demo / 'heldout.txt'} --protocol strided -c 128 --stride 32 --limit 80"
    return f"{text} --max-memory 8MB --batch-size 8 --device cpu --quiet -o".split()


@pytest.fixture(scope="module")
def command(demo, flags) -> list[str]:
    return ["ppl", str(demo / "model"), *flags]


@pytest.fixture(scope="module")
def whole(command, tmp_path_factory) -> Path:
    """The folder of an uninterrupted run of it."""
    runs = tmp_path_factory.mktemp("whole")
    assert main([*command, str(runs)]) == 0
    ((folder, _),) = find_runs(runs)
    return folder


def test_kill_9_and_resume_gives_the_same_bits(command, whole, tmp_path):
    run_killed([*command, str(tmp_path)], tmp_path, 2)
    ((folder, record),) = find_runs(tmp_path)
    assert record["status"] == "running"
    assert main([*command, str(tmp_path), "--resume"]) == 0
    assert read_record(folder)["metrics"] == read_record(whole)["metrics"]
    a, b = (f / "scores.parquet" for f in (folder, whole))
    assert a.read_bytes() == b.read_bytes()


def test_kill_9_and_resume_of_a_reference_and_of_a_comparison(demo, flags, tmp_path, capfd):
    base, quant = str(demo / "model"), tmp_path / "quant"
    quantize_folder(demo / "model", quant, next(v for v in VARIANTS if v.name == "W3A16-g32"))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    keep = ["reference", base, *flags]
    assert main([*keep, str(whole)]) == 0
    run_killed([*keep, str(killed)], killed, 2, "parts/*.parquet")
    compare = ["kld", str(quant), *flags]
    assert main([*compare, str(tmp_path / "none"), "--reference", str(killed)]) == 1
    assert "is not finished" in capfd.readouterr().err
    assert main([*keep, str(killed), "--resume"]) == 0
    names = sorted(p.relative_to(whole) for p in whole.rglob("*.safetensors"))
    assert names == sorted(p.relative_to(killed) for p in killed.rglob("*.safetensors"))
    for name in [*names, "scores.parquet"]:
        assert (whole / name).read_bytes() == (killed / name).read_bytes(), name
    assert read_record(whole)["kept"] == read_record(killed)["kept"]

    compare = ["kld", str(quant), "--reference", str(whole), *flags]
    assert main([*compare, str(tmp_path / "a")]) == 0
    run_killed([*compare, str(tmp_path / "b")], tmp_path / "b", 2)
    assert main([*compare, str(tmp_path / "b"), "--resume"]) == 0
    ((a, ours),), ((b, theirs),) = (list(find_runs(tmp_path / name)) for name in "ab")
    assert (a / "scores.parquet").read_bytes() == (b / "scores.parquet").read_bytes()
    assert ours["metrics"] == theirs["metrics"]


def test_a_full_disk_is_one_clear_line_and_with_room_the_run_goes_on(command, whole, tmp_path):
    code, _, err = call(limited, [*command, str(tmp_path / "runs")])
    assert code == 1
    (line,) = err.splitlines()
    assert "cannot be written" in line and str(tmp_path) in line
    assert list(tmp_path.rglob("*.scoremode-tmp")) == []
    assert main([*command, str(tmp_path / "runs"), "--resume"]) == 0
    ((folder, record),) = find_runs(tmp_path / "runs")
    assert record["metrics"] == read_record(whole)["metrics"]
    assert (folder / "scores.parquet").read_bytes() == (whole / "scores.parquet").read_bytes()


def limited(words: list[str]) -> int:
    """The largest file that the process may write stands in for the disk's end; Python ignores the
    signal that comes with it, so the write itself fails."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
    return main(words)


class Stop(BaseException):
    """As a kill would, leaves what is on disk."""


@pytest.fixture(scope="module")
def ask(demo) -> Request:
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:2500]
    return Request(
        model=str(demo / "model"),
        corpus=from_string(text),
        protocol=preset("disjoint").override(context_length=64),
        options=TorchOptions(device="cpu", dtype="float32", batch_windows=2, max_memory=1_000_000),
        output=Path(),
    )


@pytest.fixture(scope="module")
def reference(ask, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kept") / "whole"
    measure(replace(ask, output=folder, keep="stored"))
    return folder


def killed(ask: Request, after: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        own, passes = TorchEngine._score_states, []

        def stopping(self, *arguments):
            passes.append(1)
            if len(passes) > after:
                raise Stop
            return own(self, *arguments)

        patched.setattr(TorchEngine, "_score_states", stopping)
        with pytest.raises(Stop):
            measure(ask)


@pytest.fixture(scope="module")
def comparison(ask, reference, tmp_path_factory) -> Path:
    """One with a base, killed after some passes: a folder to be copied."""
    output = tmp_path_factory.mktemp("runs")
    killed(replace(ask, output=output, reference=str(reference)), 4)
    (folder,) = output.iterdir()
    assert len(read_record(folder)["parts"]) >= 3
    return folder


@pytest.fixture(scope="module")
def keeping(ask, tmp_path_factory) -> Path:
    """A reference, killed after some passes."""
    folder = tmp_path_factory.mktemp("keeping") / "reference"
    killed(replace(ask, output=folder, keep="stored"), 5)
    assert len(read_record(folder)["parts"]) >= 3
    return folder


def bytes_of(folder: Path) -> dict[str, bytes]:
    files = [f for f in folder.rglob("*") if f.is_file()]
    return {str(f.relative_to(folder)): f.read_bytes() for f in files}


def part(folder: Path, number: int) -> Path:
    return folder / "parts" / f"{number:05}.parquet"


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 8
    file.write_bytes(content)


def swap(folder: Path) -> None:
    one, two = (part(folder, i).read_bytes() for i in (0, 1))
    part(folder, 0).write_bytes(two), part(folder, 1).write_bytes(one)


def lower(folder: Path) -> None:
    """Well-formed, plausible, and a nat too good."""
    table = pq.read_table(part(folder, 1))
    columns = {name: table[name].to_numpy() for name in table.column_names}
    columns["kld"] = np.maximum(columns["kld"] - 1, 0)
    columns["kld"][:3] += 1e-3
    pq.write_table(pa.table(columns), part(folder, 1), compression="zstd")


DAMAGE = {
    "a bit": (lambda f: flip(part(f, 1)), "00001.parquet: is damaged or another's"),
    "copied": (lambda f: shutil.copy(part(f, 0), part(f, 1)), "00001.parquet: is damaged or"),
    "swapped": (swap, "00000.parquet: is damaged or another's"),
    "cut": (lambda f: os.truncate(part(f, 2), 2000), "00002.parquet: is damaged or another's"),
    "emptied": (lambda f: os.truncate(part(f, 0), 0), "00000.parquet: is damaged or another's"),
    "one more": (
        lambda f: shutil.copy(part(f, 0), part(f, 31)),
        "00031.parquet: is no part of this",
    ),
    "a lower KLD": (lower, "00001.parquet: is damaged or another's"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_part_that_was_changed(what, ask, reference, comparison, tmp_path):
    damage, said = DAMAGE[what]
    folder = shutil.copytree(comparison, tmp_path / "run")
    damage(folder)
    before = bytes_of(folder)
    with pytest.raises(RunFolderError, match=said) as refused:
        measure(replace(ask, output=folder, resume=True, reference=str(reference)))
    assert "remove it, and --resume" in str(refused.value) and "\n" not in str(refused.value)
    assert bytes_of(folder) == before


def test_a_part_changed_with_its_hash_must_still_be_the_plans(ask, reference, comparison, tmp_path):
    folder = shutil.copytree(comparison, tmp_path / "run")
    shutil.copy(part(folder, 0), part(folder, 1))
    record = read_record(folder)
    record["parts"][1] = record["parts"][0]
    (folder / "record.json").write_text(json.dumps(record | {"sha256": seal_of(record)}))
    with pytest.raises(RunFolderError, match=r"00001\.parquet: the engine scored window 0 where"):
        measure(replace(ask, output=folder, resume=True, reference=str(reference)))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("protocol", "stride", 63), ("protocol", "average", "hf-guide"), ("plan", "unique", 7)],
)
def test_a_record_in_progress_that_tells_another_plan(
    section, key, value, ask, reference, comparison, tmp_path
):
    folder = shutil.copytree(comparison, tmp_path / "run")
    record = read_record(folder)
    record[section][key] = value
    (folder / "record.json").write_text(json.dumps(record | {"sha256": seal_of(record)}))
    with pytest.raises(RunFolderError, match=rf"was changed: its {section} {key} is {value}, this"):
        measure(replace(ask, output=folder, resume=True, reference=str(reference)))


def test_a_base_s_part_changed_with_its_hash_must_still_be_the_base_s(
    ask, reference, comparison, tmp_path
):
    from hashlib import sha256

    folder = shutil.copytree(comparison, tmp_path / "run")
    table = pq.read_table(part(folder, 0))
    columns = {name: table[name].to_numpy().copy() for name in table.column_names}
    miss = columns["base_top1"] != columns["target"]
    columns["base_logprob"][miss] -= 1
    # A distribution so far from the model's may be.
    columns["tv"][:] = 1
    pq.write_table(pa.table(columns), part(folder, 0), compression="zstd")
    record = read_record(folder)
    record["parts"][0]["sha256"] = sha256(part(folder, 0).read_bytes()).hexdigest()
    (folder / "record.json").write_text(json.dumps(record | {"sha256": seal_of(record)}))
    with pytest.raises(ReferenceUnusable, match="differ from the stored ones"):
        measure(replace(ask, output=folder, resume=True, reference=str(reference)))


def test_a_removed_part_is_scored_again_with_those_after_it(ask, reference, comparison, tmp_path):
    whole = measure(replace(ask, output=tmp_path / "whole", reference=str(reference)))
    folder, lines = shutil.copytree(comparison, tmp_path / "run"), []
    part(folder, 1).unlink()
    again = measure(
        replace(ask, output=folder, resume=True, reference=str(reference)), notify=lines.append
    )
    assert f"resuming {folder} after 1 passes" in lines
    assert again.record.document["metrics"] == whole.record.document["metrics"]
    # All of the base's rows were compared, those of the first process too.
    assert (
        again.record.document["reference"]["replay"] == whole.record.document["reference"]["replay"]
    )
    for name in ("scores.parquet",):
        assert (folder / name).read_bytes() == (whole.folder / name).read_bytes()
    assert (
        again.record.document["scores"] == whole.record.document["scores"]
        and "parts" not in again.record.document
    )
    assert len(read_scores(folder)) == again.record.document["scores"]["rows"]


@pytest.mark.parametrize("after", ["a bit", "another's"])
def test_states_that_were_changed_before_the_reference_went_on(after, ask, keeping, tmp_path):
    """What is hashed is what was written, not what is found."""
    folder = shutil.copytree(keeping, tmp_path / "reference")
    file = folder / "states" / "00001.safetensors"
    if after == "a bit":
        flip(file)
    else:
        shutil.copy(folder / "states" / "00000.safetensors", file)
    with pytest.raises(
        RunFolderError, match=r"00001\.safetensors: is damaged or another's"
    ) as found:
        measure(replace(ask, output=folder, keep="stored", resume=True))
    assert "remove it, and --resume" in str(found.value)
    assert read_record(folder)["status"] == "running"


def test_removed_states_are_made_again(ask, keeping, reference, tmp_path):
    folder = shutil.copytree(keeping, tmp_path / "reference")
    (folder / "states" / "00001.safetensors").unlink()
    again = measure(replace(ask, output=folder, keep="stored", resume=True)).record.document
    assert again["kept"] == read_record(reference)["kept"]


def test_a_reference_killed_before_its_first_record_goes_on(ask, reference, tmp_path):
    folder = tmp_path / "reference"
    (folder / "parts").mkdir(parents=True)
    (folder / ".lock").write_text("")
    (folder / ".record.json.0123456789abcdef.scoremode-tmp").write_text('{"schema"')
    with pytest.raises(RunFolderError, match="no run's record in it"):
        measure(replace(ask, output=folder, keep="stored"))
    again = measure(replace(ask, output=folder, keep="stored", resume=True)).record.document
    assert again["kept"] == read_record(reference)["kept"]
    # A folder of somebody's own is left alone.
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "thesis.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="no run's record in it"):
        measure(replace(ask, output=tmp_path / "own", keep="stored", resume=True))


def test_a_finished_reference_is_read_through_when_it_is_resumed(ask, reference, tmp_path):
    folder = shutil.copytree(reference, tmp_path / "reference")
    request = replace(ask, output=folder, keep="stored", resume=True)
    assert measure(request).record.document["kept"] == read_record(reference)["kept"]
    for name in ("states/00001.safetensors", "tokens.i32"):
        flip(folder / name)
        with pytest.raises(ReferenceUnusable, match=name):
            measure(request)
        shutil.copy(reference / name, folder / name)


@pytest.mark.parametrize("name", ["scores.parquet", "record.json"])
def test_a_finished_run_that_was_changed_is_no_result(name, ask, tmp_path):
    folder = measure(replace(ask, output=tmp_path / "runs")).folder
    record = read_record(folder)
    if name == "record.json":
        record["metrics"]["ppl"]["value"] -= 1
        (folder / name).write_text(json.dumps(record | {"sha256": seal_of(record)}))
    else:
        flip(folder / name)
    for output in (folder, folder.parent):
        with pytest.raises(RunFolderError, match=name):
            measure(replace(ask, output=output, resume=True))


def test_a_run_killed_before_it_knew_its_files_is_not_another_model_s(ask, tmp_path):
    """Two quantizations of one model have the same headers, and so the same identity."""
    first, second, output = tmp_path / "first", tmp_path / "second", tmp_path / "runs"
    for model in (first, second):
        shutil.copytree(ask.model, model)

    def scale(tensors):
        tensors["model.norm.weight"] *= 1.01

    edit_tensors(second, scale)
    of_first = replace(ask, model=str(first), output=output)
    of_second = replace(of_first, model=str(second), resume=True)
    with pytest.MonkeyPatch.context() as patched, pytest.raises(Stop):
        # As a kill would: the first record stays, and nobody clears up.
        patched.setattr(RunPasses, "score", stopped)
        patched.setattr(RunFolder, "discard", RunFolder.close)
        measure(of_first)
    (begun,) = output.iterdir()
    result = measure(of_second)
    assert result.folder != begun
    assert result.record.document["checkpoint"]["path"] == str(second)
    resumed = measure(replace(of_first, resume=True))
    assert resumed.folder == begun
    assert resumed.record.document["checkpoint"]["path"] == str(first)
    assert resumed.record.document["metrics"] != result.record.document["metrics"]


def test_a_reference_killed_before_it_knew_its_files_is_of_who_goes_on(ask, tmp_path):
    first, second, output = tmp_path / "first", tmp_path / "second", tmp_path / "reference"
    for model in (first, second):
        shutil.copytree(ask.model, model)
    keeping = replace(ask, model=str(first), output=output, keep="checkpoint")
    with pytest.MonkeyPatch.context() as patched, pytest.raises(Stop):
        patched.setattr(RunPasses, "score", stopped)
        patched.setattr(RunFolder, "discard", RunFolder.close)
        measure(keeping)
    assert read_record(output)["checkpoint"]["path"] == str(first)
    record = measure(replace(keeping, model=str(second), resume=True)).record.document
    assert record["checkpoint"]["path"] == str(second)
    assert record["kept"]["head"]["checkpoint"]["path"] == str(second)


def stopped(_: RunPasses) -> None:
    raise Stop
