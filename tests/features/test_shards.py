"""`--shard` and `scoremode merge`: what is no shard, and a merged run that is the whole one's twin."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.programs import error_of, run

from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.results.folders.store import RECORD, SCORES, find_runs, read_scores


@pytest.fixture(scope="module")
def place(demo, tmp_path_factory) -> Path:
    """A model, its base as a kept reference, two texts, and a folder for runs."""
    place = tmp_path_factory.mktemp("merge")
    quantize_folder(demo / "model", place / "quant", VARIANTS[1])
    text = (demo / "heldout.txt").read_text(encoding="utf-8")
    (place / "one.txt").write_text(text[:6000], encoding="utf-8")
    (place / "two.txt").write_text(text[6000:11000], encoding="utf-8")
    (place / "calibration.txt").write_text(text[5000:7000], encoding="utf-8")
    return place


def flags(place: Path) -> list[str]:
    return ["-f", str(place / "one.txt"), "-f", str(place / "two.txt"), "--group-by", "file",
            "--protocol", "disjoint", "-c", "64", "--batch-size", "4", "--max-memory", "2MB",
            "--device", "cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def reference(place, demo) -> str:
    from scoremode.cli.main import main

    out = str(place / "ref")
    assert main(["reference", str(demo / "model"), *flags(place), "-o", out, "--quiet"]) == 0
    return out


@pytest.fixture(scope="module")
def made(place, reference) -> dict[str, Path]:
    """The whole run and the merged one, with all that a run can have beside its scores."""
    from scoremode.cli.main import main

    asked = ["kld", str(place / "quant"), "--reference", reference, *flags(place), "--full",
             "--token-text", "--confident", "0.7", "--calibration", str(place / "calibration.txt"),
             "--kv-cache", "k=int8-tensor,v=int4-g32", "--quiet"]  # fmt: skip
    assert main([*asked, "-o", str(place / "whole")]) == 0
    for i in (3, 1, 2):
        assert main([*asked, "-o", str(place / "shards"), "--shard", f"{i}/3"]) == 0
    merged = place / "merged"
    assert main(["merge", str(place / "shards"), "-o", str(merged), "--quiet"]) == 0
    (whole,) = (place / "whole").iterdir()
    return {"whole": whole, "merged": merged, "shards": place / "shards"}


def record_of(folder: Path) -> dict:
    return json.loads((folder / RECORD).read_text())


def test_a_comparison_has_the_bytes_and_numbers_of_one_process(made):
    assert (made["merged"] / SCORES).read_bytes() == (made["whole"] / SCORES).read_bytes()
    ours, theirs = record_of(made["merged"]), record_of(made["whole"])
    for name in ("metrics", "intervals", "distribution", "breakdown", "thresholds", "llama_cpp",
                 "worst", "calibration", "plan", "protocol", "corpus", "checkpoint", "identity",
                 "scores", "schedule", "tokenizer"):  # fmt: skip
        assert ours[name] == theirs[name], name
    assert ours["engine"]["kv_cache"] == theirs["engine"]["kv_cache"]
    assert ours["engine"]["kv_cache"]["scales"]["source"] == "measured"
    assert ours["engine"]["tokens"] >= theirs["engine"]["tokens"]
    assert ours["reference"]["replay"]["rows"] == theirs["reference"]["replay"]["rows"]
    assert ours["reference"]["replay"]["bitwise"] is True


def test_each_table_says_what_it_is_of(made, capsys):
    shard = sorted(made["shards"].iterdir())[0]
    code, out, err = run(capsys, "merge", *map(str, made["shards"].iterdir()), "-o",
                         str(made["merged"].parent / "again"), "-v")  # fmt: skip
    assert (code, err) == (0, "") and "KLD" in out
    assert re.search(r"^merged +of 3 shards, whose seconds add up: ", out, re.MULTILINE)
    shutil.rmtree(made["merged"].parent / "again")
    # Neither in a table nor in any other form is a number of a shard.
    for command in (["show", str(shard)], ["compare", str(shard)], ["report", str(shard)],
                    ["card", str(shard)], ["check", str(shard)]):  # fmt: skip
        code, out, err = run(capsys, *command)
        assert code == 1 and out == "" and err.count("\n") == 1
        assert "of a run, and no whole one: scoremode merge makes the run of all 3" in err
    code, out, _ = run(capsys, "status", str(made["shards"]))
    assert code == 0 and [f"shard {i}/3" in out for i in (1, 2, 3)] == [True] * 3
    assert "PPL" not in out and "KLD" not in out


def test_a_merged_run_is_shown_compared_reported_and_checked_like_any(made, capsys, tmp_path):
    merged, whole = str(made["merged"]), str(made["whole"])
    code, shown, _ = run(capsys, "show", merged)
    assert code == 0 and "KLD" in shown
    code, out, err = run(capsys, "compare", merged, whole)
    assert code == 0 and "same" in out
    code, _, err = run(capsys, "report", merged, whole, "-o", str(tmp_path / "r.html"))
    assert code == 0 and (tmp_path / "r.html").stat().st_size > 10_000
    code, out, err = run(capsys, "status", merged)
    assert code == 0 and "done" in out
    code, out, err = run(capsys, "check", merged, "--json")
    assert code == 0, (out, err)
    audited, of_whole = json.loads(out), run(capsys, "check", whole, "--json")[1]
    assert audited["counts"]["wrong"] == 0
    names = {(f["part"], f["name"]) for r in audited["runs"] for f in r["findings"]}
    held = {(f["part"], f["name"]) for r in json.loads(of_whole)["runs"] for f in r["findings"]}
    assert names == held | {("merged", "windows"), ("merged", "targets")}


def test_a_card_has_the_command_of_the_whole_and_how_it_was_shared_out(made, capsys):
    _, card, _ = run(capsys, "card", str(made["merged"]))
    _, of_whole, _ = run(capsys, "card", str(made["whole"]))
    commands = [[line for line in text.splitlines() if line.startswith("scoremode ")]
                for text in (card, of_whole)]  # fmt: skip
    assert commands[0] == commands[1] and "--shard" not in commands[0][0]
    assert "Scored in 3 shards (`--shard i/N`) that `scoremode merge` joined" in card
    assert "shards" not in of_whole


def test_a_second_run_of_some_windows_holds(made, place, capsys):
    code, out, _ = run(capsys, "check", str(made["merged"]), "--against", str(place / "quant"),
                       "--share", "0.2", "--json")  # fmt: skip
    assert code == 0 and json.loads(out)["counts"]["wrong"] == 0


def test_the_whole_runs_command_finds_the_merged_one_finished(made, capsys, tmp_path):
    shutil.copytree(made["merged"], tmp_path / "runs" / "merged")
    command = record_of(made["whole"])["command"][1:-2]
    code, _, err = run(capsys, *command, "-o", str(tmp_path / "runs"), "--resume")
    assert code == 0 and [p.name for p in (tmp_path / "runs").iterdir()] == ["merged"]
    command.remove("--quiet")
    code, _, err = run(capsys, *command, "-o", str(tmp_path / "runs"), "--resume")
    assert code == 0 and f"already finished: {tmp_path / 'runs' / 'merged'}" in err


def test_gates_judge_the_merged_run(made, capsys, tmp_path):
    shards = str(made["shards"])
    code, out, err = run(capsys, "merge", shards, "-o", str(tmp_path / "a"), "--max-kld", "1e-9")
    assert code == 4 and "gate not met: --max-kld 1e-9" in err and "KLD" in out
    assert record_of(tmp_path / "a")["gates"][0]["met"] is False
    code, out, _ = run(
        capsys, "merge", shards, "-o", str(tmp_path / "b"), "--max-kld", "9", "--json"
    )
    assert code == 0 and json.loads(out)["gates"][0]["met"] is True


def test_another_base_of_a_shard_is_refused(made, place, demo, capsys, tmp_path):
    """Beside, and not the kept one: the same model, and its states are of another run."""
    shards = tmp_path / "shards"
    for folder in made["shards"].iterdir():
        if record_of(folder)["shard"]["number"] != 2:
            shutil.copytree(folder, shards / folder.name)
    command = record_of(made["whole"])["command"][1:-2]
    command[command.index("--reference") + 1] = str(demo / "model")
    assert run(capsys, *command, "-o", str(shards), "--shard", "2/3")[0] == 0
    code, _, err = run(capsys, "merge", str(shards), "-o", str(tmp_path / "m"))
    assert code == 1 and "is of another run than" in err and "its reference" in err


def test_bases_beside_make_the_same_bytes(place, demo, capsys, tmp_path):
    asked = ["kld", str(place / "quant"), "--reference", str(demo / "model"), *flags(place)]
    assert run(capsys, *asked, "-o", str(tmp_path / "whole"))[0] == 0
    for i in (1, 2):
        assert run(capsys, *asked, "-o", str(tmp_path / "s"), "--shard", f"{i}/2")[0] == 0
    assert run(capsys, "merge", str(tmp_path / "s"), "-o", str(tmp_path / "m"))[0] == 0
    (whole,) = (tmp_path / "whole").iterdir()
    assert (whole / SCORES).read_bytes() == (tmp_path / "m" / SCORES).read_bytes()
    ours, theirs = record_of(tmp_path / "m"), record_of(whole)
    assert ours["metrics"] == theirs["metrics"]
    assert ours["reference"]["engine"]["tokens"] == theirs["reference"]["engine"]["tokens"]


def test_help_says_what_it_is_for(capsys):
    code, out, _ = run(capsys, "merge", "--help")
    assert code == 0 and "to the bit" in out and "-o DIR" in out
    code, _, err = run(capsys, "merge", "x")
    assert code == 2 and "-o" in err


def test_merging_needs_no_torch(made, tmp_path):
    """As on a login node: what computes is not even imported."""
    words = ["merge", str(made["shards"]), "-o", str(tmp_path / "m"), "-v"]
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'transformers')))\n"
        f"from scoremode.cli.main import main; sys.exit(main({words!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert (tmp_path / "m" / SCORES).read_bytes() == (made["merged"] / SCORES).read_bytes()


@pytest.fixture
def short(demo, tmp_path) -> list[str]:
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:2000]
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    return [str(demo / "model"), "-f", str(tmp_path / "text.txt"), "--protocol", "disjoint",
            "-c", "32", "--device", "cpu", "-o", str(tmp_path / "runs")]  # fmt: skip


@pytest.mark.parametrize("given", ["0/4", "5/4", "1", "a/b", "1.5/3", "-1/3", ""])
def test_what_is_no_shard_is_one_line(short, capsys, given):
    code, out, err = run(capsys, "ppl", *short, f"--shard={given}")
    assert code == 2 and out == "" and error_of(err)
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
    assert code == 2 and out == "" and words in error_of(err)
    assert not (tmp_path / "runs").exists()


def test_a_sweeps_file_has_no_shard(demo, capsys, tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(f"base = '{demo}/model'\nmodels = ['{demo}/model']\n[flags]\nshard = '1/2'\n")
    code, _, err = run(capsys, "sweep", str(file))
    assert code == 2 and "its flags have shard, which isn't a flag of a sweep's flags" in err


def test_more_shards_than_passes_are_a_line_that_says_how_many_there_are(short, capsys):
    code, _, err = run(capsys, "ppl", *short, "--shard", "3/9", "--max-memory", "2MB",
                       "--batch-size", "4")  # fmt: skip
    assert code == 2 and "N may be at most" in error_of(err)


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
