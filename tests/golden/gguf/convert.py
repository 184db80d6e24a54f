"""Converts folders to GGUF by llama.cpp's own converter, in a process of its own.

    python convert.py LLAMA_CPP [--FLAG …] FOLDER FILE [FOLDER FILE …]

The tiny models' tokenizer is none that the converter knows by its hash, and not of the kind that it
looks for with some models: it is written as GPT-2's, whatever the model. All else is the converter's.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    source = Path(sys.argv[1])
    flags = [a for a in sys.argv[2:] if a.startswith("--")]
    paths = [a for a in sys.argv[2:] if not a.startswith("--")]
    # The converter's own gguf package comes before an installed one.
    sys.path[:0] = [str(source), str(source / "gguf-py")]
    spec = importlib.util.spec_from_file_location(
        "convert_hf_to_gguf", source / "convert_hf_to_gguf.py"
    )
    assert spec and spec.loader
    converter: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(converter)
    find = converter.get_model_class

    def found(*args, **kwargs):
        model = find(*args, **kwargs)
        for one in (model, getattr(model, "Ministral3Model", model)):
            one.set_vocab = lambda self: self._set_vocab_gpt2()
            one.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
        return model

    converter.get_model_class = found
    for folder, out in zip(paths[::2], paths[1::2], strict=True):
        sys.argv = ["convert", folder, "--outtype", "f32", "--outfile", out, *flags]
        converter.main()


if __name__ == "__main__":
    main()
