"""`_logits_` files: the tool's own, and what is refused."""

import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.llama_cpp.files import GOLDEN, TEXT_BYTES, logprobs, small

from scoremode.errors import ReferenceUnusable
from scoremode.llama_cpp.file import LogitsFile
from scoremode.results.scores import expected
from scoremode.runs.planning import plan_text
from scoremode.text.corpus import from_string
from scoremode.text.plan import Plan
from scoremode.text.protocol import preset

HEADER = struct.Struct("<8sIii")


@pytest.fixture(scope="module")
def golden() -> LogitsFile:
    return LogitsFile(GOLDEN)


@pytest.fixture(scope="module")
def plan_of(demo):
    text = (demo / "heldout.txt").read_bytes()[:TEXT_BYTES].decode()

    def plan_of(name="llama.cpp", text=text, **changes) -> Plan:
        protocol = preset(name).override(**({"context_length": 64} | changes))
        return plan_text(from_string(text), protocol, model=str(demo / "model")).plan

    return plan_of


def test_the_tools_file(golden, plan_of):
    assert (golden.n_ctx, golden.entries, golden.chunks) == (64, 1024, 8)
    assert (golden.rows_per_chunk, golden.rows) == (31, 248)
    plan = plan_of()
    assert golden.tokens.dtype == np.int32
    assert np.array_equal(golden.tokens, plan.tokens[: 8 * 64])
    golden.check_plan(plan)
    assert plan.scored == golden.rows and plan.window_bos == golden.tokens[0]


def test_rows_follow_the_plans_targets(golden, plan_of):
    plan = plan_of()
    columns = expected(plan, range(len(plan)))
    rows = np.arange(golden.rows)
    assert np.array_equal(columns["window"], rows // golden.rows_per_chunk)
    assert np.array_equal(columns["position"], 33 + rows % golden.rows_per_chunk)
    stored = golden.stored_logprob(rows, columns["target"])
    with np.load(GOLDEN.with_name("rows.npz")) as arrays:
        assert np.array_equal(-stored, arrays["W4A16-g32.base_nll"])
    assert stored.dtype == np.float32


def test_tiles(golden):
    whole = logprobs(golden, 0, 248, 0, 1024)
    assert whole.shape == (248, 1024) and whole.dtype == np.float32
    assert np.array_equal(logprobs(golden, 31, 40, 100, 357), whole[31:40, 100:357])
    assert logprobs(golden, 5, 5, 0, 1024).shape == (0, 1024)
    rows, entries = np.array([0, 247, 3]), np.array([1023, 0, 7])
    assert np.array_equal(golden.stored_logprob(rows, entries), whole[rows, entries])


def test_a_file_larger_than_memory_is_opened_and_read_at_once(tmp_path):
    """37 GB of holes, as WikiText-2 takes at a vocabulary of 128,256."""
    n_ctx, entries, chunks = 512, 128_256, 564
    path = tmp_path / "large"
    row, rows = 8 + 2 * entries, chunks * 255
    begin = 20 + 4 * chunks * n_ctx
    with path.open("wb") as file:
        file.write(HEADER.pack(b"_logits_", n_ctx, entries, chunks))
        file.truncate(begin + rows * row)
        file.seek(begin + (rows - 1) * row)
        file.write(struct.pack("<ff", 0.5, -20) + struct.pack("<H", 3) * entries)
    assert path.stat().st_size == pytest.approx(36.9e9, rel=1e-3)
    large = LogitsFile(path)
    assert large.rows == rows
    assert (logprobs(large, rows - 1, rows, 128_000, entries) == -18.5).all()
    assert large.stored_logprob(np.array([0, rows - 1]), np.array([0, 1])).tolist() == [0, -18.5]


def test_reading_all_tells_hash_and_coarsest_step(golden):
    contents = golden.read_all()
    assert contents.sha256 == hashlib.sha256(GOLDEN.read_bytes()).hexdigest()
    rows = np.frombuffer(GOLDEN.read_bytes(), "<u2", offset=20 + 4 * 512).reshape(248, 1028)
    assert contents.step == rows[:, :2].copy().view("<f4").max()
    assert contents.reach == pytest.approx(16, rel=1e-6)


def test_reading_all_in_blocks(golden, monkeypatch):
    whole = golden.read_all()
    monkeypatch.setattr("scoremode.llama_cpp.file._BLOCK", 10_000)
    assert golden.read_all() == whole


def test_bases_of_one_text_have_fingerprints_of_their_own(tmp_path):
    path = tmp_path / "f"
    small(path)
    data = bytearray(path.read_bytes())
    first = LogitsFile(path).fingerprint
    assert first == LogitsFile(path).fingerprint
    for place in (92, 96, 24):  # a row's scale, its smallest value, a token
        other = bytearray(data)
        other[place] ^= 1
        path.write_bytes(other)
        assert LogitsFile(path).fingerprint != first


def test_a_file_that_changes_while_it_is_open(tmp_path):
    path = tmp_path / "f"
    small(path)
    data = path.read_bytes()

    def says(match):
        with pytest.raises(ReferenceUnusable, match=match):
            file.check_unchanged()
        with pytest.raises(ReferenceUnusable):
            file.read_all()

    file = LogitsFile(path)
    file.check_unchanged()
    (tmp_path / "other").write_bytes(data)
    (tmp_path / "other").rename(path)
    says("f: was changed or replaced while it was in use")
    file = LogitsFile(path)
    with path.open("r+b") as other:
        other.truncate(200)
    with pytest.raises(ReferenceUnusable, match="f: has become shorter"):
        file.read_all()
    path.write_bytes(data)
    file = LogitsFile(path)
    path.unlink()
    says("f: (cannot be read: )?No such file or directory")


def refused(path: Path, data: bytes | None = None) -> str:
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ReferenceUnusable) as caught:
        LogitsFile(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


def test_a_file_of_another_size_is_refused(tmp_path):
    path = tmp_path / "f"
    small(path)
    data = path.read_bytes()
    says = f"and 2 chunks of 9 tokens over 5 entries take {len(data)}"
    assert refused(path, data[:-1]) == f"has {len(data) - 1} bytes, {says}"
    assert refused(path, data + b"\0") == f"has {len(data) + 1} bytes, {says}"
    assert refused(path, data[:30]) == f"has 30 bytes, {says}"
    assert refused(path, data[:19]) == "ends in its header, after 19 bytes"


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ((b"_logits_", 2, 5, 2), "context length 2: must be at least 3"),
        ((b"_logits_", 9, 0, 2), "vocabulary 0: must be at least 1"),
        ((b"_logits_", 9, -5, 2), "vocabulary -5: must be at least 1"),
        ((b"_logits_", 9, 5, 0), "number of chunks 0: must be at least 1"),
        ((b"_logits_", 9, 5, -1), "number of chunks -1: must be at least 1"),
        ((b"_logitz_", 9, 5, 2), "not a file of llama-perplexity: begins with b'_logitz_', not"),
        ((b"_logits_", 2**32 - 1, 2**31 - 1, 2**31 - 1), "has 252 bytes, and 2147483647 chunks of"),
        # What a big-endian machine wrote.
        (
            (b"_logits_", 9 << 24, 5 << 24, 2 << 24),
            "has 252 bytes, and 33554432 chunks of 150994944",
        ),
    ],
)
def test_an_impossible_header_is_refused(tmp_path, header, says):
    path = tmp_path / "f"
    small(path)
    data = path.read_bytes()
    assert len(data) == 252
    assert refused(path, HEADER.pack(*header) + data[20:]).startswith(says)


@pytest.mark.parametrize("token", [5, -1])
def test_tokens_beyond_the_vocabulary_are_refused(tmp_path, token):
    path = tmp_path / "f"
    small(path)
    data = bytearray(path.read_bytes())
    data[20 + 4 * 7 : 24 + 4 * 7] = struct.pack("<i", token)
    says = f"token id {token} at place 7, and the vocabulary has 5 entries"
    assert refused(path, bytes(data)) == says


def test_what_is_no_file_is_refused(tmp_path):
    assert refused(tmp_path) == "cannot be read: is a folder, not a file"
    assert refused(tmp_path / "none") == "cannot be read: No such file or directory"
    assert refused(tmp_path / "empty", b"").startswith("not a file of llama-perplexity: begins")
    (text := tmp_path / "text").write_text("My grandmother")
    with pytest.raises(ReferenceUnusable, match=r"is a text: give the base's folder, a .*-f /"):
        LogitsFile(text)


@pytest.mark.parametrize("header", [(np.nan, -1), (0.1, -np.inf), (np.inf, -1), (-0.1, -1)])
def test_a_row_of_a_model_gone_wrong_is_refused(tmp_path, header):
    path = tmp_path / "f"
    small(path)
    data = bytearray(path.read_bytes())
    begin = 20 + 4 * 18 + 6 * (8 + 2 * 6)
    data[begin : begin + 8] = struct.pack("<ff", *header)
    path.write_bytes(data)
    file = LogitsFile(path)
    logprobs(file, 0, 6, 0, 5)
    with pytest.raises(
        ReferenceUnusable, match=r"at position 7 of chunk 1: the base's logits were"
    ):
        logprobs(file, 5, 8, 0, 5)
    with pytest.raises(ReferenceUnusable, match=r"at position 7 of chunk 1"):
        file.read_all()
    with pytest.raises(ReferenceUnusable, match=r"at position 7 of chunk 1"):
        file.stored_logprob(np.array([0, 6]), np.array([1, 1]))


def damaged(data: bytes, path: Path, begin: int, new: bytes) -> str:
    """What reading a file says some of whose bytes are others."""
    path.write_bytes(data[:begin] + new + data[begin + len(new) :])
    with pytest.raises(ReferenceUnusable) as caught:
        LogitsFile(path).read_all()
    return str(caught.value).removeprefix(f"{path}: ")


def test_a_row_that_is_no_distribution_is_refused_with_its_place_and_sum(tmp_path):
    data, path = GOLDEN.read_bytes(), tmp_path / "f"
    head, row = 20 + 4 * 8 * 64, 8 + 2 * 1024
    begin = head + 40 * row
    (low,) = struct.unpack_from("<f", data, begin + 4)
    words = damaged(data, path, begin + 4, struct.pack("<f", low + 0.01))
    assert words.startswith("row 40, at position 42 of chunk 1: the probabilities add up to 1.0100")
    assert "and those of a distribution in its steps to 0.9999" in words
    words = damaged(data, path, begin + 8, bytes(2 * 1024))
    assert "row 40" in words and "the codes are 0 … 0, and those of a distribution go from" in words
    # One of a row's scale, as a power of two.
    assert "row 40" in damaged(data, path, begin + 3, bytes([data[begin + 3] ^ 0x40]))


def test_an_overwritten_run_of_a_file_is_found(tmp_path):
    data, path, random = GOLDEN.read_bytes(), tmp_path / "f", np.random.default_rng(0)
    head, size = 20 + 4 * 8 * 64, 1024
    for begin in random.integers(head, len(data) - size, 15).tolist():
        other = int(random.integers(head, len(data) - size))
        for new in (bytes(size), random.bytes(size), data[other : other + size]):
            assert damaged(data, path, begin, new).startswith(("row ", "scale "))


def test_a_plan_of_other_targets_is_refused(golden, plan_of):
    plan = plan_of()

    def refusal(other: Plan) -> str:
        with pytest.raises(ReferenceUnusable) as caught:
            golden.check_plan(other)
        return str(caught.value).removeprefix(f"{GOLDEN}: ")

    assert refusal(plan_of(context_length=32)) == (
        "has context length 64, and the plan's protocol llama.cpp+context-length=32 has 32"
    )
    assert "has stride 64, and the plan's protocol llama.cpp+" in refusal(plan_of(stride=32))
    assert refusal(plan_of(max_windows=5)) == "has 8 chunks, and the plan has 5 windows"
    assert refusal(plan.sample(7, 0)) == "has 8 chunks, and the plan has 7 windows"
    longer = plan.tokens.tolist() * 2
    nine = replace(plan, tokens=np.array(longer, np.int32), start=np.arange(9) * 64,
                   stop=np.arange(1, 10) * 64, first=np.full(9, 33))  # fmt: skip
    assert refusal(nine) == "has 8 chunks, and the plan has 9 windows: --chunks 8 takes as many"
    drawn = nine.sample(8, 0)
    assert "start" in refusal(drawn) and drawn.tokens[:512].tolist() == golden.tokens.tolist()
    short = replace(plan, stop=np.minimum(plan.stop, 500), tokens=plan.tokens[:500])
    assert refusal(short) == "has window 7 with end 512 where the plan has 500 (1 of 8 differ)"
    assert "(scored all, BOS at windows)" not in refusal(plan_of("disjoint"))
    assert refusal(plan_of("disjoint")).endswith(
        "protocol is disjoint+context-length=64 (scored all, BOS at stream)"
    )
    tokens = plan.tokens.copy()
    tokens[[7, 9]] += 1
    assert refusal(replace(plan, tokens=tokens)) == (
        f"has at place 7 token {plan.tokens[7]} where the plan has {plan.tokens[7] + 1} "
        "(2 of 512 differ)"
    )
    moved = replace(plan, start=plan.start + 1, stop=plan.stop + 1)
    assert refusal(moved) == "has window 0 with start 0 where the plan has 1 (8 of 8 differ)"
    first = plan.first.copy()
    first[3] -= 1
    assert "has window 3 with first scored position 33 where the plan has 32" in refusal(
        replace(plan, first=first)
    )


def test_a_plan_without_the_bos_is_refused(golden, plan_of):
    with pytest.raises(ReferenceUnusable, match=r"has at place 0 token 0 where the plan has"):
        golden.check_plan(plan_of(bos="never"))
