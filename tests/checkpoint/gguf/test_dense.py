"""Tables of architectures whose layers are Llama's, or nearly: what each says beside the common."""

from gguf_headers import LLAMA, header

from scoremode.checkpoint.gguf.architectures import describe


def test_qwen_moves_no_rows():
    for architecture in ("qwen2", "qwen3"):
        assert describe(header(architecture)).layouts == {}


def test_qwen3s_biases_are_in_its_tensors():
    assert not describe(header("qwen3")).config["attention_bias"]
    more = {"blk.0.attn_q.bias": (64,)}
    assert describe(header("qwen3", tensors=LLAMA | more)).config["attention_bias"]
