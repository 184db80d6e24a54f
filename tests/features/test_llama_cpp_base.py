"""Runs against a llama.cpp file, held against llama-perplexity's own output; refusals and kills."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.llama_cpp.files import CONTEXT, GOLDEN, TEXT_BYTES, compare_blocks, logprobs
from support.models import edit_config, edit_tensors
from support.warm import run_killed
from transformers import AutoModelForCausalLM

from scoremode.checkpoint.files import open_checkpoint
from scoremode.cli.main import main
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import ReferenceUnusable, RunFolderError, UsageError
from scoremode.llama_cpp.file import LogitsFile
from scoremode.results.folders.store import (
    SCORES,
    find_runs,
    read_columns,
    read_record,
    read_scores,
)
from scoremode.results.record.sections import sections
from scoremode.results.statistics.llama_cpp import block_of
from scoremode.runs.measure import measure
from scoremode.runs.request import Request, Result
from scoremode.schemes.base import Scratch
from scoremode.schemes.resolve import resolve
from scoremode.text.corpus import from_string
from scoremode.text.protocol import preset

COMPARED = ["base-self", "W4A16-g32", "W2A16-g32"]


@pytest.fixture(scope="module")
def text(demo) -> str:
    """What the tool was given."""
    return (demo / "heldout.txt").read_bytes()[:TEXT_BYTES].decode()


@pytest.fixture(scope="module")
def models(demo, tmp_path_factory) -> dict[str, Path]:
    folders = {"base-self": demo / "model"}
    for variant in VARIANTS:
        if variant.name in COMPARED:
            folders[variant.name] = tmp_path_factory.mktemp("models") / variant.name
            quantize_folder(demo / "model", folders[variant.name], variant)
    return folders


@pytest.fixture(scope="module")
def quant(models) -> Path:
    return models["W4A16-g32"]


def asked(model: Path, text: str, output: Path, **more) -> Request:
    plain = Request(
        model=str(model),
        corpus=from_string(text),
        protocol=preset("llama.cpp").override(context_length=CONTEXT),
        options=TorchOptions(device="cpu", dtype="float32", batch_windows=1, max_memory=1_000_000),
        output=output,
        reference=str(GOLDEN),
    )
    return replace(plain, **more)


@pytest.fixture(scope="module")
def runs(models, text, tmp_path_factory) -> dict[str, Result]:
    """Each model against the tool's file, in several passes."""
    output = tmp_path_factory.mktemp("runs")
    found = {
        name: measure(asked(models[name], text, output / name, full=True)) for name in COMPARED
    }
    assert found["base-self"].record.document["schedule"]["pass_windows"] < 4
    return found


@pytest.mark.parametrize("name", COMPARED)
def test_the_printed_block(name, runs):
    block = block_of(read_scores(runs[name].folder))
    assert block is not None and block.to_json() == runs[name].record.document["llama_cpp"]
    printed = GOLDEN.with_name(f"{name}.txt").read_text()
    compare_blocks(block.text(), printed, is_itself=name == "base-self")


def test_the_tools_perplexities(runs):
    metrics = runs["base-self"].record.document["metrics"]
    final = GOLDEN.with_name("base.txt").read_text().splitlines()[-1]
    assert metrics["ppl"]["value"] == pytest.approx(float(final.split()[4]), abs=1.01e-4)
    printed = GOLDEN.with_name("base-self.txt").read_text()
    line = next(s for s in printed.splitlines() if s.startswith("Mean PPL(base)"))
    assert metrics["ppl_base"]["value"] == pytest.approx(float(line.split()[3]), abs=1e-6)


@pytest.mark.parametrize("name", COMPARED)
def test_each_tokens_values(name, runs):
    scores = read_scores(runs[name].folder)
    assert scores.against is not None and scores.against.kld_llama_cpp is not None
    with np.load(GOLDEN.with_name("rows.npz")) as rows:
        theirs = {k: rows[f"{name}.{k}"] for k in ("nll", "base_nll", "kld", "same_top")}
    assert np.array_equal(-scores.against.base_logprob, theirs["base_nll"])
    assert np.array_equal(scores.top1 == scores.against.base_top1, theirs["same_top"])
    assert scores.nll == pytest.approx(theirs["nll"], abs=2e-5)
    assert scores.against.kld_llama_cpp == pytest.approx(theirs["kld"], abs=5e-6)


def library_logprobs(model: Path, base: Path, file: LogitsFile) -> torch.Tensor:
    """float64 [rows, entries]: by the library's forward of the dense model with decoded weights."""
    dense = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    stored = load_file(model / "model.safetensors")
    for module, scheme in resolve(open_checkpoint(str(model))).quantized.items():
        tensors = {name: stored[f"{module}.{name}"] for name in scheme.tensors}
        scheme.decode(tensors, dense.get_submodule(module).weight.data, Scratch())
    tokens = torch.from_numpy(file.tokens).long().view(file.chunks, file.n_ctx).clone()
    tokens[:, 0] = dense.config.bos_token_id
    with torch.no_grad():
        z = dense(tokens).logits[:, file.n_ctx // 2 : -1]
    return z.reshape(file.rows, -1).double().log_softmax(1)


@pytest.mark.parametrize("name", COMPARED)
def test_divergences_are_those_of_the_files_renormalized_distribution(name, runs, models):
    file = LogitsFile(GOLDEN)
    p = torch.from_numpy(logprobs(file, 0, 248, 0, 1024)).double().log_softmax(1)
    q = library_logprobs(models[name], models["base-self"], file)
    m = torch.logaddexp(p, q) - np.log(2)
    against = read_scores(runs[name].folder).against
    assert against is not None
    for got, wanted in (
        (against.kld, (p.exp() * (p - q)).sum(1)),
        (against.kld_reverse, (q.exp() * (q - p)).sum(1)),
        (against.jsd, (p.exp() * (p - m) + q.exp() * (q - m)).sum(1) / 2),
    ):
        assert np.abs(got - wanted.numpy()).max() < 1e-5
    assert against.kld.mean() == pytest.approx(against.kld_llama_cpp.mean(), abs=2e-6)


def test_the_record_says_what_it_was_compared_with(runs):
    record = runs["W4A16-g32"].record.document
    reference = record["reference"]
    digest = hashlib.sha256(GOLDEN.read_bytes()).hexdigest()
    assert reference["kind"] == "llama.cpp" and reference["source"] == str(GOLDEN)
    assert reference["sha256"] == digest and reference["files"] == {"base.kld": digest}
    assert reference["checkpoint"] is None
    sizes = {"n_ctx": 64, "chunks": 8, "rows": 248, "vocabulary": 1024}
    assert sizes.items() <= reference.items()
    assert reference["checksum"] == "none in the file; each row adds up to 1 within its steps"
    assert 0 < reference["step_nats"] * 65535 == reference["reach_nats"] < 16.001
    assert "llama_cpp_note" not in record
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize("name", COMPARED)
def test_every_section_is_recomputed_from_the_parquet(name, runs):
    folder = runs[name].folder
    scores, extras = read_columns(folder / SCORES)
    again = sections(scores, CONTEXT, extras)
    made = {"metrics", "thresholds", "intervals", "distribution", "breakdown", "llama_cpp"}
    assert made == again.keys()
    for section, value in again.items():
        assert json.loads(json.dumps(value)) == read_record(folder)[section], section


class TestBlocksOfOtherBases:
    def test_a_models(self, models, quant, text, tmp_path):
        """Its KLD is exact, and so near the file's that the block is nearly the same."""
        ask = asked(quant, text, tmp_path, reference=str(models["base-self"]))
        result = measure(ask)
        scores = read_scores(result.folder)
        assert scores.against is not None and scores.against.kld_llama_cpp is None
        block, printed = block_of(scores), GOLDEN.with_name("W4A16-g32.txt").read_text()
        assert block is not None and block.to_json() == result.record.document["llama_cpp"]
        assert f"Mean    KLD:   {block.kld.value:.5f}" in printed
        kld = result.record.document["metrics"]["kld"]["value"]
        assert block.kld.value == pytest.approx(kld, rel=1e-12)

    def test_too_few_tokens(self, models, quant, text, tmp_path):
        rules = preset("llama.cpp").override(context_length=CONTEXT, max_windows=3)
        ask = asked(quant, text, tmp_path, reference=str(models["base-self"]), protocol=rules)
        record = measure(ask).record.document
        assert record["llama_cpp"] is None
        assert record["llama_cpp_note"].endswith("of 100 tokens or more, and these are 93")

    def test_weights(self, models, quant, text, tmp_path):
        rules = preset("hf-strided").override(context_length=CONTEXT, stride=24)
        ask = asked(quant, text, tmp_path, reference=str(models["base-self"]), protocol=rules)
        record = measure(ask).record.document
        assert "llama_cpp" not in record
        assert record["llama_cpp_note"].startswith("llama.cpp knows no weights")


class TestRefusals:
    """Each in one line with both values; no run is left behind."""

    def refused(self, match, model, text, output, kind=ReferenceUnusable, **more):
        with pytest.raises(kind, match=match):
            measure(asked(model, text, output, **more))
        assert not list(find_runs(output)), "a run was left behind"

    def test_another_text(self, quant, text, tmp_path):
        self.refused(r"at place \d+ token \d+ where the plan has \d+ \(\d+ of 512 differ\)",
                     quant, text.replace("the", "a", 1) + " more" * 9, tmp_path)  # fmt: skip

    def test_a_shorter_text(self, quant, text, tmp_path):
        self.refused("has 8 chunks, and the plan has 7 windows", quant, text[:-100], tmp_path)

    def test_a_longer_text(self, quant, text, tmp_path):
        match = "has 8 chunks, and the plan has 9 windows: --chunks 8 takes as many"
        self.refused(match, quant, text + " and more" * 40, tmp_path)
        rules = preset("llama.cpp").override(context_length=CONTEXT, max_windows=8)
        ask = asked(quant, text + " and more" * 40, tmp_path, protocol=rules)
        assert measure(ask).record.document["status"] == "done"

    def test_another_context_length(self, quant, text, tmp_path):
        rules = preset("llama.cpp").override(context_length=48)
        self.refused("has context length 64, and the plan's protocol .*context-length=48 has 48",
                     quant, text, tmp_path, protocol=rules)  # fmt: skip

    def test_another_protocol(self, quant, text, tmp_path):
        rules = preset("disjoint").override(context_length=CONTEXT)
        self.refused("holds what protocol llama.cpp scores, and the plan's protocol is disjoint",
                     quant, text, tmp_path, protocol=rules)  # fmt: skip

    def test_another_vocabulary(self, models, text, tmp_path):
        """A padded head: what both have can be named."""
        model = shutil.copytree(models["base-self"], tmp_path / "model")

        def pad(tensors):
            weight = tensors["model.embed_tokens.weight"]
            tensors["model.embed_tokens.weight"] = torch.cat([weight, weight[:6]])

        edit_tensors(model, pad)
        edit_config(model, vocab_size=1030)
        output = tmp_path / "runs"
        self.refused("over 1024 entries, this model's over 1030: --vocabulary tokenizer gives",
                     model, text, output)  # fmt: skip
        rules = preset("llama.cpp").override(context_length=CONTEXT, vocabulary="tokenizer")
        record = measure(asked(model, text, output, protocol=rules)).record.document
        assert abs(record["metrics"]["kld"]["value"]) < 1e-6

    def test_a_cut_file(self, quant, text, tmp_path):
        path = tmp_path / "cut.kld"
        path.write_bytes(GOLDEN.read_bytes()[:-100])
        self.refused(r"cut\.kld: has 511856 bytes, and 8 chunks of 64 tokens over 1024 entries take "
                     "511956", quant, text, tmp_path / "runs", reference=str(path))  # fmt: skip

    def test_a_file_of_something_else(self, quant, text, tmp_path):
        path = tmp_path / "base.kld"
        path.write_bytes(b"GGUF" + bytes(1000))
        self.refused("not a file of llama-perplexity: begins with b'GGUF",
                     quant, text, tmp_path / "runs", reference=str(path))  # fmt: skip

    def test_a_row_that_is_not_finite(self, quant, text, tmp_path):
        """Known before the first part is written."""
        data = bytearray(GOLDEN.read_bytes())
        row = 20 + 4 * 512 + 200 * 2 * 1028
        data[row : row + 4] = np.float32(np.nan).tobytes()
        path = tmp_path / "base.kld"
        path.write_bytes(data)
        self.refused("at position 47 of chunk 6: the base's logits were not finite",
                     quant, text, tmp_path / "runs", reference=str(path))  # fmt: skip

    def test_a_noise_floor(self, quant, text, tmp_path):
        self.refused("holds log-probabilities and no model to run again",
                     quant, text, tmp_path, UsageError, noise_floor="auto")  # fmt: skip


class Stop(Exception):
    pass


def interrupted(ask: Request, parts: int) -> Path:
    """The folder of a run that ends when so many parts are written."""

    def stop(tokens, total):
        if len(list(ask.output.glob("*/parts/*.parquet"))) == parts:
            raise Stop

    with pytest.raises(Stop):
        measure(ask, progress=stop)
    ((folder, record),) = find_runs(ask.output)
    assert record["status"] == "running"
    return folder


def test_an_interrupted_run_goes_on_to_the_same_result(quant, text, runs, tmp_path):
    ask = asked(quant, text, tmp_path, full=True)
    folder = interrupted(ask, 2)
    resumed = measure(replace(ask, resume=True))
    whole = runs["W4A16-g32"]
    assert resumed.folder == folder
    assert (folder / "scores.parquet").read_bytes() == (
        whole.folder / "scores.parquet"
    ).read_bytes()
    for name in ("metrics", "distribution", "llama_cpp", "reference"):
        assert resumed.record.document[name] == whole.record.document[name], name


def changed(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


def test_a_row_that_changed_since_the_kill_is_named(quant, text, tmp_path):
    """Deep in a row, where the identity does not look."""
    path = shutil.copy(GOLDEN, tmp_path / "base.kld")
    ask = asked(quant, text, tmp_path / "runs", reference=str(path))
    folder = interrupted(ask, 2)
    changed(path, -1001)
    with pytest.raises(RunFolderError, match=r"base\.kld has changed since this run began"):
        measure(replace(ask, resume=True, output=folder))
    fresh = measure(replace(ask, resume=True))
    assert fresh.folder != folder


def test_another_base_of_the_same_text_is_another_run(quant, text, tmp_path):
    path = shutil.copy(GOLDEN, tmp_path / "base.kld")
    ask = asked(quant, text, tmp_path / "runs", reference=str(path), resume=True)
    first = measure(ask)
    assert measure(ask).folder == first.folder
    changed(path, 20 + 4 * 512)  # the first row's scale
    assert measure(ask).folder != first.folder
    with pytest.raises(RunFolderError, match="its reference fingerprint is"):
        measure(replace(ask, output=first.folder))


def test_a_file_replaced_during_a_run_is_noticed(quant, text, tmp_path):
    path = shutil.copy(GOLDEN, tmp_path / "base.kld")
    ask = asked(quant, text, tmp_path / "runs", reference=str(path))

    def replace_it(tokens, total):
        if list(ask.output.glob("*/parts/*.parquet")):
            other = shutil.copy(GOLDEN, tmp_path / "other")
            Path(other).rename(path)

    with pytest.raises(ReferenceUnusable, match=r"base\.kld: was changed or replaced"):
        measure(ask, progress=replace_it)


def command(demo: Path, model: Path, reference: Path, *more: str) -> list[str]:
    flags = (
        f"-f {demo / 'heldout.txt'} --protocol llama.cpp -c {CONTEXT} --dtype float32 --device cpu"
    )
    small = ["--max-memory", "8MB", "--batch-size", "8", "--limit", "48"]
    return ["kld", str(model), *flags.split(), *small, "--reference", str(reference), *more]


class TestCommandLine:
    def run(self, quant, text, tmp_path, capfd, *more: str) -> str:
        file = tmp_path / "text.txt"
        file.write_bytes(text.encode())
        flags = f"-f {file} --protocol llama.cpp -c {CONTEXT} --dtype float32 --device cpu"
        ask = ["kld", str(quant), *flags.split(), "--reference", str(GOLDEN)]
        assert main([*ask, "-o", str(tmp_path / "runs"), *more]) == 0
        return capfd.readouterr().out

    def test_the_block_alone(self, quant, text, tmp_path, capfd):
        out = self.run(quant, text, tmp_path, capfd, "--quiet", "--llama-cpp-block")
        assert out.startswith("====== Perplexity statistics ======\n")
        compare_blocks(out, GOLDEN.with_name("W4A16-g32.txt").read_text())

    def test_the_block_behind_the_table(self, quant, text, tmp_path, capfd):
        out = self.run(quant, text, tmp_path, capfd, "--llama-cpp-block")
        table, block = out.split("\n\n====== Perplexity statistics ======\n")
        assert ": KLD " in table.partition("\n")[0] and f"{GOLDEN}" in table
        assert block.endswith(" %\n")

    def test_no_block_unless_asked(self, quant, text, tmp_path, capfd):
        assert "======" not in self.run(quant, text, tmp_path, capfd)

    def test_json_holds_it(self, quant, text, tmp_path, capfd):
        out = self.run(quant, text, tmp_path, capfd, "--json", "--llama-cpp-block")
        record = json.loads(out)
        assert record["llama_cpp"]["n"] == 248
        assert record["llama_cpp"]["kld"]["value"] == pytest.approx(0.024020, abs=3e-6)

    def test_where_there_is_none_it_says_why(self, models, quant, text, tmp_path, capfd):
        more = ("--limit", "3", "--quiet", "--llama-cpp-block")
        ask = ["kld", str(quant), "--text", text, "--protocol", "llama.cpp", "-c", "64", "--device",
               "cpu", "--reference", str(models["base-self"]), "-o", str(tmp_path), *more]  # fmt: skip
        assert main(ask) == 0
        out, err = capfd.readouterr()
        assert out == "" and "no llama.cpp block: llama.cpp makes its block of 100" in err


def test_kill_9_and_resume_gives_the_same_bits(demo, models, quant, tmp_path):
    """Against a file of 48 chunks, which the base's own reference gives."""
    file, kept = tmp_path / "base.kld", tmp_path / "reference"
    keep = ["reference", *command(demo, models["base-self"], file)[1:-2], "--quiet"]
    assert main([*keep, "--export-llama-cpp", str(file), "-o", str(kept)]) == 0
    ask = [*command(demo, quant, file, "--quiet", "-o")]
    assert main([*ask, str(tmp_path / "whole")]) == 0
    run_killed([*ask, str(tmp_path / "killed")], tmp_path / "killed", 2)
    assert main([*ask, str(tmp_path / "killed"), "--resume"]) == 0
    ((a, ours),), ((b, theirs),) = (
        list(find_runs(tmp_path / name)) for name in ("whole", "killed")
    )
    assert (a / "scores.parquet").read_bytes() == (b / "scores.parquet").read_bytes()
    for name in ("metrics", "llama_cpp", "reference"):
        assert ours[name] == theirs[name], name
