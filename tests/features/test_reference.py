"""Runs against a base: kept, live, resumed, and what is refused."""

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from support.models import edit_config, edit_tensors
from support.run_requests import request

from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.torch.engine import TorchEngine
from scoremode.errors import (
    InvalidMeasurement,
    ReferenceUnusable,
    RunFolderError,
    TokenizerError,
)
from scoremode.reference import writer as keeper
from scoremode.results.folders.store import (
    find_runs,
    read_record,
    read_scores,
    seal_of,
)
from scoremode.runs.measure import measure
from scoremode.text.protocol import preset


def columns_of(folder: Path) -> dict[str, np.ndarray]:
    return read_scores(folder).columns()


def same_columns(one: Path, other: Path) -> bool:
    a, b = columns_of(one), columns_of(other)
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def test_stored_and_live_bases_give_the_same_bits(kept, base, quant, text, tmp_path):
    stored = measure(request(quant, text, tmp_path / "a", reference=str(kept), full=True))
    live = measure(request(quant, text, tmp_path / "b", reference=str(base), full=True))
    assert same_columns(stored.folder, live.folder)
    assert stored.record.document["metrics"] == live.record.document["metrics"]
    assert (
        stored.record.document["reference"]["sha256"] == live.record.document["reference"]["sha256"]
    )
    replay = stored.record.document["reference"]["replay"]
    assert replay["bitwise"] and replay["rows"] == stored.record.document["plan"]["scored"]
    assert stored.record.document["metrics"]["kld"]["value"] > 0.01


def test_a_base_against_itself_is_exactly_zero(kept, base, text, tmp_path):
    record = measure(request(base, text, tmp_path, reference=str(kept), full=True)).record.document
    for name in ("kld", "kld_reverse", "jsd", "delta_p", "rms_delta_p"):
        assert record["metrics"][name]["value"] == 0.0, name
    assert record["metrics"]["ppl_ratio"]["value"] == 1.0
    assert record["metrics"]["top10_order"]["value"] == 1.0


def test_both_perplexities_are_those_of_ppl(kept, base, quant, text, tmp_path):
    record = measure(request(quant, text, tmp_path, reference=str(kept))).record.document
    alone = [measure(request(model, text, tmp_path)).record.document for model in (quant, base)]
    for name in ("ppl", "nll", "bits_per_byte"):
        assert record["metrics"][name] == alone[0]["metrics"][name]
        assert record["metrics"][f"{name}_base"] == alone[1]["metrics"][name]


def test_the_same_run_twice_gives_the_same_bits(base, quant, text, tmp_path):
    folders = []
    for name in ("a", "b"):
        kept = tmp_path / name / "reference"
        kept.parent.mkdir()
        measure(request(base, text, kept, keep="stored"))
        folders.append(kept)
    for file in sorted((folders[0] / "states").iterdir()):
        assert file.read_bytes() == (folders[1] / "states" / file.name).read_bytes()
    runs = [measure(request(quant, text, tmp_path, reference=str(f))).folder for f in folders]
    assert (runs[0] / "scores.parquet").read_bytes() == (runs[1] / "scores.parquet").read_bytes()


def test_a_head_left_in_the_checkpoint(base, quant, text, tmp_path):
    model = shutil.copytree(base, tmp_path / "base")
    folder = tmp_path / "reference"
    record = measure(request(model, text, folder, keep="checkpoint")).record.document
    assert not (folder / "head.safetensors").exists()
    assert record["kept"]["head"]["checkpoint"]["weight"] == "model.embed_tokens.weight"
    stored = tmp_path / "stored"
    other = measure(request(model, text, stored, keep="stored")).record.document
    assert record["kept"]["sha256"] == other["kept"]["sha256"]
    runs = [
        measure(request(quant, text, tmp_path / "runs", reference=str(f))).folder
        for f in (folder, stored)
    ]
    assert same_columns(*runs)
    edit_tensors(model, lambda t: t["model.embed_tokens.weight"].mul_(1.01))
    with pytest.raises(ReferenceUnusable, match="differ from the stored ones by"):
        measure(request(quant, text, tmp_path / "runs", reference=str(folder)))
    shutil.rmtree(model)
    with pytest.raises(ReferenceUnusable, match="its head is not to be had"):
        measure(request(quant, text, tmp_path / "runs", reference=str(folder)))


def test_a_quantized_head_is_kept_as_it_is_used(base, text, tmp_path):
    """A base whose head is packed, and one whose head has quantized inputs."""
    for name, inputs in (("W8A16", None), ("W8A8", VARIANTS_BY_NAME["W8A8"].inputs)):
        variant = VARIANTS_BY_NAME[name]
        model = tmp_path / name
        quantize_folder(base, model, variant)
        make_head_quantized(base, model, variant)
        folder = tmp_path / f"{name}-reference"
        with pytest.raises(RunFolderError, match="another form than it is used in"):
            measure(request(model, text, tmp_path / f"{name}-no", keep="checkpoint"))
        record = measure(request(model, text, folder, keep="stored")).record.document
        states = record["kept"]["states"]["dtype"]
        assert states == ("bfloat16" if inputs is None else "float32")
        against = measure(
            request(model, text, tmp_path / "runs", reference=str(folder))
        ).record.document
        assert against["metrics"]["kld"]["value"] == 0.0
        assert against["reference"]["replay"]["bitwise"]


VARIANTS_BY_NAME = {v.name: v for v in VARIANTS}


def make_head_quantized(base: Path, model: Path, variant) -> None:
    """Unties the head and stores it in the variant's format, as the linears are."""
    from scoremode.demo.quantize import quantize_weight

    weight = load_file(base / "model.safetensors")["model.embed_tokens.weight"]
    tensors = load_file(model / "model.safetensors")
    tensors |= {f"lm_head.{k}": v for k, v in quantize_weight(weight, variant).items()}
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"]["ignore"] = []
    edit_config(model, tie_word_embeddings=False, quantization_config=config["quantization_config"])


class TestRefusals:
    """Each in one line that names the thing and both values; no run is left behind."""

    def refused(self, match, model, text, output, kind=ReferenceUnusable, **more):
        with pytest.raises(kind, match=match) as error:
            measure(request(model, text, output, **more))
        assert not list(find_runs(output)), "a run was left behind"
        return str(error.value)

    def test_another_text(self, kept, quant, text, tmp_path):
        match = r"its text is \S+ \([\d,]+ bytes\), this run's \S+ \([\d,]+ bytes\)"
        self.refused(match, quant, text[:-1], tmp_path, reference=str(kept))

    def test_another_protocol(self, kept, quant, text, tmp_path):
        rules = preset("disjoint").override(context_length=48)
        self.refused(
            "protocol's context_length is 64, this run's 48",
            quant, text, tmp_path, reference=str(kept), protocol=rules,
        )  # fmt: skip

    def test_another_tokenizer(self, kept, quant, base, text, tmp_path):
        model = shutil.copytree(base, tmp_path / "model")
        tokenizer = json.loads((model / "tokenizer.json").read_text())
        tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:-200]
        (model / "tokenizer.json").write_text(json.dumps(tokenizer))
        for reference in (kept, base):
            said = r"has other tokens of this text than .*: token 18 is \d+ \(.*\) and not \d+ \("
            self.refused(said, model, text, tmp_path / "runs",
                         reference=str(reference))  # fmt: skip

    def test_a_tokenizer_file_that_gives_the_same_ids(self, kept, base, text, tmp_path):
        """Writers of checkpoints save tokenizers anew; what counts are the ids."""
        model = shutil.copytree(base, tmp_path / "model")
        tokenizer = json.loads((model / "tokenizer.json").read_text())
        (model / "tokenizer.json").write_text(json.dumps(tokenizer, indent=3))
        record = measure(
            request(model, text, tmp_path / "runs", reference=str(kept))
        ).record.document
        assert record["metrics"]["kld"]["value"] == 0.0
        assert record["tokenizer"]["sha256"] != record["reference"]["tokenizer"]["sha256"]

    def test_another_vocabulary(self, kept, base, text, tmp_path):
        model = shutil.copytree(base, tmp_path / "model")

        def pad(tensors):
            weight = tensors["model.embed_tokens.weight"]
            tensors["model.embed_tokens.weight"] = (
                weight[: weight.shape[0]].repeat(2, 1)[:1030].clone()
            )

        edit_tensors(model, pad)
        edit_config(model, vocab_size=1030)
        self.refused("over 1024 entries, this model's over 1030", model, text, tmp_path / "runs",
                     reference=str(kept))  # fmt: skip

    def test_a_live_base_of_another_vocabulary(self, quant, base, text, tmp_path):
        """A base whose config has more entries is not cut to the model's: that is another softmax."""
        model = shutil.copytree(base, tmp_path / "model")
        edit_tensors(model, lambda tensors: tensors.update(
            {"model.embed_tokens.weight":
             tensors["model.embed_tokens.weight"].repeat(2, 1)[:1030].clone()}))  # fmt: skip
        edit_config(model, vocab_size=1030)
        self.refused("over 1030 entries, this model's over 1024", quant, text, tmp_path / "runs",
                     reference=str(model))  # fmt: skip
        rules = request(quant, text, tmp_path).protocol.override(vocabulary="tokenizer")
        record = measure(
            request(base, text, tmp_path / "runs", reference=str(model), protocol=rules)
        ).record.document
        assert record["metrics"]["kld"]["value"] == 0.0

    def test_a_run_that_kept_nothing(self, quant, text, tmp_path):
        run = measure(request(quant, text, tmp_path / "plain")).folder
        self.refused("kept no states", quant, text, tmp_path / "runs", reference=str(run))

    def test_a_base_that_is_nowhere(self, quant, text, tmp_path):
        from scoremode.errors import CheckpointError

        self.refused("no such folder", quant, text, tmp_path / "runs", CheckpointError,
                     reference=str(tmp_path / "nowhere"))  # fmt: skip

    @pytest.mark.parametrize("where", ["first row", "last row"])
    def test_a_changed_state(self, where, copied, quant, text, tmp_path):
        file = (
            copied
            / "states"
            / ("00000.safetensors" if where == "first row" else "00002.safetensors")
        )
        data = bytearray(file.read_bytes())
        # The sign and exponent of one value, deep in a row.
        data[-7] ^= 0x40
        file.write_bytes(data)
        self.refused("sha256 is|differ from the stored", quant, text, tmp_path / "runs",
                     reference=str(copied))  # fmt: skip

    def test_a_cut_file_of_states(self, copied, quant, text, tmp_path):
        file = copied / "states" / "00001.safetensors"
        file.write_bytes(file.read_bytes()[:-512])
        self.refused(r"00001\.safetensors", quant, text, tmp_path / "runs", reference=str(copied))

    def test_a_missing_file_of_states(self, copied, quant, text, tmp_path):
        (copied / "states" / "00001.safetensors").unlink()
        self.refused(r"00001\.safetensors", quant, text, tmp_path / "runs", reference=str(copied))

    def test_states_in_another_order(self, copied, quant, text, tmp_path):
        one, two = (copied / "states" / f"0000{i}.safetensors" for i in (0, 1))
        a, b = one.read_bytes(), two.read_bytes()
        one.write_bytes(b), two.write_bytes(a)
        self.refused(
            "differ from the stored", quant, text, tmp_path / "runs", reference=str(copied)
        )

    def test_another_head(self, copied, quant, text, tmp_path):
        tensors = load_file(copied / "head.safetensors")
        tensors["weight"] = tensors["weight"].roll(1, 0).contiguous()
        save_file(tensors, copied / "head.safetensors")
        self.refused("differ from the stored ones by", quant, text, tmp_path / "runs",
                     reference=str(copied))  # fmt: skip

    def test_a_slightly_other_head(self, copied, quant, text, tmp_path):
        """Too little for the replay's bound, and not what was kept."""
        tensors = load_file(copied / "head.safetensors")
        tensors["weight"][1000, 100] *= 1.01
        save_file(tensors, copied / "head.safetensors")
        self.refused("weight of its head has the sha256", quant, text, tmp_path / "runs",
                     reference=str(copied))  # fmt: skip

    def test_a_changed_record(self, copied, quant, text, tmp_path):
        record = read_record(copied)
        record["kept"]["head"]["softcap"] = 30.0
        (copied / "record.json").write_text(json.dumps(record))
        self.refused("was changed after it was written", quant, text, tmp_path / "runs",
                     RunFolderError, reference=str(copied))  # fmt: skip
        (copied / "record.json").write_text(json.dumps(record | {"sha256": seal_of(record)}))
        self.refused("was changed: its parts", quant, text, tmp_path / "runs",
                     reference=str(copied))  # fmt: skip

    def test_an_unfinished_one(self, copied, quant, text, tmp_path):
        record = read_record(copied)
        del record["kept"]
        record |= {"status": "running", "parts": []}
        (copied / "record.json").write_text(json.dumps(record | {"sha256": seal_of(record)}))
        self.refused("is not finished", quant, text, tmp_path / "runs", reference=str(copied))

    def test_an_existing_folder_is_not_overwritten(self, kept, base, text):
        before = sorted(p.stat().st_mtime_ns for p in kept.rglob("*"))
        with pytest.raises(RunFolderError, match="--resume"):
            measure(request(base, text, kept, keep="stored"))
        assert before == sorted(p.stat().st_mtime_ns for p in kept.rglob("*"))


@pytest.mark.parametrize("at", [1, 2])
def test_a_reference_interrupted_while_it_writes(at, base, text, tmp_path, monkeypatch):
    """Nothing is left of one without a finished pass, whatever is being written at the time."""
    passes, own = [], TorchEngine._score_states

    def interrupted(self, *arguments):
        passes.append(1)
        if len(passes) == at:
            raise KeyboardInterrupt
        return own(self, *arguments)

    def slowly(*arguments):
        time.sleep(0.3)
        create_states(*arguments)

    create_states = keeper.create_states
    monkeypatch.setattr(keeper, "create_states", slowly)
    monkeypatch.setattr(TorchEngine, "_score_states", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(request(base, text, tmp_path / "kept", keep="stored"))
    assert not (tmp_path / "kept").exists()


def test_an_invalid_reference_keeps_no_states(base, quant, text, tmp_path, monkeypatch):
    own = TorchEngine._score_states

    def wrong(self, *arguments):
        results = own(self, *arguments)
        results[0].logprob[3] = np.nan
        return results

    folder = tmp_path / "kept"
    with monkeypatch.context() as patched, pytest.raises(InvalidMeasurement):
        patched.setattr(TorchEngine, "_score_states", wrong)
        measure(request(base, text, folder, keep="stored"))
    assert [path.name for path in folder.iterdir()] == ["record.json"]
    with pytest.raises(ReferenceUnusable, match="ended as invalid: the log-probability nan"):
        measure(request(quant, text, tmp_path / "runs", reference=str(folder)))


def test_another_base_is_another_run(kept, base, quant, text, tmp_path):
    output = tmp_path / "runs"
    first = measure(request(quant, text, output, reference=str(kept)))
    again = measure(request(quant, text, output, reference=str(kept), resume=True))
    assert again.folder == first.folder
    other = measure(request(quant, text, output, reference=str(base), resume=True))
    assert other.folder != first.folder
    with pytest.raises(RunFolderError, match='its reference kind is "stored", this one\'s "model"'):
        measure(request(quant, text, first.folder, reference=str(base), resume=True))


@pytest.mark.parametrize(
    ("gate", "code"),
    [
        (["--max-kld", "10"], 0),
        (["--max-kld", "0.0001"], 4),
        (["--max-kld-p99", "0.001"], 4),
        (["--max-ppl-ratio", "1.0"], 4),
        (["--min-top1", "99.9%"], 4),
        (["--max-kld", "10", "--min-top1", "10%", "--max-ppl-ratio", "2"], 0),
        (["--min-top1", "1.5"], 2),
        (["--max-kld", "nan"], 2),
        (["--max-kld", "inf"], 2),
    ],
    ids=str,
)
def test_gates(gate, code, kept, quant, text, tmp_path, capfd):
    from scoremode.cli.main import main

    command = ["kld", str(quant), "--reference", str(kept), "--text", text, "--protocol", "disjoint",
               "-c", "64", "--device", "cpu", "--dtype", "bfloat16", "--quiet", "-o",
               str(tmp_path)]  # fmt: skip
    assert main([*command, *gate]) == code
    err = capfd.readouterr().err
    limit = float(gate[1].rstrip("%")) / (100 if gate[1].endswith("%") else 1)
    if code == 4:
        assert f"gate not met: {gate[0]} {gate[1]}: " in err
    if code == 2:
        assert f"error: {gate[0]} {gate[1]}: " in err
    runs = list(find_runs(tmp_path))
    assert len(runs) == (code != 2)
    for _, record in runs:
        first = record["gates"][0]
        assert first["name"] == gate[0][2:].replace("-", "_")
        assert first["limit"] == pytest.approx(limit, rel=1e-12)
        assert first["met"] == (code == 0) and first["bound"] == first["value"]


def test_ids_beyond_the_softmax_are_refused_before_anything_is_made(kept, quant, text, tmp_path):
    model = shutil.copytree(quant, tmp_path / "model")
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append(
        tokenizer["added_tokens"][0] | {"id": 1024, "content": text.split()[0]}
    )
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(TokenizerError, match="token id 1024"):
        measure(request(model, text, tmp_path / "runs", reference=str(kept)))
    assert not (tmp_path / "runs").exists()
