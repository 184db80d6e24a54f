"""The GitHub Action: its steps as a runner runs them, but for those that install, cache and upload."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = ACTION["runs"]["steps"]


class Runner:
    """What a runner gives to the steps of a job: a temporary folder, outputs and a summary."""

    def __init__(self, folder: Path):
        self.temp, self.work = folder / "temp", folder / "work"
        self.work.mkdir()
        (self.temp / "scoremode").mkdir(parents=True)
        (self.temp / "scoremode" / "bin").symlink_to(Path(sys.executable).parent)
        self.summary = folder / "summary.md"

    def step(self, name: str, **inputs: str) -> tuple[int, dict[str, str], str]:
        """The exit code, the outputs and the words of the step of this id."""
        (step,) = (step for step in STEPS if step.get("id") == name)
        given = {key: str(of.get("default", "")) for key, of in ACTION["inputs"].items()}
        given |= {key.replace("_", "-"): value for key, value in inputs.items()}
        own = {
            key: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: given[found[1]], value)
            for key, value in step["env"].items()
        }
        if "KEY" in own:
            own["KEY"] = self.step("base", **inputs)[1]["key"]
        outputs = self.temp.parent / f"{name}.outputs"
        outputs.write_text("")
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.work,
            capture_output=True,
            text=True,
            env=os.environ
            | own
            | {
                "RUNNER_TEMP": str(self.temp),
                "GITHUB_OUTPUT": str(outputs),
                "GITHUB_STEP_SUMMARY": str(self.summary),
            },
        )
        lines = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
        return done.returncode, lines, done.stdout + done.stderr


@pytest.fixture
def runner(tmp_path, text) -> Runner:
    found = Runner(tmp_path)
    (found.work / "eval.txt").write_text(text, encoding="utf-8")
    return found


def test_a_missed_gate_fails_the_job_and_leaves_summary_and_report(runner, base, quant):
    inputs = {"quants": f"{quant}\n\n{base}\n", "reference": str(base), "text": "eval.txt"}
    code, outputs, said = runner.step(
        "compare", **inputs, gates="\n--min-top1 1%\n--max-kld 1e-9\n"
    )
    assert code == 4, said
    assert outputs == {"exit-code": "4", "report": "scoremode-runs/report.html"}
    assert (runner.work / outputs["report"]).stat().st_size > 100_000
    assert quant.name in runner.summary.read_text()

    code, outputs, said = runner.step("compare", **inputs, gates="--max-kld 1e9")
    assert (code, outputs["exit-code"]) == (0, "0"), said


def test_what_cannot_be_measured_fails_the_job_and_shows_nothing(runner, base):
    code, outputs, said = runner.step(
        "compare", quants="no-such-folder", reference=str(base), text="eval.txt"
    )
    assert (code, outputs) == (1, {"exit-code": "1"}) and "no-such-folder" in said
    assert not runner.summary.exists()


def test_a_base_is_cached_under_all_that_makes_its_predictions(runner, tmp_path):
    file, folder = tmp_path / "other.txt", tmp_path / "base"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"1")
    file.write_text("a")

    def key(**inputs: str) -> str:
        code, outputs, said = runner.step(
            "base", **({"reference": str(folder), "text": str(file)} | inputs)
        )
        assert code == 0, said
        return outputs["key"]

    keys = [key(), key(protocol="chat"), key(context_length="256"), key(reference="org/name")]
    (folder / "model.safetensors").write_bytes(b"2")
    keys.append(key())
    file.write_text("b")
    keys.append(key())
    # A snapshot of the hub's is a folder of links.
    (tmp_path / "weights").write_bytes(b"3")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(tmp_path / "weights")
    keys.append(key())
    (tmp_path / "weights").write_bytes(b"4")
    keys.append(key())
    assert len(set(keys)) == 8 and keys[-1] == key()


def test_a_job_without_a_gate_is_refused(runner, base):
    inputs = {"quants": str(base), "reference": str(base), "text": "eval.txt"}
    code, outputs, said = runner.step("compare", **inputs, gates=" \n")
    assert (code, outputs) == (2, {}) and "no gate is given" in said


def test_inputs_reach_scripts_as_variables_and_every_action_is_pinned():
    for step in STEPS:
        assert "${{" not in step.get("run", ""), step
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"])


def test_the_example_of_the_docs_gives_what_it_asks_for():
    page = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    steps = yaml.safe_load(example)["jobs"]["kld"]["steps"]
    (given,) = (step["with"] for step in steps if "scoremode@" in step.get("uses", ""))
    required = {name for name, of in ACTION["inputs"].items() if of.get("required")}
    assert required <= given.keys() <= ACTION["inputs"].keys()
    for name in ACTION["inputs"]:
        assert f"`{name}`" in page
