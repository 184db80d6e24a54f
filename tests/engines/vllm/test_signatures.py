"""The check of vLLM's source sees whatever is missing. Needs no vLLM; one that is there is checked."""

import importlib.util
from collections import defaultdict
from pathlib import Path

import pytest

from scoremode.engines.vllm.signatures import (
    DECODING,
    REQUIREMENTS,
    check_signatures,
    main,
    v2_scores,
)

_MEMBERS = [
    (of, file, name, member)
    for of, requirements in (("scoring", REQUIREMENTS), ("decoding", DECODING))
    for file, classes in requirements.items()
    for name, wanted in classes.items()
    for member in wanted.split()
]
# Of these there is a line of their own, which would be the second problem.
_METHODS = {(file, *name.split(".")) for _, file, name, _ in _MEMBERS if "." in name}


def write_package(root: Path, *, without: tuple[str, str, str] | None = None) -> Path:
    """A package that has just what is required, less one member of one name in a file."""
    classes: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    members: dict[tuple[str, str], list[str]] = defaultdict(list)
    for _, file, name, member in _MEMBERS:
        here = members[file, name]
        here += [member] if member not in here and (file, name, member) != without else []
    for (file, name), wanted in members.items():
        owner, _, method = name.partition(".")
        if method:
            classes[file][owner].append(f"    def {method}(self, {', '.join(wanted)}): ...")
        else:
            classes[file][owner] += [f"    {member}: int" for member in wanted]
    for file, owners in classes.items():
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        body = ["\n".join([f"class {o}:", "    x = 0", *lines]) for o, lines in owners.items()]
        path.write_text("\n\n".join(body) + "\n")
    return root


def test_nothing_is_missing_where_all_is_there(tmp_path):
    root = write_package(tmp_path)
    assert check_signatures(root) == check_signatures(root, DECODING) == []


@pytest.mark.parametrize(
    ("of", "file", "name", "member"), [one for one in _MEMBERS if one[1:] not in _METHODS]
)
def test_each_missing_member_is_named(of, file, name, member, tmp_path):
    root = write_package(tmp_path, without=(file, name, member))
    (problem,) = check_signatures(root, DECODING if of == "decoding" else REQUIREMENTS)
    assert problem.startswith(f"{name} in vllm/") and problem.endswith(f" has no {member}")


def test_a_missing_class_and_a_missing_file_are_named(tmp_path):
    write_package(tmp_path)
    (tmp_path / "pooling_params.py").write_text("class Other:\n    pass\n")
    (tmp_path / "config" / "vllm.py").unlink()
    assert check_signatures(tmp_path) == [
        "vllm/pooling_params.py has no PoolingParams",
        "vllm/config/vllm.py has no VllmConfig",
    ]


@pytest.mark.parametrize(
    ("source", "scores"),
    [
        (None, False),
        ('TASKS = ("embed",)', False),
        ('TASKS = ("token_classify",)', True),
        ('TASKS = ("token_classify",)\nKIND = "encoder_only"', False),
    ],
)
def test_which_v2_runner_pools_a_decoders_tokens(source, scores, tmp_path):
    file = tmp_path / "v1/worker/gpu/pool/pooling_runner.py"
    if source is not None:
        file.parent.mkdir(parents=True)
        file.write_text(source)
    assert v2_scores(tmp_path) is scores


def test_the_program_tells_and_fails(tmp_path, capsys):
    good, bad = write_package(tmp_path / "good"), tmp_path / "bad"
    assert main([str(good)]) == 0
    assert "all there" in capsys.readouterr().out
    assert main([str(good), str(bad)]) == 1
    assert "has no Pooler" in capsys.readouterr().out


def test_the_installed_vllm_has_it_all():
    found = importlib.util.find_spec("vllm")
    if found is None:
        pytest.skip("needs vLLM: make test-vllm")
    (folder,) = found.submodule_search_locations or ()
    assert check_signatures(Path(folder)) == [] and v2_scores(Path(folder))
    assert check_signatures(Path(folder), DECODING) == []
