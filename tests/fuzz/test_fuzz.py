"""A part of `make fuzz`: mutated checkpoints are refused in a clear line, or read right.

`SCOREMODE_FUZZ` is the number of cases, 150 without it; `SCOREMODE_FUZZ_SEED` begins others.
"""

import json
import os
import struct
import time
from dataclasses import replace

import pytest
from fuzz import run as runner
from fuzz import verdicts
from fuzz.bases import make_bases
from fuzz.gguf_mutations import parse
from fuzz.judge import Wrong, judge
from support.warm import MULTIPROCESSING

CASES = int(os.environ.get("SCOREMODE_FUZZ", "150"))
SEED = int(os.environ.get("SCOREMODE_FUZZ_SEED", "0"))
WORKERS = 1 if "PYTEST_XDIST_WORKER" in os.environ else os.cpu_count() or 1


@pytest.fixture(scope="module")
def bases():
    return runner.all_bases()


@pytest.fixture(autouse=True)
def quick_workers(monkeypatch):
    monkeypatch.setattr(runner, "multiprocessing", MULTIPROCESSING)


@pytest.mark.parametrize(("only", "cases"), [("", CASES), ("^GGUF", CASES // 2)])
def test_mutated_checkpoints_are_refused_or_right(only, cases):
    counts, failures, _ = runner.run(range(cases), SEED, WORKERS, only=only)
    assert not failures, "\n".join(failures)
    assert counts.total() == cases
    # Else the mutations, or the reader, have become too rough for this to mean anything.
    assert counts["right"] > cases // 10 and counts["refused"] > cases // 10


def test_every_base_is_read_right(bases, tmp_path):
    for name, files in bases.items():
        runner.write(files, tmp_path / "case")
        assert judge(tmp_path / "case") == "right", name


def test_a_case_is_made_by_its_seed_and_number_alone(bases):
    again = bases | make_bases()
    for case in (0, 7, 400):
        assert runner.make_case(3, case, bases) == runner.make_case(3, case, again)
    assert runner.make_case(3, 0, bases) != runner.make_case(4, 0, bases)


def test_mutations_change_most_cases(bases):
    changed = sum(runner.make_case(3, case, bases)[1] not in bases.values() for case in range(200))
    assert changed > 150


def test_gguf_files_are_written_as_they_were_parsed(bases):
    for name, files in bases.items():
        if name.startswith("GGUF"):
            for content in files.values():
                assert parse(content).write() == content, name


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


def wrong_name(monkeypatch) -> None:
    from scoremode.checkpoint.gguf import open as opened

    def swapped(header):
        names = describe(header).names
        first, last = "blk.0.attn_q.weight", "output.weight"
        changed = names | {first: names[last], last: names[first]}
        return describe(header)._replace(names=changed)

    describe = opened.describe
    monkeypatch.setattr(opened, "describe", swapped)


def wrong_gguf_scale(monkeypatch) -> None:
    from scoremode.schemes.gguf import Blocks

    true_decode = Blocks.decode

    def decode(self, tensors, out, scratch):
        true_decode(self, tensors, out, scratch)
        out[0, 0] += 0.5

    monkeypatch.setattr(Blocks, "decode", decode)


@pytest.mark.parametrize(
    ("break_it", "base"),
    [
        (wrong_scheme, "MXFP4"),
        (wrong_bytes, "dense"),
        (wrong_inputs, "W8A8"),
        (wrong_zero_points, "GPTQ 4"),
        (wrong_order, "GPTQ ordered 3"),
        (wrong_other_inputs, "quark ptpc"),
        (wrong_bytes, "GGUF F32"),
        (wrong_name, "GGUF F16"),
        (wrong_gguf_scale, "GGUF split"),
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


def test_a_count_of_the_headers_is_no_reservation(bases, tmp_path):
    """Of 2^62 tensors or keys nothing is made before they are there."""
    (content,) = bases["GGUF F32"].values()
    for place in (8, 16):
        spoiled = bytearray(content)
        struct.pack_into("<Q", spoiled, place, 1 << 62)
        runner.write({"model.gguf": bytes(spoiled)}, tmp_path / "case")
        assert judge(tmp_path / "case").startswith("refused: ")
