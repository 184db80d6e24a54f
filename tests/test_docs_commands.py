"""The pages' commands: the program takes every one, and those that this machine can run, run.

A page's names stand for files and folders of the same names, which `place` has: a name that it lacks
fails the command. Launch files (`# file: …`) are tests/test_scale_model.py's.
"""

import gzip
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from support.chats.runs import chat_model, write_rows
from support.gguf.golden import in_blocks, rebuild, rewrite
from support.gguf.models import make_folder

from scoremode.cli.main import main, parsed_command
from scoremode.demo.quantize import VARIANTS, quantize_folder

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
PAGES.remove("docs/log.md")
# More than any window of the pages; the models' rotations are of any length.
POSITIONS = 1 << 18
TEXTS = {"-f", "--text", "--file", "--dataset", "--dataset-file", "--preset", "--conversations"}
# Where none is given, it is the hub's WikiText-2: here another text, and short windows.
WIKI, SHORT = ["-f", "wiki.test.raw"], ["-c", "128", "--stride", "128"]
WINDOWS = {"-c", "--context-length", "--protocol", "--conversations", "--preset"}
# What has a text and windows of its own.
KEPT = {"ref", "DIR", "reference"}
MEASURES = {"ppl", "kld", "reference", "plan", "attribute", "ladder"}
# Why a command isn't run here → what in its words tells.
NOT_HERE = {
    "several processes": r"^(srun|torchrun) |--devices ",
    "vLLM": r"--engines? \S*vllm|--vllm-python ",
    "a server": r"--engine http",
    "a GPU": r"cuda",
    "llama.cpp's own file, run by tests/features/test_kept.py": r"^scoremode kld quant\.kld ",
    "lm-evaluation-harness": r"^scoremode tasks ",
    "run by tests/cli/test_demo.py and tests/features/test_verify.py": r"^scoremode (demo|verify) ",
    "the hub": r"--push |--dataset |hub:|https://|--preset (?!.*--dataset-file)|"
    r" (org|bartowski|HuggingFaceH4)/",
}


def blocks(page: str) -> Iterator[str]:
    for block in re.findall(r"^```\w*\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.S | re.M):
        if "# file: " not in block:
            yield block.replace("\\\n", " ")


def commands(page: str) -> list[str]:
    """The lines that call the program, as they stand on a page."""
    call = re.compile(r"(\$ )?((srun|torchrun|uvx|pipx) .*)?\bscoremode [a-z]")
    return [line for block in blocks(page) for line in block.splitlines() if call.match(line)]


def inline_commands(page: str) -> list[str]:
    """Those in a sentence or a table that leave nothing out."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text("utf-8"), flags=re.S | re.M)
    spans = (" ".join(span.split()) for span in re.findall(r"`(scoremode [a-z]+ [^`]+)`", text))
    return [span for span in spans if "…" not in span]


def words_of(line: str) -> list[str]:
    """A command's words behind the program's name."""
    words = shlex.split(line.removeprefix("$ "), comments=True)
    return words[words.index("scoremode") + 1 :]


def is_run_here(line: str) -> bool:
    """What `$ ` begins is shown with what it printed, on another machine."""
    command = " ".join(shlex.split(line, comments=True)) + " "
    return line[0] != "$" and not any(re.search(told, command) for told in NOT_HERE.values())


RUN_HERE = sorted({shlex.join(words_of(c)) for p in PAGES for c in commands(p) if is_run_here(c)})


@pytest.mark.parametrize("page", PAGES)
def test_the_program_takes_every_command(page):
    for line in commands(page) + inline_commands(page):
        parsed_command(words_of(line))


def test_pages_have_commands_and_most_of_them_run():
    every = [line for page in PAGES for line in commands(page)]
    assert len(every) > 100 and len(RUN_HERE) > 60


def asked(command: str) -> list[str]:
    """The words that are run: of WikiText-2's own text, which is known by its hash, another one's; many
    passes where there are to be shards; for a GGUF file its own base."""
    command = command.replace("--dataset-file wiki.test.raw", "-f wiki.test.raw")
    words = [w for word in shlex.split(command) if word != "…" for w in matches(word)]
    given = {word.partition("=")[0] for word in words[1:]} - {*written(words)}
    if words[0] in MEASURES and not given & KEPT:
        words += WIKI * (not given & TEXTS) + SHORT * (not given & WINDOWS)
    if "--shard" in given:
        words += ["--batch-size", "1", "--max-memory", "2MB"]
    if words[0] == "generate":
        words += ["--max-new-tokens", "8"]
    if any(word.endswith(".gguf") for word in words):
        words = ["GGUF-BASE" if word == "BASE" else word for word in words]
    return words


def matches(word: str) -> list[str]:
    """What a shell makes of a word."""
    return (sorted(map(str, Path().glob(word))) if "*" in word else []) or [word]


def written(words: list[str]) -> Iterator[str]:
    """Names of what a command writes, which may not be there."""
    flags = ("-o", "--export-llama-cpp", "--write-recipe", "--plots")
    return (value for flag, value in pairwise(words) if flag in flags)


@pytest.fixture(scope="module")
def place(demo, tmp_path_factory) -> Path:
    """A folder with what the pages' names stand for."""
    place = tmp_path_factory.mktemp("pages")
    heldout = (demo / "heldout.txt").read_text(encoding="utf-8")
    _write_models(demo, place)
    _write_texts(demo, heldout, place)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)

        def run(command: str) -> None:
            assert main([*asked(command), "--quiet"]) == 0, command

        for model in ("W8A16", "W4A16"):
            run(f"kld {model} --reference BASE")
        shutil.copytree("runs", "demo/runs")
        (one,), (other,) = (list(Path("runs").glob(f"*{model}*")) for model in ("W8A16", "W4A16"))
        for name in ("RUN", "YOURS", "runs/RUN", "runs/Q5"):
            shutil.copytree(one, name)
        for name in ("THEIRS", "runs/Q4"):
            shutil.copytree(other, name)
        run("reference BASE -o ref")
        run("reference BASE -f text.txt --protocol llama.cpp -o DIR --export-llama-cpp base.kld")
        for i in range(1, 5):
            run(f"kld MODEL --reference ref -f wiki.test.raw --shard {i}/4 -o shards")
        for i in range(1, 4):
            run(f"kld MODEL --reference ref --shard {i}/3 -o shard-{i}")
        shutil.copytree("DIR", "reference")
    return place


def _write_models(demo: Path, place: Path) -> None:
    """The demo's model and its quants, which take long windows and have a chat template."""
    chat_model(demo, place / "BASE")
    config = json.loads((place / "BASE/config.json").read_text())
    config["max_position_embeddings"] = POSITIONS
    (place / "BASE/config.json").write_text(json.dumps(config))
    names = {
        "W8A16": ["MODEL", "QUANT", "Q1"],
        "W4A16-g32": ["W4A16", "Q2", "DRAFT"],
        "W3A16-g32": ["W3A16"],
    }
    for variant in VARIANTS:
        for name in [variant.name, *names.get(variant.name, [])] if variant.name in names else []:
            quantize_folder(place / "BASE", place / name, variant)
            shutil.copy(place / "BASE/chat_template.jinja", place / name)
    shutil.copytree(place / "BASE", place / "SmolLM2-135M-Instruct")
    for name in ("Q1", "Q2"):
        shutil.copytree(place / name, place / "quants" / name)
    shutil.copytree(place / "BASE", place / "demo/models/dense")
    shutil.copytree(place / "W4A16-g32", place / "demo/models/W4A16-g32")
    shutil.copy(place / "QUANT/config.json", place)
    (place / "REPO").mkdir()
    (place / "REPO/README.md").write_text("# A quant\n")
    made = make_folder(place / "GGUF-BASE", "llama", max_position_embeddings=POSITIONS)
    whole = rebuild(made, "llama", place / "whole.gguf")

    def longer(metadata, tensors):
        metadata["llama.context_length"] = POSITIONS

    long = rewrite(whole, place / "long.gguf", longer)
    for name in ("m-Q4_K_M", "model-Q4_K_M", "QUANT", "Q4", "Q5", "Q6", "Q8"):
        kind = {"Q5": "Q5_0", "Q8": "Q8_0"}.get(name, "Q4_0")
        in_blocks(long, place / f"{name}.gguf", kind)


def _write_texts(demo: Path, heldout: str, place: Path) -> None:
    parts = [heldout[i : i + 1500] for i in range(0, 9000, 1500)]
    # As WikiText's raw file has its articles.
    pages = "".join(f" = Page {i} = \n \n {part} \n" for i, part in enumerate(parts))
    (place / "wiki.test.raw").write_text(pages, encoding="utf-8")
    (place / "demo/heldout.txt").write_text(heldout[:6000], encoding="utf-8")
    for i, name in enumerate(("text", "eval", "prose", "code", "python", "book")):
        text = heldout[1500 * i : 1500 * i + (4500 if i < 2 else 1500)]
        (place / f"{name}.txt").write_text(text, encoding="utf-8")

    def rows(name: str, rows: list[dict]) -> None:
        (place / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    rows("set.jsonl", [{"text": part, "domain": f"d{i % 2}"} for i, part in enumerate(parts)])
    for name in ("calib.jsonl", "calibration.jsonl"):
        rows(name, [{"text": part} for part in parts[:2]])
    for name in ("p.jsonl", "prompts.jsonl"):
        rows(name, [{"prompt": "The same value"}, {"prompt": "A list of names"}])
    (place / "prompts.txt").write_text("The same value\n")
    write_rows(demo, place / "chats.jsonl", 6)
    c4 = "".join(json.dumps({"text": part[:20]}) + "\n" for part in parts) * 200
    with gzip.open(place / "c4-validation.00000-of-00008.json.gz", "wt") as file:
        file.write(c4)
    # The page's own, of what is here.
    (sweep,) = re.findall(r"^```toml\n(.*?)^```", (ROOT / "docs/sweep.md").read_text(), re.S | re.M)
    for key, here in {"base": '"BASE"', "models": '["QUANT"]', "texts": '["text.txt"]'}.items():
        sweep, count = re.subn(rf"^{key} = .*", f"{key} = {here}", sweep, flags=re.M)
        assert count == 1, key
    (place / "sweep.toml").write_text(sweep)


@pytest.mark.parametrize("command", RUN_HERE)
def test_a_command_runs(command, place, tmp_path, monkeypatch, capsys):
    here = shutil.copytree(place, tmp_path / "here")
    monkeypatch.chdir(here)
    words = asked(command)
    for name in written(words):
        if (here / name).is_dir():
            shutil.rmtree(here / name)
        else:
            (here / name).unlink(missing_ok=True)
    code = main(words)
    out, err = capsys.readouterr()
    # A gate that is missed is told so; a text as short as this has no interval to meet it.
    gates = re.search(r"--(max-kld|max-ppl|min-top1|gate-on)", command)
    assert code == 0 or (gates and code == 4 and "gate" in err), (words, code, err)
    assert out or all((here / name).exists() for name in written(words))
