"""A recipe's tables."""

from pathlib import Path

from scoremode.report.forms.csv import table_csv
from scoremode.report.forms.text import document_text
from scoremode.report.recipe import recipe_document


def metric(value):
    return {"value": value, "ci95": [value - 0.001, value + 0.001], "n": 100, "note": None}


def candidate(name, bits, kld):
    own = {"name": name, "bits_per_weight": bits, "run": f"runs/{name}"}
    return own | {"predicted": kld, "measured": metric(kld)}


VALUE = {
    "budget": 4.5,
    "bits_per_weight": 4.4974,
    "predicted": 0.0195,
    "measured": metric(0.0188),
    "candidates": [
        candidate("W8", 8.1, 0.0011),
        candidate("W4", 4.5, 0.023),
    ],
    "choices": [
        {"unit": "q_proj", "from": "W4", "format": "W4A16", "bits_per_weight": 4.5, "alone": 0.01},
        {"unit": "v_proj", "from": "W8", "format": "W8A16", "bits_per_weight": 8.1, "alone": 0.001},
    ],
}  # fmt: skip


def test_the_recipe_stands_among_the_quants_by_its_size():
    text = document_text(recipe_document(VALUE, Path("runs/mixed")))
    names = [line.split("  ")[0] for line in text.splitlines()]
    at = names.index("the recipe")
    assert names[at + 1] == "W4" and names[at + 2] == "W8"
    assert "0.0188 nats   95 % [0.0178, 0.0198]" in text
    assert "4.5 bits per weight, 4.4974 taken" in text and "1 of W4, 1 of W8" in text


def test_csv_is_the_choice():
    header, first, second = table_csv(recipe_document(VALUE, Path("r")).data).splitlines()
    assert header == "unit,from,format,bits_per_weight,alone_kld_nats"
    assert first == "q_proj,W4,W4A16,4.5,0.01" and second.startswith("v_proj,W8")
