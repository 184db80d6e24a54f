"""Tensors that a config of torchao alone promises, against those that torchao writes."""

import json

import pytest
from support.families.torchao import ROW, config
from support.golden_libraries import golden
from support.promises import NAMES, headers, promised_headers, promises_of

from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.layout import Linear
from scoremode.schemes.torchao import Modules

promise = promises_of(Modules)

CASES = golden("torchao")


def quant(kind: str, version: int = 2, **data) -> dict:
    """As torchao 0.18's `config_to_dict` gives it."""
    return {"_type": kind, "_version": version, "_data": data}


def group(size: object) -> dict:
    return {"_type": "PerGroup", "_version": 1, "_data": {"group_size": size}}


def integers(bits: int) -> dict:
    return {"_type": "torch.dtype", "_data": f"int{bits}"}


def by(of: object, **others) -> dict:
    return config(**others) | {"quant_type": {"default": of}}


INTX = {
    "mapping_type": {"_type": "MappingType", "_data": "SYMMETRIC"},
    "scale_dtype": None,
    "intx_packing_format": {"_type": "IntxPackingFormat", "_data": "UNPACKED_TO_INT8"},
}
KINDS = {
    "int8": quant("Int8WeightOnlyConfig", group_size=None, granularity=ROW),
    "int8-dynamic": quant(
        "Int8DynamicActivationInt8WeightConfig",
        act_mapping_type={"_type": "MappingType", "_data": "SYMMETRIC"},
        granularity=ROW,
        reduce_range=False,
    ),
    "float8": quant(
        "Float8WeightOnlyConfig",
        weight_dtype={"_type": "torch.dtype", "_data": "float8_e4m3fn"},
    ),
    "int4-group": quant(
        "IntxWeightOnlyConfig", weight_dtype=integers(4), granularity=group(32), **INTX
    ),
    "int3-row": quant(
        "IntxWeightOnlyConfig",
        weight_dtype=integers(3),
        granularity={"_type": "PerAxis", "_data": {"axis": 0}},
        **INTX,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_tensors_of_each_kind(case):
    kind = case.rpartition("-")[0]
    stored = {k: v for k, v in CASES[case].items() if k not in ("dense", "metadata")}
    linear = Linear("model.layers.0.m", (6, 96), NAMES[CASES[case]["dense"].dtype])
    promised = promise(by(KINDS[kind]))(linear)
    assert promised_headers(promised) == headers(stored)
    name, text = promised["_weight_qdata"].described or ("", "")
    about, theirs = json.loads(text), json.loads(bytes(CASES[case]["metadata"].tolist()))
    assert name == "weight" and about["_type"] == theirs["_type"]
    inputs = theirs["_data"].get("act_quant_kwargs")
    given = about["_data"].get("act_quant_kwargs")
    assert (given and given["_type"]) == (inputs and inputs["_type"])
    fields = {"block_size", "dtype", "target_dtype"} & theirs["_data"].keys()
    assert all(about["_data"][field] == theirs["_data"][field] for field in fields)


LINEAR = Linear("model.layers.0.mlp.up_proj", (32, 64), "BF16")
HEAD = Linear("lm_head", (32, 64), "BF16", in_layer=False)


def test_what_stays_dense():
    assert promise(config())(LINEAR) and promise(config())(HEAD) is None
    # A list takes the place of what is left by itself.
    listed = promise(config(modules_to_not_convert=["up_proj"]))
    assert listed(LINEAR) is None and listed(HEAD) is not None
    # torchao leaves what float8 products can't take.
    odd = promise(config("Float8", dynamic=True))
    assert odd(LINEAR) and odd(LINEAR._replace(shape=(32, 72))) is None
    assert promise(config("Float8"))(LINEAR._replace(shape=(32, 72)))


@pytest.mark.parametrize("field", ["fqn_to_config", "module_fqn_to_config"])
def test_configs_by_name(field):
    int8, float8 = KINDS["int8"], KINDS["float8"]
    forms = promise(by(quant("FqnToConfig", 1, **{field: {
        "_default": int8,
        r"re:model\.layers\..*\.up_proj": float8,
        r"re:model\.layers\.1\.up_proj": int8,
        "model.layers.2.up_proj": None,
        "model.layers.3.up_proj.weight": int8,
        r"re:.*\.q_proj\.weight": float8,
    }})))  # fmt: skip

    def dtype(module: str) -> str | None:
        found = forms(Linear(f"model.layers.{module}", (32, 64), "BF16"))
        return found["_weight_qdata"].dtype if found else None

    # The first pattern that fits the whole name; names before patterns.
    assert dtype("1.up_proj") == "F8_E4M3" and dtype("1.up_proj.x") == "I8"
    assert dtype("2.up_proj") is None and dtype("3.up_proj") == "I8"
    assert dtype("2.q_proj") == "F8_E4M3" and dtype("2.k_proj") == "I8"
    without = promise(by(quant("FqnToConfig", 1, **{field: {"a": int8}})))
    assert without(LINEAR) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (by(quant("Int4WeightOnlyConfig", group_size=128)), "quant_type 'Int4WeightOnlyConfig'"),
        (by(quant("Int8WeightOnlyConfig", 1)), "Int8WeightOnlyConfig of version 1"),
        (by(quant("Int8WeightOnlyConfig", granularity=group("a"))), "granularity {'_type': 'PerG"),
        (
            by(quant("IntxWeightOnlyConfig", mapping_type={"_type": "M", "_data": "ASYMMETRIC"})),
            "IntxWeightOnlyConfig with mapping_type 'ASYMMETRIC'",
        ),
        (by("int8_weight_only"), "quant_type 'int8_weight_only'"),
        ({"quant_method": "torchao"}, "quant_type None"),
    ],
)
def test_what_only_tensors_tell(given, words):
    with pytest.raises(UnsupportedFormat) as error:
        promise(given)(LINEAR)
    assert f"method 'torchao' with {words}" in str(error.value)
    assert str(error.value).endswith(": what is stored is known from its tensors alone")


def test_groups_that_do_not_fit():
    forms = promise(by(quant("Int8WeightOnlyConfig", granularity=group(48))))
    with pytest.raises(CheckpointError, match=r"up_proj: 64 inputs in groups of 48"):
        forms(LINEAR)
    with pytest.raises(CheckpointError, match=r"quant_type 4 is not an object"):
        promise({"quant_type": 4})(LINEAR)
