"""The models that a sweep's names stand for."""

import pytest

from scoremode.errors import CheckpointError, UsageError
from scoremode.runs.sweep import sweep as models
from scoremode.runs.sweep.sweep import all_models


@pytest.fixture
def folder(tmp_path):
    for name in ("b-Q8_0.gguf", "a-Q4_K_M.gguf", "mmproj-a.gguf", "a.imatrix.gguf", "text.txt",
                 "c-00001-of-00002.gguf", "c-00002-of-00002.gguf", "odd[1].gguf"):  # fmt: skip
        (tmp_path / name).write_text("")
    (tmp_path / "model").mkdir()
    return tmp_path


def test_a_pattern_stands_for_the_models_that_fit_it(folder):
    found = all_models([f"{folder}/*.gguf"])
    names = [name.removeprefix(f"{folder}/") for name in found]
    assert names == ["a-Q4_K_M.gguf", "b-Q8_0.gguf", "c-00001-of-00002.gguf", "odd[1].gguf"]
    assert f"{folder}/model" in all_models([f"{folder}/*"])
    assert all_models(["x", f"{folder}/[ab]-*.gguf"]) == [
        "x",
        f"{folder}/a-Q4_K_M.gguf",
        f"{folder}/b-Q8_0.gguf",
    ]


def test_a_folder_of_models_stands_for_all_of_them(folder):
    (folder / "model" / "model.safetensors").touch()
    (folder / "model" / "config.json").write_text("{}")
    names = ["a-Q4_K_M.gguf", "b-Q8_0.gguf", "c-00001-of-00002.gguf", "model", "odd[1].gguf"]
    assert all_models([str(folder)]) == [f"{folder}/{name}" for name in names]
    assert all_models([f"{folder}/model"]) == [f"{folder}/model"]


def test_a_name_that_is_there_is_no_pattern(folder):
    assert all_models([f"{folder}/odd[1].gguf"]) == [f"{folder}/odd[1].gguf"]


def test_a_pattern_that_nothing_fits_and_a_model_named_twice_are_refused(folder):
    with pytest.raises(CheckpointError, match=r"\*-Q2_K.gguf: no model fits"):
        all_models([f"{folder}/*-Q2_K.gguf"])
    (folder / "link").symlink_to(folder / "model")
    with pytest.raises(UsageError, match="the same model twice"):
        all_models([f"{folder}/model", f"{folder}/link"])
    with pytest.raises(UsageError, match="the same model twice: o/r and o/r"):
        all_models(["o/r", "o/r"])


def test_a_pattern_of_the_hub_stands_for_a_repositorys_files(monkeypatch):
    asked = []

    def names(repo, revision):
        asked.append((repo, revision))
        return ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "other/m-Q4_0.gguf"]

    monkeypatch.setattr(models, "gguf_names", names)
    assert all_models(["o/r:*Q4*"], "main") == ["o/r:m-Q4_K_M.gguf", "o/r:other/m-Q4_0.gguf"]
    assert asked == [("o/r", "main")]
    assert all_models(["o/r:Q4_K_M"]) == ["o/r:Q4_K_M"] and len(asked) == 1
    with pytest.raises(CheckpointError, match="no model fits"):
        all_models(["o/r:*Q2*"])
