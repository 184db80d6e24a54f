"""A part of `make fuzz`: mutated checkpoints are refused in a clear line, or read right.

`SCOREMODE_FUZZ` is the number of cases, 150 without it; `SCOREMODE_FUZZ_SEED` begins others.
"""

import json
import os
import time
from dataclasses import replace
from random import Random

import pytest
from fuzz import run as runner
from fuzz import verdicts
from fuzz.bases import make_bases
from fuzz.judge import Wrong, judge
from fuzz.mutations import mutate

CASES = int(os.environ.get("SCOREMODE_FUZZ", "150"))
SEED = int(os.environ.get("SCOREMODE_FUZZ_SEED", "0"))
WORKERS = 1 if "PYTEST_XDIST_WORKER" in os.environ else os.cpu_count() or 1


@pytest.fixture(scope="module")
def bases():
    return make_bases()


def test_mutated_checkpoints_are_refused_or_right():
    counts, failures, _ = runner.run(range(CASES), SEED, WORKERS)
    assert not failures, "\n".join(failures)
    assert counts.total() == CASES
    # Else the mutations, or the reader, have become too rough for this to mean anything.
    assert counts["right"] > CASES // 10 and counts["refused"] > CASES // 10


def test_every_base_is_read_right(bases, tmp_path):
    for name, files in bases.items():
        runner.write(files, tmp_path / "case")
        assert judge(tmp_path / "case") == "right", name


def test_a_case_is_made_by_its_seed_and_number_alone(bases):
    again = make_bases()
    for case in (0, 7, 400):
        assert runner.make_case(3, case, bases) == runner.make_case(3, case, again)
    assert runner.make_case(3, 0, bases) != runner.make_case(4, 0, bases)


def test_mutations_change_most_cases(bases):
    changed = 0
    for case in range(200):
        files = dict(bases["W4A16"])
        mutate(Random(case), files, bases)
        changed += files != bases["W4A16"]
    assert changed > 150


def wrong_scheme(monkeypatch) -> None:
    from scoremode.schemes.packed import Packed

    true_decode = Packed.decode

    def decode(self, tensors, out, scratch):
        true_decode(self, tensors, out, scratch)
        if self.label.startswith("MXFP"):
            out[0, 0] += 0.5

    monkeypatch.setattr(Packed, "decode", decode)


def wrong_bytes(monkeypatch) -> None:
    from scoremode.checkpoint.files import Checkpoint

    true_read = Checkpoint.read
    monkeypatch.setattr(
        Checkpoint, "read", lambda self, name: true_read(self, name).clone().zero_()
    )


def wrong_inputs(monkeypatch) -> None:
    from scoremode.schemes.compressed_tensors import Stored

    true_inputs = Stored.inputs

    def inputs(self, columns):
        found = true_inputs(self, columns)
        return replace(found, format=replace(found.format, bits=4))

    monkeypatch.setattr(Stored, "inputs", inputs)


def changed_qweight(monkeypatch, **fields) -> None:
    from scoremode.schemes.qweight import Qweight

    true_of = Qweight.of
    monkeypatch.setattr(Qweight, "of", lambda *args: replace(true_of(*args), **fields))


def wrong_zero_points(monkeypatch) -> None:
    changed_qweight(monkeypatch, zero_offset=0)


def wrong_order(monkeypatch) -> None:
    changed_qweight(monkeypatch, g_idx=None)


def wrong_other_inputs(monkeypatch) -> None:
    from scoremode.schemes.quark import Modules

    monkeypatch.setattr(Modules, "_inputs", lambda *_: None)


@pytest.mark.parametrize(
    ("break_it", "base"),
    [
        (wrong_scheme, "MXFP4"),
        (wrong_bytes, "dense"),
        (wrong_inputs, "W8A8"),
        (wrong_zero_points, "GPTQ 4"),
        (wrong_order, "GPTQ ordered 3"),
        (wrong_other_inputs, "Quark ptpc"),
    ],
)
def test_the_judge_sees_a_wrong_number(break_it, base, bases, tmp_path, monkeypatch):
    runner.write(bases[base], tmp_path / "case")
    break_it(monkeypatch)
    with pytest.raises(Wrong):
        judge(tmp_path / "case")


@pytest.mark.parametrize(
    "message", ["", " ", "a\nb", "KeyError('targets')", "Traceback", "x" * 3000, "\x1b[2J"]
)
def test_the_judge_sees_an_unclear_message(message, bases, tmp_path, monkeypatch):
    from fuzz import judge as module

    def refuse(*_):
        error = module.ScoremodeError()
        error.args = (message,)
        raise error

    runner.write(bases["dense"], tmp_path / "case")
    monkeypatch.setattr(module, "open_checkpoint", refuse)
    with pytest.raises(Wrong, match="message"):
        judge(tmp_path / "case")


@pytest.mark.parametrize(
    ("verdict", "word"),
    [(verdicts.hang, "hangs"), (verdicts.die, "ended with -6"), (verdicts.fail, "ValueError")],
)
def test_the_runner_sees_a_hang_a_crash_and_an_exception(verdict, word, monkeypatch):
    monkeypatch.setattr(runner, "LIMIT", 0.5)
    counts, failures, _ = runner.run(range(2), 0, 1, verdict)
    assert counts == {"failed": 2} and len(failures) == 2
    assert all(word in failure for failure in failures)
    assert [failure.split(":")[0] for failure in failures] == [f"seed 0 case {i}" for i in range(2)]


def test_hostile_patterns_end(bases, tmp_path):
    files = dict(bases["W4A16"])
    config = json.loads(files["config.json"])
    hostile = r"re:((.+)+)+\.[0-9]+\.((.+)+)+(proj|norm)+(.+)+[!-#]"
    config["quantization_config"]["ignore"] = [hostile]
    files["config.json"] = json.dumps(config).encode()
    runner.write(files, tmp_path / "case")
    begin = time.process_time()
    judge(tmp_path / "case")
    assert time.process_time() - begin < 20
