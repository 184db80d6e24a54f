"""Writes the text that the demo's AWQ and GPTQ are calibrated on, sampled from its own model.

python tools/calibration_text.py src/scoremode/demo/calibration.txt
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PASSAGES, TOKENS = 24, 256


def main(target: Path) -> None:
    source = Path("src/scoremode/demo/model")
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(source)
    torch.manual_seed(0)
    # Those below are special.
    first = torch.randint(3, model.config.vocab_size, (PASSAGES, 1))
    sampled = model.generate(  # pyright: ignore[reportAttributeAccessIssue]
        first,
        do_sample=True,
        max_new_tokens=TOKENS - 1,
        top_k=0,
        top_p=1.0,
        eos_token_id=-1,
        pad_token_id=0,
    )
    passages = (tokenizer.decode(ids, skip_special_tokens=True) for ids in sampled)
    target.write_text("\n".join(passages), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
