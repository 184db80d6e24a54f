"""Mutations of a checkpoint's files: each changes them in place and says what it did."""

import json
import math
from collections.abc import Callable
from random import Random
from typing import Any

from fuzz import meanings
from fuzz.files import INDEX, MODELOPT, Files, join, split

Mutation = Callable[..., str]

DTYPES = [
    *("F64", "I64", "U64", "C64", "F32", "I32", "U32", "F16", "BF16", "I16", "U16", "BOOL"),
    *("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8"),
    *("F6_E2M3", "F6_E3M2", "F4"),
]
# Of one size, so that a header stays consistent and only the meaning changes.
_SAME_SIZE = [
    ["F64", "I64", "U64", "C64"],
    ["F32", "I32", "U32"],
    ["F16", "BF16", "I16", "U16"],
    ["F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8", "BOOL"],
]
_SUFFIXES = [
    *("weight", "weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "bias"),
    *("weight_shape", "weight_global_scale", "input_scale", "input_zero_point", "k_scale"),
    *("input_global_scale", "output_scale", "weight_scale_inv", "qweight", "weight_scale_2"),
    *("scale", "activation_scale", "gate_up_proj", "gate_up_proj_scale_inv", "down_proj_blocks"),
    *("pre_quant_scale", "svdquant_lora_a", "gate_up_proj_weight_scale", "qzeros", "scales"),
    *("g_idx", "biases", "SCB", "W_q", "zero", "weight.absmax", "absmax", "_weight_qdata"),
    *("_weight_scale", "_weight_zero_point", "_weight_act_pre_scale", "output_scale", "perm"),
]
_PATTERNS = [
    *("re:(a+)+$", "re:(.*)*\\d$x", "re:(.+)+q", "re:(.*.*)*Z", "re:.*.*.*.*.*.*.*.*.*.*=", "re:"),
    *("re:(?:.?){40}.{40}!", "re:((a*)*)*", "re:(\\w|\\w|_)*!", "re:(.)(.)\\2\\1", "re:[", "re:("),
    *("re:(?P<a>", "re:\\", "re:a{99999999999999999999}", "re:a{1,4294967294}", "re:x**", "Linear"),
    *("re:[[a]]", "re:(?i)MODEL.*", "re:.*(?i)q_proj", "re:.*q_proj", "re:.*", "re:.*up_proj.*"),
    *("Embedding", "lm_head", "re:^model\\.layers\\.(0|1)\\..*proj$", "re:" + "(" * 500, "Conv2d"),
    *("re:" + "(" * 500 + ")" * 500, "re:" + "a?" * 40 + "a" * 40, "re:" + "x" * 5000, "q_proj"),
    *("model.layers.0.self_attn.q_proj", "re:model", "re:proj"),
    *("re:(?:foo){e<=9}", "re:\\p{L}+", "re:.{e}*", "re:.*\n", "re:\\Z", "re:(?<=model).*"),
    *("re:(?x) .* # comment", "re:[[:alpha:]]*", "re:\\d+|.*", "re:\ud800"),
    *("re:(((.{1,99}){1,99}){1,99}){1,99}z",),
    *("*", "model.*", "*q_proj*", "model.layers.[0-9].*", "[", "*a" * 50, "model.layers.1", "?" * 99),
]  # fmt: skip
_HUGE = "a number of 5000 digits"
_FIELDS: dict[str, list[Any]] = {
    "num_bits": [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 4.0, 4.5, "4", True, "٤", _HUGE],
    "type": ["int", "float", "INT", "Float", "uint", 3],
    "strategy": ["tensor", "channel", "group", "block", "token", "tensor_group", "attn_head", "GROUP"],
    "group_size": [-2, -1, 0, 1, 3, 16, 32, 64, 96, 128, 256, 1000, 2**40, 32.0, 31.5, True, "32"],
    "symmetric": [True, False, 0, 1, "false", "no", None, [], 2],
    # Of compressed-tensors' inputs, and GPTQModel's of modules.
    "dynamic": [True, False, "local", "LOCAL", 0, 1, 1.0, "true", None, [], {}, {"-:.*q_proj": {}},
                {"+:.*q_proj": {"bits": 8}}, {".*": {"sym": True}}, {"+:.*": {"bits": 2}}, {"(": {}},
                {".*proj": {"sym": False, "group_size": 64}}, {"re:.*": {}}, {"q_proj": {"bits": 3}},
                {".*q_proj": {"desc_act": True}}, {".*": None}, {".*": {"group_size": -1}}],
    "actorder": [None, True, False, "group", "weight", "static", "dynamic", "Group", "what", 1, []],
    "block_structure": [[128, 128], "128x128", [4, 4], [0, 1], [1], "x", [True, 128], [1.5, 2], "3x",
                        [-1, -1], [10**30, 1], ["128", "128"], {"a": 1, "b": 2}, "128x128x1", " 4x4 "],
    "scale_dtype": ["uint8", "torch.uint8", "float8_e4m3fn", "torch.bfloat16", 3, [], "UINT8"],
    "format": ["pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "dense",
               "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp6-pack-quantized",
               "mxfp8-quantized", "mixed-precision", "marlin-24", None, "", [], {}, 7, True],
    "version": ["0.9.4", "0.18.0", "0.17.1.a20", "0.18.0.dev1", "0.20.0", None, 20, 0.2, "", "x",
                "9" * 5000 + ".1", "0." + "9" * 5000, []],
    "quant_method": ["compressed-tensors", "gptq", "fp8", "mxfp4", "modelopt", None, [], "a\nb"],
    "weight_block_size": [[4, 96], [128, 128], [1, 7], [6, 256], [0, 1], [True, 4], [4], None, "4x96"],
    "scale_fmt": ["ue8m0", "float", None, "e4m3", 3],
    "expert_dtype": ["fp4", "fp8", None, "fp6", 4, []],
    "activation_scheme": ["dynamic", "static", "DYNAMIC", None, 1],
    "modules_to_not_convert": [[], ["lm_head"], ["model"], ["q_proj"], ["("], ["(a+)+$"], "x", [1]],
    "targets": [["Linear"], [], "Linear", None, [3], [None], [["Linear"]], {"Linear": 1}],
    "ignore": [[], None, "lm_head", ["Linear"], [3], [[]], {}, 0, True],
    "sparsity_config": [None, {}, [], {"format": "dense"}, {"format": "sparse-24-bitmask"}, 7,
                        {"format": []}, "dense", {"format": None}],
    "transform_config": [None, {}, {"a": 1}, []],
    "kv_cache_scheme": [None, {}, {"num_bits": 8, "type": "float"}, [], 8, {"num_bits": []}, "fp8"],
    "config_groups": [{}, [], None, {"W4A16": ["Linear"]}, {"FP8": ["Linear"]}, {"x": []}, {"": {}},
                      {"W4A16": "Linear"}, {"MXFP4": [1]}, {"a\nb": ["Linear"]}, {"W9A16": []}],
    "weights": [None, {}, [], 4, "int4"],
    "input_activations": [None, {}, [], {"num_bits": 8}, {"num_bits": 8, "dynamic": True},
                          {"strategy": "token", "dynamic": True}, 8],
    "output_activations": [None, {}, {"num_bits": 8}, 1],
    "text_config": [None, {}, [], {"quantization_config": {}}, {"quantization_config": []}, 3],
    "compression_config": [None, {}, [], 3, {"config_groups": {}}],
    "quant_algo": ["NVFP4", "nvfp4", "W4A16_NVFP4", "NVFP4_AWQ", "NVFP4_SVD", "FP8", "fp8_pb_wo",
                   "FP8_PER_CHANNEL_PER_TOKEN", "MXFP8", "W4A16_AWQ", "MIXED_PRECISION", None, 3, ""],
    "kv_cache_quant_algo": ["FP8", "NVFP4", "INT8", "none", None, 3, "x", []],
    "exclude_modules": [[], None, "lm_head", [3], {}, ["lm_head"]],
    "quantized_layers": [{}, None, [], {"model": {"quant_algo": "FP8"}}, {"": {"quant_algo": "FP8"}},
                         {"model.layers.0": {"quant_algo": "NVFP4"}}, {"a": []}, {"a": {}}, 7],
    "quantization": [{}, None, [], {"quant_algo": "FP8"}, {"quant_algo": None}, "x"],
    "has_zero_point": [True, False, None, 1],
    "bits": [2, 3, 4, 5, 6, 8, 16, 1, 0, -4, "4", 4.0, True, None],
    "w_bit": [4, 3, None, "4"],
    "q_group_size": [32, 64, 128, -1, 0, None],
    "sym": [True, False, None, 1, "true"],
    "desc_act": [True, False, None, 0, "false"],
    "checkpoint_format": ["gptq", "gptq_v2", "marlin", "bitblas", "gemm", "GPTQ", None, 2],
    "pack_dtype": ["int32", "int16", "int8", None, 32],
    "zero_point": [True, False, None, 1],
    "packing_format": ["auto_round", "auto_round:auto_gptq", "auto_round:auto_awq", "auto_gptq", None,
                       "auto_round:gptqmodel", "auto_round:exllamav2", "auto_round:fp8", "awq", 3, ""],
    "backend": ["auto", "auto_round:gptq", "autoround:exllamav2", "auto_round:awq", None, 1],
    "extra_config": [None, {}, {"model.layers.0.self_attn.q_proj": {"bits": 8}}, {".*": {"sym": False}},
                     {".*q_proj": {"bits": 16}}, {"lm_head": {"bits": 16, "data_type": "float"}}, [],
                     {"model.layers.0.self_attn.q_proj": {"sym": False}}, {"(": {"bits": 2}}, {"x": 3}],
    "data_type": ["int", "float", "mx_fp", "int_sym_dq", None, 4],
    "act_bits": [16, 8, 32, None, "8"],
    "is_marlin_format": [False, True, None],
    "mode": ["affine", "mxfp4", "nvfp4", "mxfp8", None, "", "AFFINE", 4],
    "model.layers.0.self_attn.q_proj": [
        *(True, False, None, {}, {"bits": 8}, {"group_size": 64}, {"mode": "mxfp4"}),
        *({"bits": 4, "group_size": 64}, {"bits": 6, "group_size": 32, "mode": "affine"}),
    ],
    "quantize_input": [True, False, None],
    "load_in_4bit": [True, False, None, 1],
    "load_in_8bit": [True, False, None],
    "llm_int8_threshold": [0, 6.0, -1.0, None, "6", 1e400],
    "llm_int8_skip_modules": [None, [], ["lm_head"], ["q_proj"], ["("], "x"],
    "bnb_4bit_quant_type": ["nf4", "fp4", "int4", None],
    "nbits": [1, 1.58, 2, 3, 4, 5, 6, 8, 4.0, None, "4"],
    "axis": [0, 1, -1, None, True],
    "skip_modules": [[], ["lm_head"], ["self_attn.q_proj"], None, "x"],
    "scale_quant_params": [None, {}, {"nbits": 8}],
    "dtype": ["fp8_e4m3", "int8", "fp4", "int4", "uint4", "fp8_e5m2", None],
    "qscheme": ["per_tensor", "per_channel", "per_group", None, 1],
    "ch_axis": [0, 1, -1, None, True],
    "is_dynamic": [True, False, None, 1],
    "scale_format": ["float32", "e8m0", None, "float"],
    "scale_calculation_mode": ["even", "floor", "ceil", None],
    "weight_format": ["real_quantized", "fake_quantized", None],
    "exclude": [[], ["lm_head"], ["*q_proj"], ["re:.*"], None, "x", [1]],
    "vocab_size": [-1, 0, None, 3.5, "5"],
    "model_type": [None, 3, [], "a\nb", "nonesuch"],
}  # fmt: skip


def _weird(rng: Random) -> Any:
    depth = rng.choice([3, 90, 400])
    deep: Any = []
    for _ in range(depth):
        deep = [deep] if rng.random() < 0.5 else {"a": deep}
    return rng.choice(
        [
            *(None, True, False, -1, 0, 1, 7, 2**31, 2**63, 2**64, 10**30, -(10**30), 1.5, 4.0),
            *(
                math.nan,
                math.inf,
                -math.inf,
                1e308,
                "",
                "F32",
                "3",
                "a\nb",
                "\ud800",
                "\x00",
                "é" * 9,
            ),
            *(
                "x" * 10_000,
                [],
                [[]],
                {},
                [1] * 5,
                [None],
                {"a": {}},
                deep,
                "\x1b[31m",
                [2**62] * 9,
            ),
        ]
    )


def mutate(rng: Random, files: Files, bases: dict[str, Files]) -> list[str]:
    """One to three mutations, some with parts of other `bases`; what they did."""
    done = []
    for mutation in rng.choices(_MUTATIONS, _WEIGHTS, k=rng.choices([1, 2, 3], [7, 2, 1])[0]):
        try:
            if mutation in _MEANINGS:
                done.append(mutation(rng, files, bases))
            else:
                done.append(mutation(rng, files))
        # One before it has left nothing that this one could work on, or it has no such tensor.
        except (
            *(AttributeError, IndexError, KeyError, TypeError),
            *(ValueError, ArithmeticError, RuntimeError),
        ):
            done.append(f"{mutation.__name__} found nothing")
    return done


def _weights(rng: Random, files: Files) -> str:
    names = [n for n in files if n.endswith(".safetensors") and len(files[n]) > 8]
    return rng.choice(names) if names else ""


def _bytes_of(rng: Random, files: Files, name: str, low: int, high: int) -> str:
    """Damages bytes low … high of a file."""
    content, high = bytearray(files[name]), max(low + 1, min(high, len(files[name])))
    at = rng.randrange(low, high)
    kind = rng.choice(["flip", "set", "insert", "delete", "truncate", "repeat", "zero"])
    size = rng.choice([1, 1, 2, 8, 40])
    if kind == "flip" and at < len(content):
        content[at] ^= 1 << rng.randrange(8)
    elif kind == "set":
        content[at : at + 1] = bytes([rng.randrange(256)])
    elif kind == "insert":
        content[at:at] = rng.randbytes(size)
    elif kind == "delete":
        del content[at : at + size]
    elif kind == "truncate":
        del content[at:]
    elif kind == "repeat":
        content[at:at] = content[at : at + size]
    else:
        content[at : at + size] = bytes(size)
    files[name] = bytes(content)
    return f"{name}: {kind} at {at}"


def header_bytes(rng: Random, files: Files) -> str:
    if not (name := _weights(rng, files)):
        return "no weights left"
    return _bytes_of(rng, files, name, 8, 8 + int.from_bytes(files[name][:8], "little"))


def length_prefix(rng: Random, files: Files) -> str:
    if not (name := _weights(rng, files)):
        return "no weights left"
    length = int.from_bytes(files[name][:8], "little")
    choices = [0, 1, length - 1, length + 1, length + 8, 2**31, 2**63, 2**64 - 1, 100_000_001,
               len(files[name]), len(files[name]) - 8, 2**64 - 8]  # fmt: skip
    value = rng.choice(choices) % 2**64
    files[name] = value.to_bytes(8, "little") + files[name][8:]
    return f"{name}: length {value}"


def header_entry(rng: Random, files: Files) -> str:
    """Another value in an entry, mostly one that a reader might swallow."""
    opened = _open(rng, files)
    if opened is None:
        return "no header left"
    file, header, data = opened
    name = rng.choice([n for n in header if n != "__metadata__"] or [""])
    entry = header.get(name)
    if not isinstance(entry, dict):
        return "no entry left"
    kind = rng.choice(["weird", "dtype", "same size", "shape", "reshape", "offsets", "drop", "entry",
                       "extra", "element", "tilt"])  # fmt: skip
    field = rng.choice(["dtype", "shape", "data_offsets"])
    shape = entry.get("shape")
    if kind == "weird":
        entry[field] = _weird(rng)
    elif kind == "dtype":
        entry["dtype"] = rng.choice(DTYPES)
    elif kind == "same size":
        same = next((s for s in _SAME_SIZE if entry.get("dtype") in s), DTYPES)
        entry["dtype"] = rng.choice(same)
    elif kind == "shape" and isinstance(shape, list) and shape:
        shape[rng.randrange(len(shape))] = _weird(rng)
    elif kind == "reshape" and isinstance(shape, list) and shape:
        entry["shape"] = rng.choice(
            [shape[::-1], [*shape, 1], [1, *shape], [math.prod(map(_int, shape))], [*shape, 0],
             [True if n == 1 else n for n in shape], [float(_int(n)) for n in shape],
             [str(n) for n in shape], [shape], {str(n): n for n in shape}, [*shape[:-1]],
             [2 * _int(shape[0]), *shape[1:]], [-_int(n) for n in shape], [*shape, 0, 2**62, 2**62]]
        )  # fmt: skip
    elif kind == "offsets":
        offsets = entry.get("data_offsets")
        if isinstance(offsets, list) and len(offsets) == 2:
            by = rng.choice([-1, 1, 4, -4, 2**63, -(2**63), 0.5])
            entry["data_offsets"] = [
                offsets[0] + by * rng.randrange(2),
                offsets[1] + by * rng.randrange(2),
            ]
    elif kind == "element":
        entry["data_offsets"] = [_weird(rng), _weird(rng)]
    elif kind == "tilt":
        begin, end = map(_int, entry.get("data_offsets") or [0, 0])
        entry["data_offsets"] = rng.choice([[end, begin], [begin, end, end], [begin], [end, end],
                                            f"{begin},{end}", {"0": begin, "1": end},
                                            [float(begin), float(end)], [str(begin), end]])  # fmt: skip
    elif kind == "drop":
        entry.pop(field, None)
    elif kind == "entry":
        header[name] = _weird(rng)
    else:
        entry[rng.choice(["extra", "dtype ", ""])] = _weird(rng)
    files[file] = join(_dump(header), data)
    return f"{file}: {name}: {kind}: {str(header[name])[:200]}"


def header_names(rng: Random, files: Files) -> str:
    """Tensors renamed, swapped, doubled, dropped with their bytes, or added."""
    opened = _open(rng, files)
    if opened is None:
        return "no header left"
    file, header, data = opened
    names = [n for n, e in header.items() if n != "__metadata__" and isinstance(e, dict)]
    if not names:
        return "no entry left"
    name = rng.choice(names)
    kind = rng.choice(["rename", "suffix", "swap", "double", "drop", "add", "metadata", "order",
                       "space", "swap same"])  # fmt: skip
    text: str | None = None
    if kind == "rename":
        new = rng.choice(["", ".", "a\nb.weight", "x" * 3000, "\ud800.weight", "weight",
                          "..weight", name.upper(), name + ".weight", "__metadata__",
                          "\x1b[2Jq.weight_packed"])  # fmt: skip
        header = {new if n == name else n: e for n, e in header.items()}
    elif kind == "suffix":
        new = name.rpartition(".")[0] + "." + rng.choice(_SUFFIXES)
        header = {new if n == name else n: e for n, e in header.items()}
    elif kind == "swap":
        other = rng.choice(names)
        header[name], header[other] = header[other], header[name]
    elif kind == "swap same":
        others = [n for n in names if _same(header[n], header[name])]
        other = rng.choice(others)
        header[name], header[other] = header[other], header[name]
    elif kind == "double":
        text = _dump(header)
        text = text[:-1] + f", {json.dumps(name)}: {_dump(header[rng.choice(names)])}}}"
    elif kind == "drop":
        header.pop(name)
        if rng.random() < 0.7:
            header, data = _repack(header, data)
    elif kind == "add":
        new = name.rpartition(".")[0] + "." + rng.choice(_SUFFIXES)
        source = header[rng.choice(names)]
        begin, end = (int(n) for n in source.get("data_offsets") or (0, 0))
        header.setdefault(new, source | {"data_offsets": [len(data), len(data) + end - begin]})
        data += data[begin:end]
    elif kind == "metadata":
        header["__metadata__"] = _weird(rng)
    elif kind == "order":
        header = dict(rng.sample(list(header.items()), len(header)))
    else:
        text = (
            rng.choice([" " * 9, "\n", "\t", "\ufeff", ""]) + _dump(header) + " " * rng.randrange(9)
        )
    files[file] = join(_dump(header) if text is None else text, data)
    return f"{file}: {kind} {name[:99]!r}"


def data_bytes(rng: Random, files: Files) -> str:
    """Tensors' bytes: flipped, and values that arithmetic trips over."""
    opened = _open(rng, files)
    if opened is None:
        return "no header left"
    file, header, data = opened
    entries = [(n, e) for n, e in header.items() if n != "__metadata__" and isinstance(e, dict)]
    if not data or not entries:
        return "no data left"
    name, entry = rng.choice(entries)
    offsets = entry.get("data_offsets")
    if not isinstance(offsets, list) or len(offsets) != 2:
        return "no offsets left"
    begin, end = map(_int, offsets)
    if not 0 <= begin < end <= len(data):
        return "no bytes left"
    content = bytearray(data)
    kind = rng.choice(["flips", "random", "fill", "shape", "ends"])
    if kind == "flips":
        for _ in range(rng.choice([1, 5, 100])):
            content[rng.randrange(begin, end)] ^= 1 << rng.randrange(8)
    elif kind == "random":
        content[begin:end] = rng.randbytes(end - begin)
    elif kind == "fill":
        content[begin:end] = bytes([rng.choice([0, 0xFF, 0x80, 0x7F, 1])]) * (end - begin)
    elif kind == "shape":
        shapes = [n for n in header if n.endswith("weight_shape")]
        if shapes:
            name = rng.choice(shapes)
            begin = _int(header[name]["data_offsets"][0])
            value = rng.choice([0, -1, 1, 5, 7, 95, 97, 255, 2**31, 2**62, -(2**63), 2**63 - 1])
            at = begin + 8 * rng.randrange(2)
            content[at : at + 8] = value.to_bytes(8, "little", signed=True)
    else:
        content = content[: -rng.randrange(1, 9)] if rng.random() < 0.5 else content + bytes(3)
    files[file] = join(_dump(header), bytes(content))
    return f"{file}: {name}: data {kind}"


def config_value(rng: Random, files: Files) -> str:
    """A field of a config that is known by name gets another value."""
    name = rng.choice([n for n in ("config.json", MODELOPT) if n in files] or ["config.json"])
    config = _json(files.get(name, b""))
    if config is None:
        return "no config left"
    at = _nodes(config)
    there = sorted({key for node in at if isinstance(node, dict) for key in node} & set(_FIELDS))
    key = rng.choice(there if there and rng.random() < 0.7 else list(_FIELDS))
    holders = [node for node in at if isinstance(node, dict) and key in node]
    if not holders:
        holders = [node for node in at if isinstance(node, dict)]
    holder = rng.choice(holders)
    if key in ("targets", "ignore", "exclude_modules") and rng.random() < 0.7:
        value: Any = rng.sample(_PATTERNS, rng.choice([1, 1, 2, 5]))
    else:
        value = rng.choice([*_FIELDS[key], _weird(rng)])
    holder[key] = value
    files[name] = _dump(config).encode("utf-8", "surrogatepass")
    return f"{name}: {key} = {str(value)[:200]}"


def config_node(rng: Random, files: Files) -> str:
    """Anything in a config replaced, dropped, added or written twice."""
    has_other = MODELOPT in files and rng.random() < 0.5
    return _any_node(rng, files, MODELOPT if has_other else "config.json")


def index_node(rng: Random, files: Files) -> str:
    if INDEX not in files:
        return config_node(rng, files)
    index = _json(files[INDEX])
    if index is None or not isinstance(index.get("weight_map"), dict) or rng.random() < 0.3:
        return _any_node(rng, files, INDEX)
    where = index["weight_map"]
    name = rng.choice([*where, "x.weight"])
    value = rng.choice(
        [*where.values(), "../config.json", "/etc/passwd", "a\0b", "", ".", "x" * 5000, "a\nb", 7,
         None, [], "\ud800", "config.json", "model-00009-of-00003.safetensors",
         "./" + str(where.get(name))]
    )  # fmt: skip
    if rng.random() < 0.2:
        where.pop(name, None)
    else:
        where[name] = value
    files[INDEX] = _dump(index).encode("utf-8", "surrogatepass")
    return f"index: {name} in {str(value)[:50]!r}"


def json_bytes(rng: Random, files: Files) -> str:
    names = [n for n in files if n.endswith(".json") and files[n]]
    if not names:
        return "no JSON left"
    name = rng.choice(names)
    if rng.random() < 0.2:
        text = files[name].decode("utf-8", "replace")
        coding = rng.choice(["utf-16", "utf-8-sig", "utf-32", "utf-16-le", "utf-7"])
        files[name] = text.encode(coding)
        return f"{name} in {coding}"
    return _bytes_of(rng, files, name, 0, len(files[name]))


def whole_file(rng: Random, files: Files) -> str:
    name = rng.choice(sorted(files) or [""])
    kind = rng.choice(["empty", "gone", "twice", "other", "deep"])
    if kind == "empty":
        files[name] = b""
    elif kind == "gone":
        files.pop(name, None)
    elif kind == "twice":
        files["other.safetensors"] = files.get(name, b"")
    elif kind == "other":
        files[name] = files[rng.choice(sorted(files))] if files else b""
    else:
        deep = rng.choice([b"[" * 100_000, b'{"a":' * 100_000, b"[" * 900 + b"]" * 900])
        header = len(deep).to_bytes(8, "little")
        files[name] = deep if name.endswith("json") else header + deep
    return f"{name}: {kind}"


def _any_node(rng: Random, files: Files, name: str) -> str:
    value = _json(files.get(name, b""))
    if value is None:
        return f"no {name} left"
    holder = rng.choice([n for n in _nodes(value) if n or n is value])
    if not holder:
        return f"{name} is empty"
    keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    key = rng.choice(keys)
    kind = rng.choice(["weird", "drop", "add", "twice", "top"])
    if kind == "weird":
        holder[key] = _weird(rng)
    elif kind == "drop":
        del holder[key]
    elif kind == "add" and isinstance(holder, dict):
        holder[rng.choice(["extra", "", "a\nb", "x" * 999])] = _weird(rng)
    elif kind == "top":
        value = _weird(rng)
    text = _dump(value)
    if kind == "twice":
        text = _with_doubled(text, rng)
    files[name] = text.encode("utf-8", "surrogatepass")
    return f"{name}: {kind} {str(key)[:50]!r}"


def _with_doubled(text: str, rng: Random) -> str:
    """One object's first key again at its front, with a value that loses to the second."""
    starts = [i for i, c in enumerate(text[:-1]) if c == "{" and text[i + 1] == '"']
    if not starts:
        return text
    at = rng.choice(starts) + 1
    key = text[at : text.index('"', at + 1) + 1]
    return text[:at] + f"{key}: 3, " + text[at:]


def _open(rng: Random, files: Files) -> tuple[str, dict[str, Any], bytes] | None:
    name = _weights(rng, files)
    try:
        header, data = split(files[name])
    except (ValueError, KeyError, RecursionError):
        return None
    return (name, header, data) if isinstance(header, dict) else None


def _json(content: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _nodes(value: Any) -> list[Any]:
    """Every object and list in it."""
    found, todo = [], [value]
    while todo:
        node = todo.pop()
        if isinstance(node, (dict, list)):
            found.append(node)
            todo += node.values() if isinstance(node, dict) else node
    return found


def _dump(value: Any) -> str:
    # Python doesn't write a number that long.
    return json.dumps(value).replace(json.dumps(_HUGE), "9" * 5000)


def _repack(header: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    """Without the bytes that no tensor has."""
    result, packed = {}, b""
    for name, entry in header.items():
        if name == "__metadata__" or not isinstance(entry, dict):
            result[name] = entry
            continue
        begin, end = (int(n) for n in entry.get("data_offsets") or (0, 0))
        result[name] = entry | {"data_offsets": [len(packed), len(packed) + end - begin]}
        packed += data[begin:end]
    return result, packed


def _same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.get("dtype") == b.get("dtype") and a.get("shape") == b.get("shape")


def _int(value: Any) -> int:
    return value if isinstance(value, int) else 0


_MEANINGS: list[Mutation] = [
    *(meanings.values, meanings.shape, meanings.dtype, meanings.order, meanings.record),
    meanings.graft,
]
_MUTATIONS: list[Mutation] = [
    *(header_bytes, length_prefix, header_entry, header_names, data_bytes),
    *(config_value, config_node, index_node, json_bytes, whole_file),
    *_MEANINGS,
]
_WEIGHTS = [3, 1, 8, 5, 6, 12, 5, 3, 3, 1, 8, 7, 6, 4, 5, 4]
