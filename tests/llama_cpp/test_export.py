"""Kept references as llama.cpp files: what is in them, and what is refused."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.engine import make_engine
from support.llama_cpp.files import CONTEXT, GOLDEN, TEXT_BYTES, decode, logprobs

from scoremode.cli.main import main
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.base import Schedule, Work
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import ProtocolError, ReferenceUnusable
from scoremode.head.project import HeadLogits, tile_of
from scoremode.llama_cpp.export import LogitsFileWriter, export_llama_cpp
from scoremode.llama_cpp.file import LogitsFile
from scoremode.llama_cpp.rows import encode
from scoremode.reference.stored import StoredReference
from scoremode.results.folders.store import read_record, read_scores, seal_of
from scoremode.runs.measure import measure
from scoremode.runs.planning import plan_text
from scoremode.runs.request import Request
from scoremode.text.corpus import from_string
from scoremode.text.protocol import preset

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def text(demo) -> str:
    return (demo / "heldout.txt").read_bytes()[:TEXT_BYTES].decode()


def asked(model: Path, text: str, output: Path, protocol="llama.cpp", **more) -> Request:
    return Request(
        model=str(model),
        corpus=from_string(text),
        protocol=preset(protocol).override(context_length=CONTEXT),
        options=TorchOptions(device="cpu", dtype="float32", batch_windows=1, max_memory=1_000_000),
        output=output,
        **more,
    )


@pytest.fixture(scope="module")
def kept(demo, text, tmp_path_factory) -> StoredReference:
    folder = tmp_path_factory.mktemp("kept") / "reference"
    record = measure(asked(demo / "model", text, folder, keep="stored")).record.document
    assert len(record["kept"]["states"]["files"]) > 2
    return StoredReference(folder)


@pytest.fixture
def copied(kept, tmp_path) -> Path:
    """One that a test may spoil."""
    return shutil.copytree(kept.path, tmp_path / "copied")


@pytest.fixture(scope="module")
def exact(kept) -> np.ndarray:
    """float64 [248, 1024]: its states times its head."""
    head = kept.head(CPU)
    return (kept.states([(0, 248)]).double() @ head.weight.double().T).numpy()


def exported(kept: StoredReference, path: Path, **more) -> LogitsFile:
    export_llama_cpp(kept, path, device=CPU, **more)
    return LogitsFile(path)


def test_the_plan_comes_back(kept, demo, text):
    rules = preset("llama.cpp").override(context_length=CONTEXT)
    plan = plan_text(from_string(text), rules, model=str(demo / "model")).plan
    again = kept.plan()
    assert again.sha256 == plan.sha256 and np.array_equal(again.tokens, plan.tokens)
    assert (again.stream_bos, again.window_bos) == (plan.stream_bos, plan.window_bos)
    assert again.protocol == plan.protocol
    tokens = (kept.path / "tokens.i32").read_bytes()
    assert np.array_equal(np.frombuffer(tokens, "<i4"), plan.tokens)


@pytest.mark.parametrize("nats", [16, 24])
def test_rows_are_those_that_the_writer_makes_of_the_logits(kept, exact, nats, tmp_path):
    file = exported(kept, tmp_path / "f", nats=nats)
    ours = file.codes(0, 248, 0, 1024)
    wanted = encode(exact.astype(np.float32), nats)
    apart = np.abs(ours[0].astype(int) - wanted[:, 4:].astype(int))
    # Logits rounded to float32 before and after their sum: some codes lie at a border.
    assert apart.max() <= 1 and (apart == 0).mean() > 0.99
    decoded = logprobs(file, 0, 248, 0, 1024)
    assert np.abs(decoded - decode(wanted, 0, 1024)).max() < nats / 65535 + 2e-5
    file.check_plan(kept.plan())


def test_the_tools_file_is_nearly_the_same(kept, tmp_path):
    ours, theirs = exported(kept, tmp_path / "f"), LogitsFile(GOLDEN)
    assert ours.path.read_bytes()[: 20 + 4 * 512] == GOLDEN.read_bytes()[: 20 + 4 * 512]
    a, b = (f.codes(0, 248, 0, 1024)[0].astype(int) for f in (ours, theirs))
    assert np.abs(a - b).max() <= 1 and (a == b).mean() > 0.9


def test_the_direct_logits_of_the_engine(kept, demo, tmp_path):
    """In the same passes, micro-batches and tiles they are the same bytes."""
    engine = make_engine(demo / "model", dtype="float32")
    plan, schedule = kept.plan(), Schedule(**kept.record.document["schedule"])
    passes = [engine.final_states(work) for work in Work.passes(plan, schedule)]
    states = torch.cat([group for groups in passes for group in groups])
    logits = HeadLogits(engine.head, states, tile_of(CPU))
    logits.load(0, 1024)
    with LogitsFileWriter(tmp_path / "direct", 64, 1024, plan.tokens[:512]) as writer:
        writer.write(logits(slice(0, 248)).numpy())
    file = exported(kept, tmp_path / "f")
    assert file.path.read_bytes() == (tmp_path / "direct").read_bytes()


def test_a_few_rows_at_a_time(kept, tmp_path, monkeypatch):
    whole = exported(kept, tmp_path / "whole").codes(0, 248, 0, 1024)[0].astype(int)
    done = []
    monkeypatch.setattr("scoremode.llama_cpp.export._BLOCK", 7 * 1024)
    monkeypatch.setattr("scoremode.llama_cpp.export.tile_of", lambda _: (50, 100))
    parts = exported(kept, tmp_path / "f", progress=lambda *x: done.append(x))
    assert done == [(7, 248)] * 35 + [(3, 248)]
    # A matmul of other shapes adds in another order.
    apart = np.abs(parts.codes(0, 248, 0, 1024)[0].astype(int) - whole)
    assert apart.max() <= 1 and (apart == 0).mean() > 0.99


def test_a_comparison_with_the_file_is_off_by_its_steps(kept, demo, text, tmp_path):
    (variant,) = (v for v in VARIANTS if v.name == "W4A16-g32")
    quantize_folder(demo / "model", tmp_path / "quant", variant)
    path = exported(kept, tmp_path / "f").path
    found = []
    for reference in (kept.path, path):
        ask = asked(tmp_path / "quant", text, tmp_path / "runs", reference=str(reference))
        against = read_scores(measure(ask).folder).against
        assert against is not None
        found.append(against)
    stored, file = found
    assert np.abs(file.base_logprob - stored.base_logprob).max() < 0.51 * 16 / 65535
    assert 0 < np.abs(file.kld - stored.kld).max() < 1e-4
    assert file.kld.mean() == pytest.approx(stored.kld.mean(), abs=2e-6)
    assert file.kld_llama_cpp.mean() == pytest.approx(stored.kld.mean(), abs=2e-6)


def rewrite(folder: Path, record: dict) -> None:
    """As if its run had written that record."""
    (folder / "record.json").write_text(json.dumps(record | {"sha256": seal_of(record)}))


class TestRefusals:
    """Each in one line, and what lay under the name stays."""

    def refused(self, folder: Path, path: Path, match: str, kind=ReferenceUnusable) -> None:
        path.write_text("what was there")
        with pytest.raises(kind, match=match):
            export_llama_cpp(StoredReference(folder), path, device=CPU)
        assert path.read_text() == "what was there"
        assert not list(path.parent.glob("*.scoremode-tmp"))

    def test_another_protocol(self, demo, text, tmp_path):
        folder = tmp_path / "reference"
        measure(asked(demo / "model", text, folder, "disjoint", keep="stored"))
        self.refused(folder, tmp_path / "f", r"protocol disjoint\+context-length=64: a llama.cpp file "
                     "holds what protocol llama.cpp scores", ProtocolError)  # fmt: skip

    def test_other_tokens(self, copied, tmp_path):
        tokens = np.fromfile(copied / "tokens.i32", "<i4")
        tokens[7] += 1
        tokens.tofile(copied / "tokens.i32")
        match = r"tokens\.i32: its sha256 is \w{12}…, and the record has \w{12}…"
        self.refused(copied, tmp_path / "f", match)
        (copied / "tokens.i32").unlink()
        self.refused(copied, tmp_path / "f", r"tokens\.i32: No such file or directory")

    def test_a_record_of_other_windows(self, copied, tmp_path):
        record = read_record(copied)
        record["protocol"]["context_length"] = 32
        rewrite(copied, record)
        self.refused(
            copied, tmp_path / "f", r"make another plan than its record has \(sha256 \w{12}…"
        )

    def test_a_record_of_another_version(self, copied, tmp_path):
        record = read_record(copied)
        record["protocol"]["jitter"] = 3
        rewrite(copied, record)
        self.refused(copied, tmp_path / "f", "its protocol is another scoremode's: .*'jitter'")

    def test_no_tokens_kept(self, copied, tmp_path):
        record = read_record(copied)
        del record["kept"]["tokens"]
        rewrite(copied, record)
        self.refused(copied, tmp_path / "f", "was kept without its tokens: capture it again")

    @pytest.mark.parametrize("name", ["states/00001.safetensors", "head.safetensors"])
    def test_changed_files(self, name, copied, tmp_path):
        data = bytearray((copied / name).read_bytes())
        data[-7] ^= 1
        (copied / name).write_bytes(data)
        self.refused(copied, tmp_path / "f", "sha256")

    def test_rows_that_do_not_come_back(self, kept, tmp_path, monkeypatch):
        """Every row's own log-probability is compared, not the first ones' alone."""
        whole = kept.scores
        spoiled = whole.logprob.copy()
        spoiled[200] -= 1
        scores = SimpleNamespace(logprob=spoiled)
        monkeypatch.setattr(StoredReference, "scores", scores)
        monkeypatch.setattr("scoremode.llama_cpp.export._BLOCK", 50 * 1024)
        match = r"rms of 48 rows from row 200; float32 logits"
        self.refused(kept.path, tmp_path / "f", match)

    def test_a_full_disk(self, kept, tmp_path, monkeypatch):
        usage = SimpleNamespace(free=500_000)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        match = "f: takes 0.000512 GB, and there are 0.0005 GB free"
        self.refused(kept.path, tmp_path / "f", match)


class TestCommandLine:
    def test_of_a_capture_and_of_what_it_kept(self, demo, text, tmp_path, capfd):
        run, folder = tmp_path / "run.kld", tmp_path / "reference"
        flags = ("--text", text, "--protocol", "llama.cpp", "-c", "64", "--device", "cpu")
        model = str(demo / "model")
        ask = ["reference", model, *flags, "-o", str(folder), "--export-llama-cpp", str(run)]
        assert main(ask) == 0
        out, err = capfd.readouterr()
        assert "states" in out and f"{run}: 0.000512 GB for llama-perplexity" in err
        again = tmp_path / "again.kld"
        more = ("--export-llama-cpp", str(again), "--device", "cpu")
        assert main(["reference", str(folder), *more]) == 0
        out, err = capfd.readouterr()
        assert out == "" and f"{again}: 0.000512 GB" in err
        assert again.read_bytes() == run.read_bytes()
        far = tmp_path / "far.kld"
        more = ("--export-llama-cpp", str(far), "--export-nats", "24", "--quiet", "--json")
        assert main(["reference", str(folder), *more]) == 0
        out, err = capfd.readouterr()
        assert json.loads(out) == read_record(folder) and err == ""
        assert LogitsFile(far).read_all().reach > 16.5

    @pytest.mark.parametrize(
        ("flags", "code", "says"),
        [
            ([], 2, "is a run already: --export-llama-cpp FILE exports a reference"),
            (["--export-nats", "24"], 2, "--export-nats 24: needs --export-llama-cpp FILE"),
            (["--export-llama-cpp", "F", "-c", "64"], 2, "--context-length 64: "),
            (["--export-llama-cpp", "F", "-o", "runs"], 2, "--output-path runs: "),
            (["--export-llama-cpp", "none/F"], 1, "none/F: cannot be written: No such file"),
        ],
        ids=str,
    )
    def test_what_contradicts_itself(self, flags, code, says, kept, tmp_path, monkeypatch, capfd):
        monkeypatch.chdir(tmp_path)
        assert main(["reference", str(kept.path), *flags]) == code
        err = capfd.readouterr().err
        assert says in err and len(err.splitlines()) == code
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("flags", "says"),
        [
            (["--export-llama-cpp", "F", "-o", "runs"], "protocol score-mode"),
            (["--export-llama-cpp", "F", "--protocol", "llama.cpp", "--stride", "32", "-o", "runs"],
             "protocol llama.cpp+stride=32"),
            (["--export-llama-cpp", "no/F", "--protocol", "llama.cpp", "-o", "runs"],
             "--export-llama-cpp no/F: its folder doesn't exist"),
            (["--protocol", "llama.cpp"], "no folder to write to: give -o DIR"),
        ],
        ids=str,
    )  # fmt: skip
    def test_what_cannot_be_exported_is_known_before_it_runs(
        self, flags, says, demo, tmp_path, monkeypatch, capfd
    ):
        monkeypatch.chdir(tmp_path)
        assert main(["reference", str(demo / "model"), "--text", "a " * 2000, *flags]) == 2
        line, *pointer = capfd.readouterr().err.splitlines()
        assert says in line and all("--help" in more for more in pointer[:1]) and not pointer[1:]
        assert not list(tmp_path.iterdir())

    def test_a_run_that_kept_nothing(self, demo, text, tmp_path, capfd):
        folder = measure(asked(demo / "model", text, tmp_path / "runs")).folder
        assert main(["reference", str(folder), "--export-llama-cpp", str(tmp_path / "f")]) == 1
        assert "kept no states" in capfd.readouterr().err
