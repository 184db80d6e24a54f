"""A README with our block and metadata: what was there is there."""

import pytest
import yaml
from huggingface_hub import EvalResult, ModelCard

from scoremode.errors import UsageError
from scoremode.report.card.block import BEGIN, END
from scoremode.report.card.metadata import model_index
from scoremode.report.card.readme import with_block, with_model_index

BLOCK = f"{BEGIN}\n\nnew\n\n{END}\n"
RESULT = EvalResult(
    task_type="text-generation",
    dataset_type="d",
    dataset_name="D",
    metric_type="perplexity",
    metric_value=5.0,
    metric_args={"tool": "scoremode 0.1.0"},
    verified=False,
)
INDEX = model_index("mine", [RESULT])
CARD = """---
license: apache-2.0  # chosen with care
model-index:
- name: theirs
  results:
  - task: {type: text-generation}
    dataset: {type: mmlu, name: MMLU}
    metrics:
    - {type: accuracy, value: 0.5}
    - {type: perplexity, value: 9.0, args: {tool: scoremode 0.0.9}}
tags: [a,   b]
---

# Mine

text
"""


def test_a_block_goes_to_the_end_and_then_stays_where_it_is():
    once = with_block("# Mine\n\ntext\n", BLOCK, "README.md")
    assert once == f"# Mine\n\ntext\n\n{BLOCK}"
    moved = once.replace("text\n\n", "") + "\nbehind\n"
    again = with_block(moved, BLOCK.replace("new", "newer"), "README.md")
    assert again == f"# Mine\n\n{BLOCK.replace('new', 'newer')}\nbehind\n"
    assert with_block("", BLOCK, "README.md") == BLOCK
    windows = with_block("a\r\n", BLOCK, "README.md")
    assert windows == "a\r\n\r\n" + BLOCK.replace("\n", "\r\n")
    assert with_block(windows, BLOCK, "README.md") == windows


@pytest.mark.parametrize("text", [BEGIN, END, f"{END}\n{BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"])
def test_markers_that_are_no_pair_are_refused(text):
    with pytest.raises(UsageError, match=r"^x/README.md: has \d of "):
        with_block(text, BLOCK, "x/README.md")


def test_front_matter_keeps_what_is_there():
    text = with_model_index(CARD, INDEX, "README.md")
    assert "license: apache-2.0  # chosen with care\n" in text and "tags: [a,   b]\n" in text
    assert text.endswith("---\n\n# Mine\n\ntext\n")
    data = ModelCard(text).data
    assert [(r.dataset_type, r.metric_type, r.metric_value) for r in data.eval_results] == [
        ("mmlu", "accuracy", 0.5),
        ("d", "perplexity", 5.0),
    ]
    assert data.model_name == "theirs" and data.license == "apache-2.0" and data.tags == ["a", "b"]
    assert with_model_index(text, INDEX, "README.md") == text


@pytest.mark.parametrize(
    "text",
    [
        "# Mine\n",
        "",
        "---\n---\n# Mine\n",
        "---\nlicense: mit\n---\n",
        "---\r\na: b\r\n---\r\nx\r\n",
    ],
)
def test_every_readme_gets_one(text):
    made = with_model_index(text, INDEX, "README.md")
    assert ModelCard(made).data.eval_results == [RESULT]
    assert made.endswith(text.rpartition("---")[2])
    assert ("\r\n" in text) == ("\r\n" in made) and "\n" in made
    assert with_model_index(made, INDEX, "README.md") == made


@pytest.mark.parametrize(
    ("front", "said"),
    [
        ("a: [", "is no YAML"),
        ("- a", "its front matter is list"),
        ("model-index: 5", "not as the hub has it"),
        ("model-index: [{name: a}]", "not as the hub has it"),
    ],
)
def test_front_matter_that_is_none_is_refused_in_a_line(front, said):
    with pytest.raises(UsageError, match=said) as refused:
        with_model_index(f"---\n{front}\n---\nx\n", INDEX, "README.md")
    assert "\n" not in str(refused.value)


def test_a_line_in_the_text_is_no_front_matter():
    text = "# Mine\n\n---\nlicense: no\n---\n"
    made = with_model_index(text, INDEX, "README.md")
    assert made.endswith(f"\n{text}") and yaml.safe_load(made.split("---")[1]).keys() == {
        "model-index"
    }


@pytest.mark.parametrize("behind", ["license: mit\n", ""])
@pytest.mark.parametrize("own", ["  results: []\n", "  note: |\n    a\n    b\n  results: []\n"])
def test_comments_and_empty_lines_around_our_part_stay(behind, own):
    kept = f"# of the licence\n\n# and more\n{behind}---\n# Hi\n"
    text = f"---\ntags: [a]\n# before\nmodel-index:\n- name: x\n{own}{kept}"
    made = with_model_index(text, INDEX, "README.md")
    assert made.startswith("---\ntags: [a]\n# before\nmodel-index:\n- name: x\n")
    assert made.endswith(kept) and ModelCard(made).data.eval_results == [RESULT]
    assert with_model_index(made, INDEX, "README.md") == made


@pytest.mark.parametrize(
    "front", ["{license: mit}", "{license: mit, model-index: []}", "license: mit\n..."]
)
def test_front_matter_that_nothing_can_be_put_into_is_refused(front):
    """In braces all of it is one line, and the licence would be gone with it."""
    with pytest.raises(UsageError, match=r"^README.md: its front matter is written so that"):
        with_model_index(f"---\n{front}\n---\nHi\n", INDEX, "README.md")


def test_front_matter_behind_an_empty_line_is_front_matter_as_it_is_to_the_hub():
    made = with_model_index("\n---\nlicense: mit\n---\nHi\n", INDEX, "README.md")
    assert made.count("---") == 2 and ModelCard(made).data.license == "mit"
    assert ModelCard(made).data.eval_results == [RESULT]
