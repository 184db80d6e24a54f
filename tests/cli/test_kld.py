"""`scoremode kld` as a user meets it."""

import json
from pathlib import Path

import pytest
from support.programs import run

from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.results.folders.store import find_runs


@pytest.fixture(scope="module")
def asked(demo, tmp_path_factory) -> list[str]:
    """A quick comparison of a quantized model with its base, kept or not."""
    folder: Path = tmp_path_factory.mktemp("kld") / "w4"
    quantize_folder(demo / "model", folder, VARIANTS[1])
    text = "The same value is computed once and the result is used again. " * 20
    flags = ["--text", text, "--protocol", "disjoint", "-c", "32", "--device", "cpu"]
    return ["kld", str(folder), "--reference", str(demo / "model"), *flags]


def test_gates_are_in_the_table_in_the_json_and_in_the_exit_code(asked, capsys, tmp_path):
    output = ["-o", str(tmp_path)]
    code, out, err = run(capsys, *asked, *output, "--max-kld", "1e-9", "--max-ppl-ratio", "5")
    assert code == 4 and out.startswith("KLD ")
    assert "--max-kld 1e-09: " in out and "NOT MET" in out and "--max-ppl-ratio 5: " in out
    assert err.startswith("scoremode: gate not met: --max-kld 1e-9: ") and err.count("\n") == 1
    # The block alone, since --quiet leaves out the table.
    code, out, err = run(capsys, *asked, *output, "--max-kld", "9", "--quiet", "--llama-cpp-block")
    assert (code, err) == (0, "") and out.startswith("====== Perplexity statistics ======\n")
    code, out, err = run(capsys, *asked, *output, "--max-kld", "9", "--json")
    shown = json.loads(out)
    (gate,) = shown["gates"]
    assert (code, err) == (0, "") and (gate["limit"], gate["met"]) == (9, True)
    assert shown in [record for _, record in find_runs(tmp_path)]


def test_a_base_is_asked_for(demo, capsys):
    code, out, err = run(capsys, "kld", str(demo / "model"), "--text", "a b")
    assert (code, out) == (2, "") and "--reference" in err
