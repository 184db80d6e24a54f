"""--shard as a user types it: what is none, and what it is refused with."""

import json

import pytest
import torch
from support.programs import run

from scoremode.results.folders.store import find_runs, read_scores


@pytest.fixture
def short(demo, tmp_path) -> list[str]:
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:2000]
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    return [str(demo / "model"), "-f", str(tmp_path / "text.txt"), "--protocol", "disjoint",
            "-c", "32", "--device", "cpu", "-o", str(tmp_path / "runs")]  # fmt: skip


@pytest.mark.parametrize("given", ["0/4", "5/4", "1", "a/b", "1.5/3", "-1/3", ""])
def test_what_is_no_shard_is_one_line(short, capsys, given):
    code, out, err = run(capsys, "ppl", *short, f"--shard={given}")
    assert code == 2 and out == "" and err.count("\n") == 1
    assert f"argument --shard: {given}: must be i/N, with i from 1 to N" in err


@pytest.mark.parametrize(
    ("command", "flags", "words"),
    [
        ("ppl", ["--stop-when", "ppl ±1 %"], "--shard 1/2 and --stop-when ppl±1%: the rule looks"),
        ("reference", [], "--shard 1/2: is for scoremode ppl and kld; a reference's states"),
        ("kld", ["--noise-floor"], "--shard 1/2 and --noise-floor auto: the base would run again"),
        ("kld", ["--max-kld", "0.1"], "--shard 1/2: a gate judges the whole run"),
        (
            "kld",
            ["--llama-cpp-block"],
            "--llama-cpp-block: is of a whole run, and shard 1/2 has no",
        ),
        ("kld", ["--dry-run"], "--shard 1/2: is of one model's run: give one MODEL"),
    ],
)
def test_what_is_of_a_whole_run_is_refused_in_a_line(
    short, capsys, command, flags, words, tmp_path
):
    base = ["--reference", short[0]] if command == "kld" else []
    code, out, err = run(capsys, command, *short, *base, "--shard", "1/2", *flags)
    assert code == 2 and out == "" and words in err and err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_sweeps_file_has_no_shard(demo, capsys, tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(f"base = '{demo}/model'\nmodels = ['{demo}/model']\n[flags]\nshard = '1/2'\n")
    code, _, err = run(capsys, "sweep", str(file))
    assert code == 2 and "its flags have shard, which is no flag of a sweep's flags" in err


def test_more_shards_than_passes_are_a_line_that_says_how_many_there_are(short, capsys):
    code, _, err = run(capsys, "ppl", *short, "--shard", "3/9", "--max-memory", "2MB",
                       "--batch-size", "4")  # fmt: skip
    assert code == 2 and "N may be at most" in err and err.count("\n") == 1


def test_devices_share_a_shard_and_make_the_same_columns(demo, capsys, tmp_path, monkeypatch):
    """Their passes are twice as long, which moves no score; a shard of one device may fit beside."""
    text = tmp_path / "text.txt"
    text.write_text((demo / "heldout.txt").read_text(encoding="utf-8")[:8000], encoding="utf-8")
    asked = ["ppl", str(demo / "model"), "-f", str(text), "--protocol", "disjoint", "-c", "32",
             "--device", "cpu", "--batch-size", "4", "--max-memory", "2MB", "--quiet"]  # fmt: skip
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # As a rank of two has on two cores: the number of threads may move a score.
    torch.set_num_threads(1)
    try:
        for more in ((), ("--shard", "1/2"), ("--shard", "2/2", "--devices", "2")):
            place = tmp_path / ("shards" if more else "whole")
            code, _, err = run(capsys, *asked, *more, "-o", str(place))
            assert code == 0, err
    finally:
        torch.set_num_threads(before)
    one, two = sorted(find_runs(tmp_path / "shards"), key=lambda r: r[1]["shard"]["number"])
    assert two[1]["schedule"]["pass_windows"] == 2 * one[1]["schedule"]["pass_windows"]
    assert one[1]["identity"]["engine"] == two[1]["identity"]["engine"]
    code, _, err = run(capsys, "merge", str(tmp_path / "shards"), "-o", str(tmp_path / "merged"))
    assert code == 0, err
    ((whole, _),) = find_runs(tmp_path / "whole")
    merged, wanted = read_scores(tmp_path / "merged"), read_scores(whole)
    for name, column in wanted.columns().items():
        assert merged.columns()[name].tobytes() == column.tobytes()
    devices = json.loads((tmp_path / "merged" / "record.json").read_text())["engine"]["devices"]
    assert [(d["shard"], d.get("rank")) for d in devices] == [(1, None), (2, 0), (2, 1)]
