"""Train the tiny Llama that ``scoremode demo`` ships, and write its held-out text.

Idea: a demo that quantizes a model has to work offline and within seconds, so the
package carries a model of about 1.4M parameters that was really trained. Random weights
would not do: their perplexity hardly moves when they are rounded. The trade-off is that
the model knows one kind of text only and its perplexity means nothing outside it; what
it shows is the order of the precisions, which the table printed at the end verifies.

Large models have channels that are much larger than others, which is what makes coarse
rounding costly; a tiny one has not. So after training the channels are spread out by a
rescaling that leaves the function as it was (SPREAD; 0 leaves it out). The gaps between
precisions are therefore set by choice, and say nothing about any other model.

Text: ``pydoc_data.topics``, the reference documentation that every CPython carries. It is
CPython's documentation (PSF licence), and the demo model and ``heldout.txt`` are derived
from it. The text differs between CPython releases, so the held-out part is written out.

Split: keys are sorted; every tenth topic starting with the fourth is held out, the rest
trains the tokenizer. Every twelfth topic of that rest only decides when to stop; what
remains trains the model. Topics share paragraphs, so one longer than 200 characters is
dropped from a held-out topic if it also stands in the text on the training side, and
where topics on one side share it, it is used once. Whitespace is ignored for that, since
indentation varies.

    python tools/train_demo.py [--out DIR]

The same machine and library versions give the same files.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import re
import time
from pathlib import Path
from pydoc_data.topics import topics

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BOS, EOS = "<s>", "</s>"
VOCAB = 1024
CONTEXT = 512
BATCH = 4
STEPS = 600
WARMUP = 50
PEAK_LR = 3e-3
WEIGHT_DECAY = 0.1
NOISE = 0.1
SPREAD = 0.5
EVAL_EVERY = 50
PATIENCE = 5
LONG_PARAGRAPH = 200
DEFAULT_OUT = Path(__file__).resolve().parent.parent / "src" / "scoremode" / "demo"


def flat(text: str) -> str:
    return " ".join(text.split())


def text_of(keys: list[str], unlike: str = "") -> str:
    """Join topics without the long paragraphs that ``unlike`` or an earlier topic has."""
    kept, seen = [], flat(unlike)
    for key in keys:
        for paragraph in re.split(r"\n\s*\n", topics[key].strip("\n")):
            words = flat(paragraph)
            if len(paragraph) <= LONG_PARAGRAPH or words not in seen:
                kept.append(paragraph)
                seen += " " + words
    return "\n\n".join(kept) + "\n"


def make_tokenizer(text: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A {BOS} $B",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    tokenizer.save(str(directory / "tokenizer.json"))
    # Written by hand: what save_pretrained names the class depends on the release.
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "add_bos_token": True,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def encode(tokenizer: Tokenizer, text: str) -> torch.Tensor:
    return torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids)


@torch.no_grad()
def mean_nll(model: LlamaForCausalLM, ids: torch.Tensor) -> float:
    """Mean negative log-likelihood over disjoint windows, each behind its own BOS."""
    model.eval()
    total = 0.0
    for window in ids.split(CONTEXT - 1):
        row = torch.cat([torch.tensor([model.config.bos_token_id]), window])[None]
        total += model(input_ids=row, labels=row).loss.item() * len(window)
    return total / len(ids)


def learning_rate(step: int) -> float:
    if step < WARMUP:
        return PEAK_LR * (step + 1) / WARMUP
    progress = (step - WARMUP) / (STEPS - WARMUP)
    return PEAK_LR * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))


def train(model: LlamaForCausalLM, ids: torch.Tensor, stop_ids: torch.Tensor) -> None:
    """Train in fp32 and leave the weights that did best on ``stop_ids`` in the model."""
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decay, "weight_decay": WEIGHT_DECAY}, {"params": plain}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_LR, betas=(0.9, 0.95), weight_decay=0.0)
    bos = torch.full((BATCH, 1), model.config.bos_token_id)
    best, best_state, misses, recent = math.inf, model.state_dict(), 0, 0.0
    for step in range(STEPS):
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        starts = torch.randint(len(ids) - CONTEXT + 2, (BATCH,)).tolist()
        rows = torch.stack([ids[start : start + CONTEXT - 1] for start in starts])
        # BOS in front of a cut anywhere in the text: that is how scoring windows start.
        rows = torch.cat([bos, rows], dim=1)
        # Llama has no dropout; wrong inputs now and then keep it from learning by heart.
        noise = torch.randint(VOCAB, rows.shape)
        swap = torch.rand(rows.shape) < NOISE
        swap[:, 0] = False
        loss = model(input_ids=torch.where(swap, noise, rows), labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent += loss.item() / EVAL_EVERY
        if (step + 1) % EVAL_EVERY:
            continue
        stop = mean_nll(model, stop_ids)
        print(f"step {step + 1:5d}  train {recent:.4f}  stop slice {stop:.4f}", flush=True)
        recent = 0.0
        if stop < best:
            best, best_state, misses = stop, copy.deepcopy(model.state_dict()), 0
        else:
            misses += 1
        if misses == PATIENCE:
            break
    model.load_state_dict(best_state)


@torch.no_grad()
def spread_channels(model: LlamaForCausalLM) -> None:
    """Move random factors from the norms' gains into the columns that read them."""
    generator = torch.Generator().manual_seed(1)
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for norm, readers in [
            (layer.input_layernorm, [attention.q_proj, attention.k_proj, attention.v_proj]),
            (layer.post_attention_layernorm, [mlp.gate_proj, mlp.up_proj]),
        ]:
            factors = torch.randn(norm.weight.shape, generator=generator).mul(SPREAD).exp()
            norm.weight /= factors
            for reader in readers:
                reader.weight *= factors


def rounded(weight: torch.Tensor, bits: int, group: int | None) -> torch.Tensor:
    """Symmetric round-to-nearest, one scale per output row or per ``group`` inputs."""
    half = 2 ** (bits - 1)
    blocks = weight.reshape(-1, group or weight.shape[1])
    scale = blocks.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / (half - 0.5)
    return ((blocks / scale).round().clamp(-half, half - 1) * scale).reshape(weight.shape)


def report(directory: Path, ids: torch.Tensor) -> None:
    """Print the perplexity of the saved model, dense and with its linears rounded."""
    # bf16 weights, fp32 arithmetic: the table shows the weights' rounding alone.
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
    linears = [m for m in model.model.layers.modules() if isinstance(m, torch.nn.Linear)]
    dense = [linear.weight.detach().clone() for linear in linears]
    base = math.exp(mean_nll(model, ids))
    print(f"{'held-out':16s}{'perplexity':>11s}\n{'dense bf16':16s}{base:11.4f}")
    for name, bits, group in [
        ("W8 channel", 8, None),
        ("W4 group 32", 4, 32),
        ("W4 channel", 4, None),
    ]:
        for linear, weight in zip(linears, dense, strict=True):
            linear.weight.data = rounded(weight, bits, group)
        ppl = math.exp(mean_nll(model, ids))
        print(f"{name:16s}{ppl:11.4f}  {100 * (ppl / base - 1):+.2f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the model that the demo ships.")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, metavar="DIR")
    out: Path = parser.parse_args().out
    directory = out / "model"
    directory.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)
    # One thread adds up in one order, however many cores the machine has.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    keys = sorted(topics)
    held_keys = keys[3::10]
    rest_keys = [key for key in keys if key not in held_keys]
    stop_keys = rest_keys[11::12]
    rest_text = text_of(rest_keys)
    held_text = text_of(held_keys, unlike=rest_text)
    train_text = text_of([key for key in rest_keys if key not in stop_keys])
    stop_text = text_of(stop_keys, unlike=train_text)
    (out / "heldout.txt").write_text(held_text, encoding="utf-8", newline="\n")
    tokenizer = make_tokenizer(rest_text)
    ids, stop_ids, held_ids = (encode(tokenizer, t) for t in (train_text, stop_text, held_text))

    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.token_to_id(BOS),
        eos_token_id=tokenizer.token_to_id(EOS),
    )
    model = LlamaForCausalLM(config)
    print(f"{model.num_parameters()} parameters")
    print(f"{len(ids)} training, {len(stop_ids)} stopping, {len(held_ids)} held-out tokens")
    began = time.monotonic()
    train(model, ids, stop_ids)
    print(f"trained in {time.monotonic() - began:.0f} s")

    spread_channels(model)
    model.to(torch.bfloat16).save_pretrained(directory)
    # safetensors writes for the owner only, and a package keeps the mode.
    (directory / "model.safetensors").chmod(0o644)
    save_tokenizer(tokenizer, directory)
    loaded = PreTrainedTokenizerFast.from_pretrained(directory)
    if loaded(held_text)["input_ids"] != [config.bos_token_id, *held_ids.tolist()]:
        raise SystemExit("the saved tokenizer does not encode as the trained one")
    report(directory, held_ids)
    for path in sorted([out / "heldout.txt", *directory.iterdir()]):
        print(f"{path.stat().st_size:9d}  {path.relative_to(out)}")


if __name__ == "__main__":
    main()
