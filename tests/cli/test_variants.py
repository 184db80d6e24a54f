"""`--engines` and `--variant`: what each engine is given, and what is refused."""

import pytest
from support import specs

from scoremode.cli.variants import variants_of
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.vllm.options import VllmOptions
from scoremode.errors import UsageError
from scoremode.spec.engine import Engine


def variants(*words: str, engines: str | None = None, flags: tuple[str, ...] = ()):
    return variants_of(specs.given(Engine, *flags), engines, words)


def vllm(options: object) -> VllmOptions:
    assert isinstance(options, VllmOptions)
    return options


def test_torch_is_the_default_and_variants_replace_it():
    assert list(variants()) == ["torch"]
    assert list(variants("vllm max_num_seqs=1")) == ["vllm max_num_seqs=1"]
    assert list(variants("vllm a=1", engines="torch")) == ["torch", "vllm a=1"]


def test_another_interpreter_is_named_by_its_environment():
    engines = "vllm,vllm@/opt/new/bin/python,torch@/opt/next"
    found = variants(engines=engines)
    assert list(found) == ["vllm", "vllm@new", "torch@next"]
    places = [variant.place for variant in found.values()]
    assert places == [None, "/opt/new/bin/python", "/opt/next"]
    same = variants(engines="vllm@/a/env,vllm@/b/env/bin/python")
    assert list(same) == ["vllm@/a/env", "vllm@/b/env/bin/python"]
    with_space = variants("vllm@'/opt/my env' max_num_seqs=1")
    assert [v.place for v in with_space.values()] == ["/opt/my env"]


def test_a_variant_may_have_a_name():
    words = "'batch 1:' vllm max_num_seqs=1", "many: vllm max_num_seqs=1"
    found = variants(*words, engines="vllm")
    assert list(found) == ["vllm", "batch 1", "many"]
    assert found["many"] == found["batch 1"]


def test_settings_are_flags_keywords_and_variables():
    words = (
        "vllm enforce_eager=false --tensor-parallel-size=2 dtype=float32 max_num_seqs=1 "
        "hf_overrides='{\"rope_theta\": 5}' VLLM_ATTENTION_BACKEND=FLASH_ATTN"
    )
    (found,) = variants(words, flags=("--engine-arg", "max_num_seqs=32")).values()
    options = vllm(found.options)
    assert options.dtype == "float32"
    assert options.arguments["enforce_eager"] is False
    assert options.arguments["tensor_parallel_size"] == 2
    assert options.arguments["max_num_seqs"] == 1
    assert options.arguments["hf_overrides"] == {"rope_theta": 5}
    assert found.environment == {"VLLM_ATTENTION_BACKEND": "FLASH_ATTN"} and found.place is None


def test_the_commands_flags_are_for_all_and_a_variants_own_for_it_alone():
    flags = "--dtype", "float16", "--batch-size", "3", "-tp", "2", "--head-dtype", "float32"
    found = variants("torch dtype=float32", engines="torch,vllm", flags=flags)
    torch, other = found["torch"].options, found["torch dtype=float32"].options
    assert isinstance(torch, TorchOptions) and isinstance(other, TorchOptions)
    assert (torch.dtype, torch.batch_windows) == ("float16", 3)
    assert (other.dtype, other.batch_windows) == ("float32", 3)
    assert vllm(found["vllm"].options).arguments["tensor_parallel_size"] == 2


@pytest.mark.parametrize(
    ("engines", "words", "message"),
    [
        ("abacus", (), "--engines abacus: abacus is not one of torch, vllm"),
        ("torch,", (), "--engines torch,: an empty name is not one of"),
        ("vllm@", (), "--engines vllm@: vllm@ names no interpreter behind the @"),
        ("vllm@/a,vllm@/a", (), "--engines vllm@/a,vllm@/a: vllm@/a is named twice"),
        ("vllm", ("vllm",), "--variant vllm: vllm is named twice"),
        (None, ("",), "--variant : an empty name is not one of"),
        (None, ("a: vllm x=1", "a: vllm x=2"), "--variant a: vllm x=2: a is named twice"),
        (None, ("a:",), "--variant a:: an empty name is not one of"),
        (None, ("vllm 'a",), "--variant vllm 'a: No closing quotation"),
        (None, ("vllm eager",), "--variant vllm eager: eager is not KEY=VALUE"),
        (None, ("vllm a=1 a=2",), "--variant vllm a=1 a=2: --engine-arg a=2: a is given twice"),
        (None, ("vllm dtype=a dtype=b",), "dtype: 'a' is none of 'auto', 'float32'"),
        (None, ("vllm A=1 A=2",), "A is given twice"),
        (None, ("vllm enforce_eager=maybe",), "enforce_eager=maybe: is neither true nor false"),
        (None, ("vllm tensor_parallel_size=two",), "tensor_parallel_size"),
        (None, ("vllm tensor_parallel_size=0",), "--variant vllm tensor_parallel_size=0: --tensor"),
        (None, ("vllm batch_size=3",), "--batch-size 3: is for --engine torch"),
        (None, ("vllm model=x",), "--engine-arg model=x: scoring sets model itself"),
        (None, ("torch tensor_parallel_size=2",), "--tensor-parallel-size 2: the torch engine"),
        (None, ("torch max_num_seqs=2",), "the torch engine has no max_num_seqs"),
        (None, ("torch batch_sise=2",), "the torch engine has no batch_sise; did you mean batch_size"),
    ],
)  # fmt: skip
def test_what_makes_no_engine_is_refused(engines, words, message):
    with pytest.raises(UsageError) as found:
        variants(*words, engines=engines)
    assert message in str(found.value)
