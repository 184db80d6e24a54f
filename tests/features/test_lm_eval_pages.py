"""`--protocol lm-eval`: WikiText's pages, and the harness's own numbers of them."""

import json

import numpy as np
import pytest
from support.forged_runs import forged
from support.harness_runs import NEEDED, evaluated
from support.local_tasks import write_wikitext
from support.task_runs import rounded

from scoremode import api
from scoremode.cli.main import main
from scoremode.errors import ProtocolError, RunFolderError, UsageError
from scoremode.results.folders.finished import open_run
from scoremode.text.corpus import pages_of


@pytest.fixture(scope="session")
def pages(data):
    """Four pages of WikiText-2, three of them longer than the 512 tokens that the model reads."""
    found = pages_of((data / "wikitext2/wiki.test.raw").read_bytes().decode())
    short = tuple(page[:3000] for page in (found[0], found[3], found[17]))
    return (*short, " = Nil = \n a b")


@pytest.fixture(scope="session")
def pages_file(pages, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "pages.jsonl"
    path.write_text("".join(json.dumps({"page": page, "of": "wiki"}) + "\n" for page in pages))
    return path


@pytest.fixture(scope="session")
def run(data, pages_file, tmp_path_factory):
    return api.measure(
        data / "stories260K",
        protocol="lm-eval",
        dataset_file=pages_file,
        text_field="page",
        dtype="float32",
        device="cpu",
        output=tmp_path_factory.mktemp("runs"),
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("length", [None, 96])
def test_it_is_what_the_harness_makes_of_its_hf_backend(
    length, data, run, pages, pages_file, tmp_path, monkeypatch
):
    datasets = pytest.importorskip("datasets", reason=NEEDED)
    pytest.importorskip("lm_eval", reason=NEEDED)
    from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    model = str(data / "stories260K")
    if length is not None:
        run = api.measure(
            model, protocol="lm-eval", dataset_file=pages_file, text_field="page", dtype="float32",
            device="cpu", context_length=length, output=tmp_path / "runs",
        )  # fmt: skip
    theirs = HFLM(pretrained=model, dtype="float32", device="cpu", batch_size=1, max_length=length)
    folder = write_wikitext(tmp_path / "tasks", pages)
    results = evaluated(theirs, folder, ("wikitext_here",))["results"]["wikitext_here"]
    for name, metric in run.record.document["pages"]["metrics"].items():
        assert metric["value"] == pytest.approx(results[f"{name},none"], rel=1e-6), name


def test_the_same_pages_come_of_a_raw_file(run, data, pages, tmp_path):
    raw = tmp_path / "wiki.raw"
    raw.write_text(" \n" + "\n".join(pages))
    again = api.measure(
        data / "stories260K", protocol="lm-eval", file=raw, dtype="float32", device="cpu",
        output=tmp_path / "runs",
    )  # fmt: skip
    assert again.record.document["pages"] == run.record.document["pages"]
    assert again.record.document["corpus"]["text"] == run.record.document["corpus"]["text"]


def test_the_table_tells_pages_and_what_stands_before_them(run, capsys):
    assert main(["show", str(run.folder), "-v"]) == 0
    shown = capsys.readouterr().out
    words = run.record.document["pages"]["words"]
    assert shown.split("\n\n")[1].startswith("word perplexity  ")
    assert f"4 pages of {words:,} words" in shown and "each behind BOS (<s>)" in shown
    assert "bits per detokenized byte" in shown


def test_pages_are_whole_blocks_and_checked(run, capsys, pages_file):
    assert len(np.unique(run.scores["conversation"])) == 4
    assert main(["check", str(run.folder), "--file", str(pages_file)]) == 0
    shown = capsys.readouterr().out
    assert "requests.parquet   held" in shown and "wrong: 0" in shown


def test_a_base_has_its_own_and_compare_has_a_column(run, data, pages_file, tmp_path, capsys):
    model = rounded(data / "stories260K", tmp_path / "model")
    kld = ["kld", str(model), "--reference", str(data / "stories260K"), "--protocol", "lm-eval",
           "--dataset-file", str(pages_file), "--text-field", "page", "--device", "cpu",
           "--dtype", "float32", "-o", str(tmp_path / "runs")]  # fmt: skip
    assert main(kld) == 0
    assert "base word perplexity" in capsys.readouterr().out
    (folder,) = (tmp_path / "runs").iterdir()
    metrics = json.loads((folder / "record.json").read_text())["pages"]["metrics"]
    own = run.record.document["pages"]["metrics"]
    assert metrics["word_perplexity_base"]["value"] == own["word_perplexity"]["value"]
    assert metrics["word_perplexity"]["value"] > own["word_perplexity"]["value"]
    assert main(["compare", str(folder), str(run.folder)]) == 0
    assert "word PPL" in capsys.readouterr().out


def test_edited_perplexities_are_found(run, tmp_path):
    def flatter(record):
        record["pages"]["metrics"]["word_perplexity"]["value"] *= 0.9

    folder = forged(run.folder, tmp_path / "run", flatter)
    with pytest.raises(RunFolderError, match="word_perplexity"):
        open_run(folder)


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"stride": 64}, ProtocolError, "no stride of 64"),
        ({"limit": 3}, ProtocolError, "no max-windows of 3"),
        ({"bos": "always"}, ProtocolError, "no bos of always"),
        ({"stop_when": "ppl±5%"}, ProtocolError, "no stop-when of ppl"),
        ({"shard": "1/2"}, UsageError, "counts the words of whole pages"),
        ({"group_by": "of"}, ProtocolError, "no groups"),
    ],
)
def test_what_pages_have_no_place_for_is_refused(more, error, said, data, pages_file, tmp_path):
    with pytest.raises(error, match=said):
        api.measure(
            data / "stories260K", protocol="lm-eval", dataset_file=pages_file, text_field="page",
            output=tmp_path / "runs", **more,
        )  # fmt: skip
    assert not list(tmp_path.glob("runs/*"))
