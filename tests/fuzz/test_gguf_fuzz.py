"""A part of `make fuzz`: mutated GGUF files alone.

`SCOREMODE_FUZZ_GGUF` is the number of cases, 60 without it.
"""

import os
import struct

import pytest
from fuzz import run as runner
from fuzz.gguf_bases import gguf_bases
from fuzz.gguf_mutations import parse
from fuzz.judge import Wrong, judge

CASES = int(os.environ.get("SCOREMODE_FUZZ_GGUF", "60"))
SEED = int(os.environ.get("SCOREMODE_FUZZ_SEED", "0"))
WORKERS = 1 if "PYTEST_XDIST_WORKER" in os.environ else os.cpu_count() or 1


@pytest.fixture(scope="module")
def bases():
    return gguf_bases()


def test_mutated_files_are_refused_or_right():
    counts, failures, _ = runner.run(range(CASES), SEED, WORKERS, only="^GGUF")
    assert not failures, "\n".join(failures)
    assert counts.total() == CASES
    assert counts["right"] > CASES // 10 and counts["refused"] > CASES // 10


def test_every_base_is_read_right(bases, tmp_path):
    for name, files in bases.items():
        runner.write(files, tmp_path / "case")
        assert judge(tmp_path / "case") == "right", name


def test_files_are_written_as_they_were_parsed(bases):
    for name, files in bases.items():
        for content in files.values():
            assert parse(content).write() == content, name


def test_a_case_is_made_by_its_seed_and_number_alone(bases):
    for case in range(30):
        assert runner.make_case(3, case, bases) == runner.make_case(3, case, dict(bases))
    changed = sum(runner.make_case(3, case, bases)[1] not in bases.values() for case in range(100))
    assert changed > 75


def wrong_bytes(monkeypatch) -> None:
    from scoremode.checkpoint.files import Checkpoint

    true_read = Checkpoint.read
    monkeypatch.setattr(
        Checkpoint, "read", lambda self, name: true_read(self, name).clone().zero_()
    )


def wrong_name(monkeypatch) -> None:
    from scoremode.checkpoint.gguf import open as opened

    def swapped(header):
        names = describe(header).names
        first, last = "blk.0.attn_q.weight", "output.weight"
        changed = names | {first: names[last], last: names[first]}
        return describe(header)._replace(names=changed)

    describe = opened.describe
    monkeypatch.setattr(opened, "describe", swapped)


def wrong_scale(monkeypatch) -> None:
    from scoremode.schemes.gguf import Blocks

    true_decode = Blocks.decode

    def decode(self, tensors, out, scratch):
        true_decode(self, tensors, out, scratch)
        out[0, 0] += 0.5

    monkeypatch.setattr(Blocks, "decode", decode)


@pytest.mark.parametrize(
    ("break_it", "base"),
    [
        (wrong_bytes, "GGUF F32"),
        (wrong_name, "GGUF F16"),
        (wrong_scale, "GGUF split"),
    ],
)
def test_the_judge_sees_what_is_wrong(break_it, base, bases, tmp_path, monkeypatch):
    runner.write(bases[base], tmp_path / "case")
    break_it(monkeypatch)
    with pytest.raises(Wrong):
        judge(tmp_path / "case")


def test_a_count_of_the_headers_is_no_reservation(bases, tmp_path):
    """Of 2^62 tensors or keys nothing is made before they are there."""
    (content,) = bases["GGUF F32"].values()
    for place in (8, 16):
        spoiled = bytearray(content)
        struct.pack_into("<Q", spoiled, place, 1 << 62)
        runner.write({"model.gguf": bytes(spoiled)}, tmp_path / "case")
        assert judge(tmp_path / "case").startswith("refused: ")
