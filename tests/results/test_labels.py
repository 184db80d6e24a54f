"""Labels: what a person would say, and never one for two models."""

import pytest

from scoremode.results.labels import Named, labels_of

SHA = "0123456789abcdef0123456789abcdef01234567"
CACHED = f"/cache/models--org--Llama-AWQ/snapshots/{SHA}"
BASE = Named("models/SmolLM2", "/x/models/SmolLM2")


@pytest.mark.parametrize(
    ("source", "path", "name"),
    [
        ("models/x", "/a/models/x", "x"),
        ("models/x/", "", "x"),
        ("hub:org/Llama-AWQ@c0ffee", "/cache/1", "Llama-AWQ"),
        ("org/Llama-AWQ", "", "Llama-AWQ"),
        ("m/x-Q4_K_M.gguf", "", "x-Q4_K_M"),
        ("m/x-Q4_K_M-00001-of-00003.gguf", "", "x-Q4_K_M"),
        ("hub:org/x-GGUF:Q4/x-Q4_K_M-00001-of-00002.gguf@c0ffee", "/c", "x-Q4_K_M"),
        # What the file of that quant is called, before it is looked up.
        ("org/x-GGUF:Q4_K_M", "", "x-Q4_K_M"),
        # Names that say nothing.
        ("models/x/model", "", "x"),
        ("models/x/model.gguf", "", "x"),
        (".", "/home/me/x", "x"),
        ("model", "/home/me/x/model", "x"),
        (CACHED, CACHED, "Llama-AWQ"),
        (f"{CACHED}/x-Q8_0.gguf", "", "x-Q8_0"),
        # A link's name is what the user says.
        ("mine", "/home/me/x", "mine"),
        ("models/x + mlp of y", "/a/models/x", "x + mlp of y"),
        ("LlamaForCausalLM in memory", "LlamaForCausalLM in memory", "LlamaForCausalLM in memory"),
        ("/", "/", "/"),
        ("", "", ""),
        ("\ud800<b>", "", "\ud800<b>"),
    ],
)
def test_a_model_is_called_what_a_person_would_say(source, path, name):
    assert Named(source, path).name == name
    assert Named(source, path, "my quant").name == "my quant"


@pytest.mark.parametrize(
    ("sources", "labels"),
    [
        (["m/SmolLM2-Q4_K_M.gguf", "m/SmolLM2.Q8_0.gguf"], ["Q4_K_M", "Q8_0"]),
        (["m/smollm2-q4_0.gguf", "hub:org/SmolLM2-AWQ@1"], ["q4_0", "AWQ"]),
        # The 5 of 2.5 is no quant of it, and the base itself keeps its name.
        (["SmolLM2.5", "SmolLM27", "models/SmolLM2"], ["SmolLM2.5", "SmolLM27", "SmolLM2"]),
        # What would be one stays as it is.
        (["SmolLM2-Q4.gguf", "SmolLM2.Q4.gguf"], ["SmolLM2-Q4", "SmolLM2.Q4"]),
        (["hub:a/SmolLM2-Q4@1", "hub:b/SmolLM2-Q4@1"], ["Q4 (a)", "Q4 (b)"]),
    ],
)
def test_beside_its_base_a_quant_s_name_is_without_the_base_s(sources, labels):
    models = [BASE if source == BASE.source else Named(source) for source in sources]
    assert labels_of(models, BASE) == labels


def test_a_base_s_dtype_is_no_part_of_its_quants_names():
    base = Named("m/SmolLM2-BF16.gguf")
    assert labels_of([Named("m/SmolLM2-Q4_0.gguf"), base], base) == ["Q4_0", "SmolLM2-BF16"]


@pytest.mark.parametrize(
    ("models", "labels"),
    [
        ([Named("a/model"), Named("b/model"), Named("b/other")], ["a", "b", "other"]),
        ([Named("r/a/m"), Named("s/a/m")], ["m (r)", "m (s)"]),
        ([Named("m"), Named("s/m")], ["m (m)", "m (s/m)"]),
        ([Named("hub:a/x@1"), Named("hub:a/x@2")], ["x (1)", "x (2)"]),
        ([Named("hub:a/x:q/m.gguf@1"), Named("hub:b/x:m.gguf@1")], ["m (a)", "m (b)"]),
        ([Named("x"), Named("x")], ["x", "x"]),
        # A given label stays, and is told from a name that is the same.
        ([Named("a/x", label="y"), Named("b/y")], ["y (x)", "y (b)"]),
        ([Named("a/x", label="ours"), Named("a/y", label="ours")], ["ours (x)", "ours (y)"]),
    ],
)
def test_models_that_differ_have_labels_that_do(models, labels):
    assert labels_of(models) == labels


def test_a_given_label_is_not_shortened_and_keeps_others_whole():
    given = Named("m/x", label="SmolLM2-Q4")
    assert labels_of([given], BASE) == ["SmolLM2-Q4"]
    short = Named("m/x", label="Q4")
    assert labels_of([short, Named("m/SmolLM2-Q4")], BASE) == ["Q4", "SmolLM2-Q4"]


def test_models_that_are_shown_elsewhere_count():
    assert labels_of([Named("a/x")], None, [Named("b/x")]) == ["x (a)"]
