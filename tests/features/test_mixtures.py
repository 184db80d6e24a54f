"""`--keep-dense` and `--swap` as a user meets them: mixtures of checkpoints that nobody has written."""

import json
import shutil

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from support.programs import error_of, run, told
from support.records import typed

from scoremode.cli.card import reproduction
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.results.folders.store import find_runs, read_scores

FORMATS = {"W4A16-g32", "W8A16", "NVFP4"}


@pytest.fixture(scope="module")
def models(demo, tmp_path_factory):
    home = tmp_path_factory.mktemp("mixing")
    for variant in VARIANTS:
        if variant.name in FORMATS:
            quantize_folder(demo / "model", home / variant.name, variant)
    return home


@pytest.fixture(scope="module")
def text(demo):
    words = (demo / "heldout.txt").read_text()[:4000]
    return ["--text", words, "--protocol", "disjoint", "-c", "64", "--device", "cpu"]


def only_run(folder):
    ((path, record),) = find_runs(folder)
    return path, record


def same_bits(one, other):
    columns = [read_scores(path).columns() for path in (one, other)]
    assert columns[0].keys() == columns[1].keys() and len(columns[0]["kld"]) > 500
    return all(np.array_equal(columns[0][n], columns[1][n]) for n in columns[0])


def written(models, name, demo, folder, layer):
    """A checkpoint, made by hand, in which only one decoder layer is quantized."""
    shutil.copytree(models / name, folder)
    packed, dense = (
        load_file(folder / "model.safetensors"),
        load_file(demo / "model/model.safetensors"),
    )
    prefix = f"model.layers.{layer}."
    tensors = {n: t for n, t in dense.items() if not n.startswith(prefix)}
    tensors |= {n: t for n, t in packed.items() if n.startswith(prefix)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["ignore"] = ["lm_head", rf"re:model\.layers\.(?!{layer}\.)"]
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", ["W4A16-g32", "NVFP4"])
def test_a_mixture_has_the_bits_of_the_checkpoint_that_it_stands_for(
    models, name, demo, text, capsys, tmp_path
):
    written(models, name, demo, tmp_path / "written", 1)
    base = ["--reference", str(demo / "model"), *text, "--quiet"]
    asked = ["kld", str(tmp_path / "written"), *base, "-o", str(tmp_path / "a")]
    assert run(capsys, *asked) == (0, "", "")
    others = [r"re:model\.layers\.(?!1\.)", "embed_tokens", "model.norm"]
    flags = [word for pattern in others for word in ("--keep-dense", pattern)]
    asked = ["kld", str(models / name), *base, *flags, "-o", str(tmp_path / "b")]
    assert run(capsys, *asked) == (0, "", "")
    (one, wanted), (other, record) = (only_run(tmp_path / n) for n in "ab")
    assert same_bits(one, other)
    found, wanted = record["checkpoint"], wanted["checkpoint"]
    assert found["bits_per_weight"]["body"] == wanted["bits_per_weight"]["body"]
    assert found["parameters"] == wanted["parameters"]


def test_two_quants_make_one(models, demo, text, capsys, tmp_path):
    """The record says which, `check` holds it, and compare has each under a name of its own."""
    swaps = ["--swap", f"self_attn={models / 'NVFP4'}", "--swap",
             f"re:.*down_proj={models / 'W8A16'}"]  # fmt: skip
    base = ["--reference", str(demo / "model"), *text]
    for more in ([], swaps):
        asked = ["kld", str(models / "W4A16-g32"), *base, *more, "-o", str(tmp_path / "runs")]
        code, out, err = run(capsys, *asked)
        assert (code, told(err)) == (0, "")
    assert "W4A16-g32 + self_attn of NVFP4 + re:.*down_proj of W8A16 (" in out
    path, record = next(
        (p, r) for p, r in find_runs(tmp_path / "runs") if "mixture" in r["checkpoint"]
    )
    taken = record["checkpoint"]["mixture"]["taken"]
    assert [t["pattern"] for t in taken] == ["self_attn", "re:.*down_proj"]
    assert not any(t["is_base"] or t["differing"] for t in taken)
    kinds = {label: f["kinds"] for label, f in record["checkpoint"]["formats"].items()}
    assert any(kind.keys() == {"down_proj"} for kind in kinds.values())
    code, out, _ = run(capsys, "check", str(path), "--against", str(models / "W4A16-g32"))
    assert code == 0 and "wrong: 0" in out and "could not be checked: 0" in out
    code, out, _ = run(capsys, "compare", str(tmp_path / "runs"))
    assert code == 0 and "W4A16-g32 + self_attn of NVFP4 + re:.*down_proj of W8A16 " in out
    words = reproduction(typed(record))
    assert words[:3] == ["scoremode", "kld", "W4A16-g32"]
    assert words.count("--swap") == 2 and "self_attn=NVFP4" in words
    code, out, _ = run(capsys, "report", str(tmp_path / "runs"), "-o", str(tmp_path / "r.html"))
    assert code == 0 and "self_attn of NVFP4" in (tmp_path / "r.html").read_text()


def test_the_base_of_a_kept_reference_is_taken_from(models, demo, text, capsys, tmp_path):
    base = str(demo / "model")
    kept = str(tmp_path / "kept")
    assert run(capsys, "reference", base, *text, "-o", kept, "--quiet")[0] == 0
    runs = []
    for number, reference in enumerate((kept, base)):
        out = tmp_path / str(number)
        asked = ["kld", str(models / "W4A16-g32"), "--reference", reference, *text, "-o", str(out)]
        assert run(capsys, *asked, "--keep-dense", "down_proj", "--quiet") == (0, "", "")
        runs.append(only_run(out))
    assert same_bits(runs[0][0], runs[1][0])
    assert runs[0][1]["checkpoint"]["mixture"]["taken"][0]["is_base"]


def test_perplexity_of_a_mixture(models, demo, text, capsys, tmp_path):
    asked = ["ppl", str(models / "W4A16-g32"), "--swap", f"re:.*={demo / 'model'}", *text]
    assert run(capsys, *asked, "--quiet", "-o", str(tmp_path / "a")) == (0, "", "")
    assert (
        run(capsys, "ppl", str(demo / "model"), *text, "--quiet", "-o", str(tmp_path / "b"))[0] == 0
    )
    found, wanted = (only_run(tmp_path / n)[1]["metrics"]["ppl"]["value"] for n in "ab")
    assert found == wanted


def test_what_can_not_be_mixed_is_refused_in_a_line(models, demo, text, capsys, tmp_path):
    w4, w8 = str(models / "W4A16-g32"), str(models / "W8A16")
    # Without the device, which is no flag of vLLM's.
    base = ["--reference", str(demo / "model"), *text[:-2], "-o", str(tmp_path / "runs")]
    for more, words in {
        ("--swap", "layers.1"): "give PATTERN=OTHER",
        ("--swap", f"layers.9={w8}"): "has no such module",
        ("--swap", "layers.1=no/such"): "no/such",
        ("--keep-dense", "layers.1", "--engine", "vllm"): "use --engine torch",
        ("--keep-dense", "layers.1", "--swap", f"layers.1.mlp={w8}"): "is taken from",
    }.items():
        code, _, err = run(capsys, "kld", w4, *base, *more)
        assert code in (1, 2) and words in error_of(err)
    code, _, err = run(capsys, "kld", w4, w8, *base, "--swap", f"layers.1={w8}")
    assert code == 2 and "takes one MODEL" in err
    assert not list((tmp_path / "runs").glob("*/record.json"))
