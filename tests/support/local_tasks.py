"""Small tasks of every shape that lm-evaluation-harness has log-likelihoods for, over local files.

`write_tasks` writes YAML files and their data into a folder, for `--include-path`.
"""

import json
from pathlib import Path
from typing import Any

__all__ = ["ALL", "write_tasks", "write_wikitext"]

# Every task and group that asks for log-likelihoods.
ALL = ("ends", "shots", "last_word", "pages", "who", "bare", "spaced", "letters")

_STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park.",
    "Tom had a big red ball. He liked to throw it high up in the sky and catch it again.",
    "One day, a small bird fell from its nest. The cat saw the bird and wanted to help.",
    "Mia and Ben went to the beach with their mom. They made a big castle out of sand.",
    "The dog was very sad because he lost his bone. He looked under the bed and in the box.",
    "There was a tree in the garden. It had many red apples and a little green worm.",
    "Sam wanted to bake a cake for his grandma. He took some flour, eggs and sugar.",
    "A frog lived near the pond. Every night he sang a happy song to the moon.",
    "Anna found a shiny stone on the road. She gave it to her best friend, Max.",
    "It was raining all day. The kids stayed inside and drew pictures of the sun.",
    "The bear was hungry. He went into the forest to find some honey and berries.",
    "Lucy had a new kite. The wind was strong, and the kite flew over the houses.",
)
_ENDS = (
    "They were very happy.",
    "She was a little sad, and she went home to her mom.",
    "It was fun.",
)
_NAMES = (("Tom", "Lily"), ("Ben", "Mia"), ("Sam", "Anna"), ("Max", "Lucy"))

_CHOICE = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{context}}",
    "doc_to_target": "{{answer}}",
    "doc_to_choice": "{{ends}}",
}
_ACCURACY = [
    {"metric": name, "aggregation": "mean", "higher_is_better": True}
    for name in ("acc", "acc_norm")
]


def write_tasks(folder: Path, count: int = 12) -> Path:
    """Writes all tasks, of at most `count` questions each, into `folder`, and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    stories = _STORY[:count]
    questions = [
        {"context": story, "ends": [*_ENDS[i % 3 :], *_ENDS[: i % 3]], "answer": -i % 3}
        for i, story in enumerate(stories)
    ]
    _task(folder, "ends", questions, _CHOICE | {"metric_list": _ACCURACY})
    _task(
        folder,
        "shots",
        questions[4:],
        _CHOICE | {"metric_list": _ACCURACY, "num_fewshot": 2, "fewshot_split": "train"},
        train=questions[:4],
    )
    _task(
        folder,
        "last_word",
        [{"text": story.rstrip(".")} for story in stories],
        {
            "output_type": "loglikelihood",
            "doc_to_text": "{{text.split(' ')[:-1]|join(' ')}}",
            "doc_to_target": "{{' '+text.split(' ')[-1]}}",
            "target_delimiter": "",
            "metric_list": [
                {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
                {"metric": "acc", "aggregation": "mean", "higher_is_better": True},
            ],
        },
    )
    # The second one is longer than the 512 tokens that the model of these tests reads.
    _task(
        folder,
        "pages",
        [{"page": " ".join(stories[:3])}, {"page": "\n".join([*stories, *stories])}],
        {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{page}}",
            "metric_list": [
                {"metric": name, "aggregation": of, "higher_is_better": False}
                for name, of in (
                    ("word_perplexity", "weighted_perplexity"),
                    ("byte_perplexity", "weighted_perplexity"),
                    ("bits_per_byte", "bits_per_byte"),
                )
            ],
        },
    )
    # As winogrande: the contexts differ, and what follows is the same.
    (folder / "who.py").write_text(
        "def text(doc):\n    return doc['answer']\n\n\n"
        "def target(doc):\n    return doc['sentence'].split('_')[1].strip()\n\n\n"
        "def choice(doc):\n"
        "    before = doc['sentence'].split('_')[0]\n"
        "    return [before + name for name in doc['names']]\n"
    )
    _task(
        folder,
        "who",
        [
            {
                "sentence": f"{a} gave the ball to {b} because _ was very kind.",
                "names": [a, b],
                "answer": i % 2,
            }
            for i, (a, b) in enumerate(_NAMES)
        ],
        {
            "output_type": "multiple_choice",
            "doc_to_text": "!function who.text",
            "doc_to_target": "!function who.target",
            "doc_to_choice": "!function who.choice",
            "metric_list": _ACCURACY[:1],
        },
    )
    # Nothing stands before, so that the prefix token does.
    bare = [{"ends": [story, story.replace(" ", " not ", 1)], "answer": 0} for story in stories]
    _task(folder, "bare", bare, _CHOICE | {"doc_to_text": "", "metric_list": _ACCURACY})
    # Spaces at the context's end, which count as the continuation's.
    _task(
        folder,
        "spaced",
        questions,
        _CHOICE
        | {"doc_to_text": "{{context}}  ", "target_delimiter": "", "metric_list": _ACCURACY},
    )
    for name, part in (("letters_small", questions[:3]), ("letters_large", questions[3:])):
        _task(
            folder,
            name,
            part,
            _CHOICE
            | {
                "doc_to_text": "{{context}}\nA. {{ends[0]}}\nB. {{ends[1]}}\nC. {{ends[2]}}\nAnswer:",
                "doc_to_choice": ["A", "B", "C"],
                "metric_list": _ACCURACY[:1],
            },
        )
    _yaml(
        folder / "letters.yaml",
        {
            "group": "letters",
            "task": ["letters_small", "letters_large"],
            "aggregate_metric_list": [
                {"metric": "acc", "aggregation": "mean", "weight_by_size": True}
            ],
            "metadata": {"version": 1.0},
        },
    )
    _task(
        folder,
        "says",
        questions,
        {
            "output_type": "generate_until",
            "doc_to_text": "{{context}}",
            "doc_to_target": "{{ends[answer]}}",
            "generation_kwargs": {"until": ["\n"]},
            "metric_list": [{"metric": "exact_match"}],
        },
    )
    return folder


def _task(
    folder: Path, name: str, test: list[dict[str, Any]], config: dict[str, Any], **more: Any
) -> None:
    files = {}
    for split, rows in {"test": test, **more}.items():
        path = folder / f"{name}.{split}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files[split] = str(path)
    splits = {f"{split}_split": split for split in files if split != "train"}
    training = {"training_split": "train"} if "train" in files else {}
    _yaml(
        folder / f"{name}.yaml",
        {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": files},
            **splits,
            **training,
            **config,
            "metadata": {"version": 1.0},
        },
    )


def _yaml(path: Path, value: dict[str, Any]) -> None:
    """JSON is YAML, but for the harness's own tag, which can't stand in quotes."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    for name in ("text", "target", "choice"):
        text = text.replace(f'"!function who.{name}"', f"!function who.{name}")
    path.write_text(text)


def write_wikitext(folder: Path, pages: tuple[str, ...]) -> Path:
    """Writes the harness's own task `wikitext`, as `wikitext_here`, with local `pages`; returns the
    folder."""
    import lm_eval  # pyright: ignore[reportMissingImports]

    folder.mkdir(parents=True, exist_ok=True)
    theirs = Path(lm_eval.__file__).parent / "tasks/wikitext"
    (folder / "preprocess_wikitext.py").write_text((theirs / "preprocess_wikitext.py").read_text())
    data = folder / "wikitext.jsonl"
    data.write_text("".join(json.dumps({"page": page}) + "\n" for page in pages))
    text = (theirs / "wikitext.yaml").read_text()
    kept = [
        line
        for line in text.split("\n")
        if not line.startswith(("task:", "dataset_", "training_split", "validation_split"))
    ]
    where = f"{{data_files: {{test: {json.dumps(str(data))}}}}}"
    head = ["task: wikitext_here", "dataset_path: json", f"dataset_kwargs: {where}"]
    (folder / "wikitext_here.yaml").write_text("\n".join([*head, *kept]))
    return folder
