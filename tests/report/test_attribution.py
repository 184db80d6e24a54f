"""An attribution's table: the worst first, sums and what they are of."""

from pathlib import Path

from support.record_fields import fields

from scoremode.report.attribution import attribution_document, recipe_document
from scoremode.report.rendering import table_csv
from scoremode.report.terminal import document_text


def metric(value, **more):
    return {"value": value, "ci95": [value - 0.001, value + 0.001], "n": 100, "note": None} | more


def unit(name, alone, fall):
    return {
        "name": name, "formats": {"base": ["bf16"], "model": ["W4A16 g32"]},
        "bits_per_weight": 4.5, "parameters": 1000,
        "alone": metric(alone), "fall": metric(fall, share=fall / 0.03), "without": metric(0.03 - fall),
        "acceptance": metric(1 - alone),
        "local": {"relative_error": 0.1, "sqnr_db": 20.0},
        "accumulated": {"relative_error": 0.2, "sqnr_db": 14.0},
    }  # fmt: skip


RECORD = fields(
    {
        "checkpoint": {"source": "quants/W4A16"},
        "reference": {"source": "base"},
        "plan": {"windows": 16},
    }
)


def value(unfit=()):
    sums = {name: metric(0.029, share=0.029 / 0.03) for name in ("alone", "fall")}
    units = [unit("layers.0", 0.009, 0.01), unit("layers.1", 0.02, 0.019)]
    return {
        "by": "layer",
        "kld": metric(0.03),
        "additivity": sums,
        "units": units,
        "unfit": list(unfit),
    }


def test_units_by_what_they_do_alone():
    text = document_text(attribution_document(value(), RECORD, Path("runs/a")))
    said, _, *lines = text.splitlines()
    assert said.endswith(
        "; of 2 parts, layers.1 (0.02 nats) does most alone, then layers.0 (0.009 nats)"
    )
    assert lines[2].startswith("layers.1  W4A16 g32  4.500") and lines[3].startswith("layers.0")
    assert "0.02  [0.019, 0.021]" in lines[2] and "63.3%" in lines[2]
    assert "sum of alone  0.029 nats = 96.7% of the whole" in text
    assert "runs/a/attribution-layer.json" in text and "not to be added" not in text


def test_norms_that_differ_are_told():
    document = attribution_document(value(["norm.weight", "b"]), RECORD, Path("runs/a"))
    assert "norm.weight and 1 more are not the base's" in document_text(document)


def test_csv_has_every_number():
    text = table_csv(attribution_document(value(), RECORD, Path("runs/a")).data)
    header, first, *_ = text.splitlines()
    row = dict(zip(header.split(","), first.split(","), strict=True))
    assert row["unit"] == "layers.1" and float(row["alone_kld_nats_low"]) == 0.019
    assert float(row["without_kld_nats"]) == 0.03 - 0.019
    assert float(row["alone_acceptance_share"]) == 1 - 0.02


def recipe_metric(value):
    return {"value": value, "ci95": [value - 0.001, value + 0.001], "n": 100, "note": None}


def candidate(name, bits, kld):
    own = {"name": name, "bits_per_weight": bits, "run": f"runs/{name}"}
    return own | {"predicted": kld, "measured": recipe_metric(kld)}


VALUE = {
    "budget": 4.5,
    "bits_per_weight": 4.4974,
    "predicted": 0.0195,
    "measured": recipe_metric(0.0188),
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
    assert text.startswith(
        "the recipe takes 4.4974 of 4.5 bits per weight: KLD 0.0188 nats [0.0178, 0.0198]"
    )
    names = [line.split("  ")[0] for line in text.splitlines()]
    at = names.index("the recipe")
    assert names[at + 1] == "W4" and names[at + 2] == "W8"
    assert "0.0188 nats   95 % [0.0178, 0.0198]" in text
    assert "4.5 bits per weight, 4.4974 taken" in text and "1 of W4, 1 of W8" in text


def test_csv_is_the_choice():
    header, first, second = table_csv(recipe_document(VALUE, Path("r")).data).splitlines()
    assert header == "unit,from,format,bits_per_weight,alone_kld_nats"
    assert first == "q_proj,W4,W4A16,4.5,0.01" and second.startswith("v_proj,W8")
