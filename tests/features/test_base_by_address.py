"""A base by its address, which is fetched and not run: over https, and from the hub."""

import io
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants
from support.fake_hub import COMMIT, Repo, call
from support.fake_hub import serve as serve_hub
from support.https_files import Files, make_certificate, serve
from support.programs import error_of

import scoremode
from scoremode.cli.main import main
from scoremode.lib.hub import downloads
from scoremode.reference import address
from scoremode.reference.stored import StoredReference
from scoremode.results.folders.store import find_runs, read_record, read_scores, seal_of

CPU = ["--device", "cpu", "--max-memory", "16M", "--quiet"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache."""
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "assets"))
    address.located.cache_clear()
    return tmp_path / "assets" / "scoremode" / "references"


@pytest.fixture
def served(kept, certificate, cache, monkeypatch) -> Iterator[Files]:
    """The reference at an https address, in a folder `ref`."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serve(files_in(kept, "ref/"), certificate) as served:
        yield served


def files_in(folder: Path, below: str = "") -> dict[str, bytes]:
    return {
        f"{below}{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def kld(quant: Path, base: object, output: Path, *flags: str) -> dict:
    """The record of one run."""
    words = ["kld", str(quant), "--reference", str(base), "-o", str(output), *flags, *CPU]
    assert main(words) == 0
    ((_, record),) = find_runs(output, print)
    return record


def refusal(quant: Path, base: object, output: Path, capsys, *flags: str) -> str:
    """The one line with which the command ends; it leaves no run."""
    address.located.cache_clear()
    words = ["kld", str(quant), "--reference", str(base), "-o", str(output), *flags, *CPU]
    code = main(words)
    assert code in (1, 2)
    assert not output.exists() or not list(find_runs(output, print))
    return error_of(capsys.readouterr().err)


def partial_files(cache: Path) -> list[str]:
    """What is there of files, and of folders, that aren't whole."""
    return sorted(p.name for p in cache.rglob(".*") if not p.name.endswith(".lock"))


def test_a_base_over_https_gives_the_scores_of_the_folder(kept, quant, served, cache, tmp_path):
    by_folder = kld(quant, kept, tmp_path / "a")
    record = kld(quant, f"{served.address}/ref", tmp_path / "b")
    assert record["metrics"] == by_folder["metrics"]
    assert record["reference"]["sha256"] == by_folder["reference"]["sha256"]
    assert record["reference"]["source"] == f"{served.address}/ref"
    assert record["reference"]["replay"] == by_folder["reference"]["replay"]
    ((one, _),), ((two, _),) = (list(find_runs(tmp_path / name, print)) for name in "ab")
    a, b = read_scores(one).columns(), read_scores(two).columns()
    assert all(np.array_equal(a[name], b[name]) for name in a)
    # Each file once; the command itself is recorded as it was given.
    assert sorted(name for name, _ in served.requests) == sorted(served.files)
    # Nothing is asked for again but the record, which may be another one.
    served.requests.clear()
    address.located.cache_clear()
    kld(quant, f"{served.address}/ref/", tmp_path / "c")
    assert served.requests == [("ref/record.json", None)]
    assert partial_files(cache) == []


def test_an_audit_finds_the_base_by_its_address(quant, served, cache, tmp_path, capsys):
    kld(quant, f"{served.address}/ref", tmp_path / "runs", "--limit", "5")
    shutil.rmtree(cache)
    for flags, held in (([], []), (["--reference", f"{served.address}/ref"], ["kept files"])):
        address.located.cache_clear()
        assert main(["check", str(tmp_path / "runs"), *flags, "--format", "json"]) == 0
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        found = {f["name"]: f["status"] for f in run["findings"] if f["part"] == "reference"}
        assert [name for name in ("kept files",) if found.get(name) == "held"] == held, found
    assert found["log-probabilities"] == "held"


def test_a_limit_fetches_the_first_states_alone(kept, quant, served, cache, tmp_path):
    """And they give what a whole reference with that limit gives."""
    names = [file["name"] for file in read_record(kept)["kept"]["states"]["files"]]
    # One window more than the first pass has.
    limit = read_record(kept)["kept"]["states"]["files"][0]["rows"] // 63 + 1
    record = kld(quant, f"{served.address}/ref", tmp_path / "a", "--limit", str(limit))
    asked = [name for name, _ in served.requests if "/states/" in name]
    assert asked == [f"ref/{name}" for name in names[:2]] and len(names) > 2
    assert record["plan"]["windows"] == limit
    assert record["metrics"] == kld(quant, kept, tmp_path / "b", "--limit", str(limit))["metrics"]
    # More of it later.
    served.requests.clear()
    kld(quant, f"{served.address}/ref", tmp_path / "c")
    asked = [name for name, _ in served.requests if "/states/" in name]
    assert asked == [f"ref/{name}" for name in names[2:]]


def test_what_will_be_fetched_is_said_before(kept, quant, served, cache, tmp_path, capsys):
    head = read_record(kept)["kept"]["head"]
    size = 2 * head["vocabulary"] * head["width"]
    states = read_record(kept)["kept"]["states"]
    first = states["files"][0]["rows"] * states["width"] * 2
    words = ["kld", str(quant), "--reference", f"{served.address}/ref", "-o", str(tmp_path / "a")]
    assert main([*words, "--dry-run", "--limit", "4", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["download"] == size + first
    assert f"ref: {(size + first) / 1e9:.3g} GB of states and head to fetch" in err
    assert not any("states" in name or "head" in name for name, _ in served.requests)
    source = f"{served.address}/ref"
    run = scoremode.kld(quant, reference=source, limit=4, output=tmp_path / "b", device="cpu")
    document = run.record.document
    assert document["reference"]["source"] == source and document["plan"]["windows"] == 4


def test_a_connection_that_breaks_off_goes_on(kept, quant, served, cache, tmp_path, capsys):
    head = len(served.files["ref/head.safetensors"])
    # Within one command, and beyond its tries in the next.
    served.cuts["ref/states/00001.safetensors"] = [100, 200]
    served.cuts["ref/head.safetensors"] = [1000, 1000, 0, 0, 0]
    line = refusal(quant, f"{served.address}/ref", tmp_path / "a", capsys)
    assert "head.safetensors: 127.0.0.1:" in line and "broke off at byte 2,000" in line
    assert partial_files(cache) == [".head.safetensors.part"]
    record = kld(quant, f"{served.address}/ref", tmp_path / "b")
    ranges = [of for name, of in served.requests if name == "ref/head.safetensors"]
    assert ranges == [None, "bytes=1000-", *["bytes=2000-"] * 4] and head > 2000
    ranges = [of for name, of in served.requests if name == "ref/states/00001.safetensors"]
    assert ranges == [None, "bytes=100-", "bytes=300-"]
    assert record["metrics"] == kld(quant, kept, tmp_path / "c")["metrics"]
    assert partial_files(cache) == []


def test_bytes_are_counted_with_those_that_were_there(kept, served, cache, monkeypatch):
    stored = StoredReference(address.located(f"{served.address}/ref"))
    rows = stored.record.plan.scored
    files = [name for name in served.files if "states" in name]
    part = stored.path / "states" / ".00000.safetensors.part"
    part.parent.mkdir()
    part.write_bytes(served.files["ref/states/00000.safetensors"][:5000])
    counts: list[tuple[float, int]] = []
    monkeypatch.setattr(downloads, "tell", lambda new, total: counts.append((new, total)))
    size = address.pending(stored, rows)
    address.complete(stored, rows)
    # Of the head, then of the states, each from 0; headers come on top.
    totals = list(dict.fromkeys(total for _, total in counts))
    assert sum(totals) == size and [new for new, _ in counts].count(0) == 2
    assert (5000, totals[1]) in counts
    sent = sum(len(served.files[name]) for name in [*files, "ref/head.safetensors"])
    assert sum(new for new, _ in counts) == sent
    assert ("ref/states/00000.safetensors", "bytes=5000-") in served.requests
    assert address.pending(stored, rows) == 0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("scores.parquet", "scores.parquet: its sha256 is"),
        ("tokens.i32", "tokens.i32: its sha256 is"),
        ("states/00001.safetensors", "states/00001.safetensors: its sha256 is"),
        ("head.safetensors", "head.safetensors: the weight of its head has the sha256"),
    ],
)
def test_another_file_than_the_record_has(name, says, quant, served, cache, tmp_path, capsys):
    content = served.files[f"ref/{name}"]
    served.files[f"ref/{name}"] = content[:-1] + bytes([content[-1] ^ 1])
    line = refusal(quant, f"{served.address}/ref", tmp_path / "a", capsys)
    assert f"{served.address}/ref: {says}" in line and "and the record has" in line
    assert partial_files(cache) == []
    # Repaired, it is fetched.
    served.files[f"ref/{name}"] = content
    kld(quant, f"{served.address}/ref", tmp_path / "b")


@pytest.mark.parametrize("name", ["scores.parquet", "states/00000.safetensors", "head.safetensors"])
def test_a_file_larger_than_the_record_says(name, quant, served, cache, tmp_path, capsys):
    served.files[f"ref/{name}"] += bytes(10_000_000)
    line = refusal(quant, f"{served.address}/ref", tmp_path / "a", capsys)
    assert f"{name}: " in line and "and its record allows" in line
    assert partial_files(cache) == []


def edited(served: Files, change: Callable[[dict], None]) -> None:
    """Has the server's record changed, and sealed anew."""
    record = json.loads(served.files["ref/record.json"])
    change(record)
    record["sha256"] = seal_of(record)
    served.files["ref/record.json"] = json.dumps(record).encode()


def test_a_record_that_names_files_elsewhere(quant, served, cache, tmp_path, capsys):
    for change, says in (
        (lambda kept: kept["states"]["files"][1].update(name="../../../x"), "its states are in"),
        (lambda kept: kept["tokens"].update(name="/etc/passwd"), "its tokens are in '/etc/passwd'"),
        (lambda kept: kept["head"].update(file="../head"), "its head are in '../head'"),
    ):
        before = served.files["ref/record.json"]
        edited(served, lambda record, change=change: change(record["kept"]))
        line = refusal(quant, f"{served.address}/ref", tmp_path / "a", capsys)
        assert f"error: {served.address}/ref: record.json: was changed: {says}" in line
        served.files["ref/record.json"] = before
    assert [name for name, _ in served.requests] == ["ref/record.json"] * 3
    assert partial_files(cache) == [] and not list(cache.glob("*.address"))


def test_a_path_to_a_head_is_never_followed(base, quant, served, cache, tmp_path, capsys):
    """The record names a checkpoint that is here: it may be any file of the user's."""

    def leave(record: dict) -> None:
        where = {"source": str(base), "path": str(base), "weight": "model.embed_tokens.weight"}
        record["kept"]["head"] |= {"file": None, "checkpoint": where | {"bias": None}}

    edited(served, leave)
    line = refusal(quant, f"{served.address}/ref", tmp_path / "a", capsys)
    assert f"its head was left in the checkpoint {base}, and the hub has none such" in line


def test_redirects(quant, served, cache, certificate, tmp_path, capsys):
    for name in ("record.json", "states/00000.safetensors"):
        served.redirects[f"ref/{name}"] = "https://localhost:1/elsewhere?token=secret"
        line = refusal(quant, f"{served.address}/ref", tmp_path / "a", capsys)
        assert "redirects to https://localhost, another host" in line and "secret" not in line
        served.redirects[f"ref/{name}"] = f"http{served.address[5:]}/ref/{name}"
        assert "redirects to http://" in refusal(
            quant, f"{served.address}/ref", tmp_path / "a", capsys
        )
        del served.redirects[f"ref/{name}"]
    # On the host itself they are followed.
    served.files["moved"] = served.files.pop("ref/tokens.i32")
    served.redirects["ref/tokens.i32"] = "/moved"
    kld(quant, f"{served.address}/ref", tmp_path / "b")


def test_addresses_that_are_not_read(quant, cache, tmp_path, capsys):
    for given, says in (
        ("ftp://me:secret@host/ref", "ftp://host…: no reference is read from there"),
        ("http://host/ref", "http://host…: no reference is read from there"),
        ("s3://bucket/ref", "s3://bucket…: no reference is read from there"),
        ("https://me:secret@host/ref", "without a user's name, a password"),
        ("https://host/ref?token=secret", "without a user's name, a password, a query"),
        ("git+ssh://me@host/ref", "git+ssh://host…: no reference is read from there"),
        ("hub:name", "hub:name: is no address: give hub:ORG/NAME"),
        ("hub:org/name@", "hub:org/name@: is no address"),
        ("hub:../name", "Repo id must"),
        ("hub://org/name", "hub://org/name: is no address"),
    ):
        line = refusal(quant, given, tmp_path / "a", capsys)
        assert says in line and "secret" not in line, line
    assert not cache.exists()
    line = refusal(quant, "hub:a/b", tmp_path / "a", capsys, "--reference-revision", "v1")
    assert "--reference-revision v1: an address has its own" in line


def test_no_reference_and_no_certificate(quant, served, cache, tmp_path, capsys, monkeypatch):
    line = refusal(quant, f"{served.address}/none", tmp_path / "a", capsys)
    assert f"{served.address}/none: 127.0.0.1:" in line and "404" in line
    served.files["page/record.json"] = b"<html>sign in</html>"
    line = refusal(quant, f"{served.address}/page", tmp_path / "a", capsys)
    assert f"error: {served.address}/page: record.json: " in line
    monkeypatch.delenv("SSL_CERT_FILE")
    assert "CERTIFICATE_VERIFY_FAILED" in refusal(
        quant, f"{served.address}/ref", tmp_path / "a", capsys
    )
    assert partial_files(cache) == []


def test_another_tokenizer(quant, served, cache, tmp_path, capsys):
    """The tokens are the base's: a model whose tokenizer makes others of their text isn't compared."""
    model = shutil.copytree(quant, tmp_path / "model")
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = dict(
        zip(
            tokenizer["model"]["vocab"], reversed(tokenizer["model"]["vocab"].values()), strict=True
        )
    )
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "token" in refusal(model, f"{served.address}/ref", tmp_path / "a", capsys)
    assert not any("states" in name for name, _ in served.requests)


# Commands, each with the exit code, what it says, and what it prints.
SCRIPT = """
import contextlib, io, json
from scoremode.cli.main import main
from scoremode.reference import address
said = []
for words in json.loads(%r):
    address.located.cache_clear()
    err, out = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
        code = main(words)
    said.append([code, err.getvalue(), out.getvalue()])
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def on_hub(base, quant, text, tmp_path_factory) -> dict:
    """What commands with references of a hub said, and asked for, by their names. The references are of
    a base of the hub, and their heads are left in its checkpoint."""
    folder = tmp_path_factory.mktemp("hub")
    (folder / "text.txt").write_text(text)
    model, found = files_in(base), {}
    with serve_hub({"org/base": Repo(model)}) as hub:

        def commands(name: str, *given: list[str], home: str = "home") -> None:
            hub.requests.clear()
            found[name] = call(hub.endpoint, folder / home, SCRIPT % json.dumps(given))
            found[f"{name} asked"] = list(hub.requests)
            found[f"{name} left"] = partial_files(folder / home / "assets")

        text_flags = ["-f", str(folder / "text.txt"), "--protocol", "disjoint", "-c", "64"]
        kept = ["reference", "org/base", "-o", str(folder / "ref"), "--head", "checkpoint"]
        kept += [*text_flags, "--batch-size", "4", "--dtype", "bfloat16"]
        commands("kept", [*kept, *CPU], home="base's")

        # What is refused comes first: the cache is by content, whatever repository that is from.
        files = files_in(folder / "ref")
        lacks = {k: v for k, v in files.items() if k != "states/00000.safetensors"}
        repos = {
            "huge": files | {"scores.parquet": bytes(20_000_000)},
            "wrong": files | {"tokens.i32": files["tokens.i32"][::-1]},
            "head": files,
            "lacks": lacks,
        }
        hub.repos |= {f"datasets/org/{name}": Repo(has) for name, has in repos.items()}
        spoiled = bytearray(model["model.safetensors"])
        at = 8 + int.from_bytes(spoiled[:8], "little")
        header = json.loads(spoiled[8:at])
        spoiled[at + header["model.embed_tokens.weight"]["data_offsets"][0] + 100] ^= 1
        hub.repos["org/base"] = Repo(model | {"model.safetensors": bytes(spoiled)})
        named = [*(f"org/{name}" for name in ("huge", "wrong", "head", "none")), "org/head@v9"]
        compare, none = ["kld", str(quant), *CPU, "--reference"], ["-o", str(folder / "none")]
        commands("refused", *([*compare, f"hub:{name}", *none] for name in named))

        hub.repos["org/base"] = Repo(model)
        hub.repos["datasets/org/ref"] = Repo(files)
        # The states break off, and the library goes on with them.
        hub.cuts["states/00000.safetensors"] = [5000]
        runs = [folder / name for name in "ab"]
        commands(
            "taken",
            [*compare, "hub:org/lacks", *none],
            [*compare, "hub:org/ref", "-o", str(runs[0])],
            [*compare, f"hub:org/ref@{COMMIT}", "-o", str(runs[1])],
        )
        found["runs"] = [next(iter(dict(find_runs(run, print)).values())) for run in runs]

        sent = ["--push", "hub:org/new", "--yes", "--license", "cc-by-sa-4.0"]
        commands(
            "pushed",
            ["reference", str(folder / "ref"), "--push", "hub:org/ref", *sent[2:]],
            ["reference", str(folder / "ref"), *sent],
            ["reference", str(folder / "ref"), *sent],
            ["references", "entry", "hub:org/new", "--format", "json"],
            [*compare, "hub:org/new", "-o", str(folder / "c")],
        )
        found["new"] = hub.repos["datasets/org/new"].files
        entry = json.loads(found["pushed"][3][2])
        index = {"schema": "scoremode.references", "schema_version": 1, "references": entry}
        indexed = {"references.json": json.dumps(index).encode()}
        hub.repos["datasets/org/index"] = Repo(indexed)
        (folder / "index.json").write_bytes(indexed["references.json"])
        search = ["references", "search"]
        commands(
            "searched",
            [*search, "org/base", "--index", "hub:org/index", "--format", "json"],
            [*search, str(base), "--index", str(folder / "index.json"), "--format", "json"],
            [*search, "org/other", "--index", "hub:org/index"],
        )
        found |= {"kept files": files, "entry": entry[0]}
    return found


def test_a_base_of_the_hub_is_not_fetched_but_for_its_head(on_hub):
    for code, err, _ in (*on_hub["kept"], *on_hub["taken"][1:]):
        assert code == 0, err
    assert on_hub["taken left"] == []
    asked = [path for method, path in on_hub["taken asked"] if "/resolve/" in path]
    got = [path for method, path in on_hub["taken asked"] if method == "GET" and path in asked]
    states = [path for path in got if "/org/ref/" in path and "/states/" in path]
    assert len(states) == 1 + len(set(states)), "one broke off; the second command fetches none"
    # Of the base the header and the head, by their bytes, and none of its small files.
    of_base = [path for path in got if path.startswith("/org/base/")]
    assert {path.rpartition("/")[2] for path in of_base} == {"model.safetensors"}
    # A branch is asked for its record alone: it may move, and all else is of the commit that had it.
    assert {path.rpartition("/")[2] for path in asked if "/main/" in path} == {"record.json"}
    one, two = on_hub["runs"]
    assert one["reference"]["source"] == two["reference"]["source"] == f"hub:org/ref@{COMMIT}"
    assert one["reference"]["checkpoint"]["source"] == f"hub:org/base@{COMMIT}"
    # To the bit on most CPUs, whose matmuls don't look at how many rows there are.
    assert one["reference"]["replay"]["rms"] < 1e-6 and one["metrics"] == two["metrics"]


def test_what_a_hub_has_may_not_be_what_its_record_says(on_hub):
    said = [*on_hub["refused"][:3], on_hub["taken"][0]]
    for (code, err, _), name, says in (
        (said[0], "huge", "scores.parquet: has 20,000,000 bytes, and its record allows"),
        (said[1], "wrong", "tokens.i32: its sha256 is"),
        (said[2], "head", "head.safetensors: the weight of its head has the sha256"),
        (said[3], "lacks", "has no states/00000.safetensors"),
    ):
        assert code == 1 and f"hub:org/{name}@{COMMIT}: {says}" in error_of(err), err
    assert on_hub["refused left"] == []


def test_no_such_repository_or_revision(on_hub):
    (one, none, _), (two, revision, _) = on_hub["refused"][3:]
    assert one == two == 1 and "hub:org/none: 127.0.0.1:" in error_of(none)
    assert "hub:org/head@v9: 127.0.0.1:" in error_of(revision)


def test_a_reference_is_published_and_never_over_another(on_hub):
    other, sent, again, _, compared = on_hub["pushed"]
    for name, (code, err, _) in (("ref", other), ("new", again)):
        assert code == 1 and f"hub:org/{name}: has a reference already" in error_of(err)
    code, err, out = sent
    assert code == 0, err
    assert out.splitlines()[-1] == f"hub:org/new@{COMMIT}" and out.startswith(
        "---\nlicense: cc-by-"
    )
    new = dict(on_hub["new"])
    card = new.pop("README.md").decode()
    assert new.pop(".gitattributes") == b"" and new == on_hub["kept files"]
    assert "scoremode kld MODEL --reference hub:org/new\n" in card
    assert f"scoremode reference org/base --revision {COMMIT} --protocol disjoint" in card
    assert "/" not in card[card.index("scoremode reference") :].split("-f ")[1].split()[0]
    assert compared[0] == 0, compared


def test_an_index_is_searched_by_name_and_by_files(on_hub):
    by_name, by_files, none = on_hub["searched"]
    for code, err, out in (by_name, by_files):
        assert code == 0 and json.loads(out) == [on_hub["entry"]], err
    record = on_hub["runs"][0]
    entry = on_hub["entry"]
    assert entry["address"] == f"hub:org/new@{COMMIT}" and entry["base"] == f"hub:org/base@{COMMIT}"
    assert entry["sha256"] == record["reference"]["states_sha256"]
    assert entry["plan_sha256"] == record["plan"]["sha256"]
    assert none[0] == 1 and "hub:org/index: has no reference of org/other among its 1" in none[1]


def test_what_a_push_needs(kept, tmp_path, capsys, monkeypatch):
    pushed = ["reference", str(kept), "--push", "hub:org/new"]
    for flags, says in (
        ([], "--push hub:org/new: needs --license NAME"),
        (["--license", "mit"], "--push hub:org/new: there is no terminal to ask on: give --yes"),
        (["--license", "mit", "--yes", "--limit", "3"], "takes no flags of a run"),
    ):
        monkeypatch.setattr("scoremode.reference.publish.check_new", lambda _: None)
        assert main([*pushed, *flags]) == 2
        assert says in error_of(capsys.readouterr().err)
    for flag in (["--license", "mit"], ["--yes"]):
        assert main(["reference", str(kept), *flag]) == 2
        assert f"{' '.join(flag)}: needs --push" in error_of(capsys.readouterr().err)


def test_a_no_sends_nothing(kept, capsys, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("scoremode.reference.publish.check_new", lambda _: None)
    monkeypatch.setattr("scoremode.reference.publish.push", lambda *_: pytest.fail("it was sent"))
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert main(["reference", str(kept), "--push", "hub:org/new", "--license", "mit"]) == 1
    out, err = capsys.readouterr()
    assert "GB, as hub:org/new? [y/N]" in out and "nothing was sent" in err
    assert "paths of the machine" in err


def test_a_head_that_nobody_finds_is_not_published(base, text, tmp_path, capsys, monkeypatch):
    (tmp_path / "text").write_text(text)
    words = [
        "reference",
        str(base),
        "-o",
        str(tmp_path / "ref"),
        "--head",
        "checkpoint",
        "-c",
        "64",
    ]
    assert main([*words, "-f", str(tmp_path / "text"), *CPU]) == 0
    monkeypatch.setattr("scoremode.reference.publish.check_new", lambda _: None)
    pushed = ["--push", "hub:org/new", "--license", "mit", "--yes"]
    assert main(["reference", str(tmp_path / "ref"), *pushed]) == 1
    line = error_of(capsys.readouterr().err)
    assert f"its head was left in {base}, where nobody finds it" in line


def test_an_index_that_is_none(tmp_path, capsys):
    file = tmp_path / "index.json"
    for content, says in (
        (b"[]", "is no index of references: Expected"),
        (b"{", "is no index of references"),
        (b'{"schema": "scoremode.references", "schema_version": 2, "references": []}', "2"),
    ):
        file.write_bytes(content)
        assert main(["references", "search", "m", "--index", str(file)]) == 1
        assert f"{file}: " in (line := error_of(capsys.readouterr().err)) and says in line
    for words, says in (
        (["search", "m"], "give --index"),
        (["search", "m", "--index", "ftp://x/y"], "no reference is read from there"),
        (["entry", "here"], "here: is no address"),
        (["find", "here"], "references find: give search MODEL"),
        (["entry", "hub:a/b", "--index", "x"], "changes nothing"),
    ):
        assert main(["references", *words]) == 2
        assert says in error_of(capsys.readouterr().err)
