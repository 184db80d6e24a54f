"""Which GGUF file of a repository a name means."""

import pytest

from scoremode.checkpoint.gguf.names import choose
from scoremode.errors import CheckpointError

FILES = [
    "README.md",
    "config.json",
    "m-F16.gguf",
    "m-IQ4_XS.gguf",
    "m-Q4_K_M.gguf",
    "m-Q4_K_S.gguf",
    "m-UD-Q4_K_XL.gguf",
    "m-UD-Q4_K_S.gguf",
    "mmproj-F16.gguf",
    "imatrix.gguf",
    "Q8_0/m-Q8_0-00001-of-00002.gguf",
    "Q8_0/m-Q8_0-00002-of-00002.gguf",
    "m.q2_k.gguf",
]


@pytest.mark.parametrize(
    ("wanted", "file"),
    [
        ("m-Q4_K_M.gguf", "m-Q4_K_M.gguf"),
        ("Q4_K_M", "m-Q4_K_M.gguf"),
        ("q4_k_m", "m-Q4_K_M.gguf"),
        ("UD-Q4_K_S", "m-UD-Q4_K_S.gguf"),
        ("IQ4_XS", "m-IQ4_XS.gguf"),
        ("F16", "m-F16.gguf"),
        ("Q2_K", "m.q2_k.gguf"),
        ("Q8_0", "Q8_0/m-Q8_0-00001-of-00002.gguf"),
        ("m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00001-of-00002.gguf"),
        ("Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00001-of-00002.gguf"),
        ("mmproj-F16.gguf", "mmproj-F16.gguf"),
    ],
)
def test_one_is_meant(wanted, file):
    assert choose("lab/m", FILES, wanted) == file


@pytest.mark.parametrize("wanted", ["Q4_K", "Q4_XS", "Q4_K_L", "mx", "Q4.K.M", "../m-F16.gguf"])
def test_none_is_meant(wanted):
    with pytest.raises(CheckpointError) as error:
        choose("lab/m", FILES, wanted)
    assert "is none of its GGUF files: Q8_0/m-Q8_0-00001-of-00002.gguf, m-F16.gguf" in str(
        error.value
    )


def test_a_model_made_by_an_importance_matrix():
    files = ["m-imatrix-Q4_K_M.gguf", "m-IQ2_M-imatrix.gguf", "m-imatrix.gguf", "imatrix_m.gguf"]
    assert choose("lab/m", files, "Q4_K_M") == files[0]
    assert choose("lab/m", files, files[1]) == files[1]
    with pytest.raises(CheckpointError) as error:
        choose("lab/m", files, None)
    assert str(error.value) == f"lab/m: which of its GGUF files? {files[1]}, {files[0]}"


def test_a_part_of_a_split_is_refused_before_it_is_downloaded():
    with pytest.raises(CheckpointError, match=r"give its first file, Q8_0/m-Q8_0-00001-of-00002"):
        choose("lab/m", FILES, "m-Q8_0-00002-of-00002.gguf")


def test_several_are_meant():
    with pytest.raises(CheckpointError) as error:
        choose("lab/m", FILES, "Q4_K_S")
    assert str(error.value) == (
        "lab/m:Q4_K_S: which of its GGUF files? m-Q4_K_S.gguf, m-UD-Q4_K_S.gguf"
    )


def test_the_only_one():
    assert choose("lab/m", ["a.gguf", "mmproj.gguf", "x.md"], None) == "a.gguf"
    with pytest.raises(CheckpointError, match="lab/m: has no GGUF files"):
        choose("lab/m", ["x.md"], None)
    with pytest.raises(CheckpointError, match=r"lab/m: which of its GGUF files\? .* and 10 more"):
        choose("lab/m", [f"{n}.gguf" for n in range(30)], None)
