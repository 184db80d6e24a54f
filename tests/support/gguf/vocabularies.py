"""Small vocabularies as a GGUF file's metadata, and texts that tokenizers find hard."""

from pathlib import Path
from typing import Any

import numpy as np
import support.gguf.files as files

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

TEXTS = [
    "",
    " ",
    "   ",
    "\n",
    "\n\n\n \n\t\r\n  x",
    "Hello, World!  It's the year's 3 best; we'LL see. I'D say 'tis O'Neil",
    " leading and trailing   ",
    "1 12 123 1234 12345 123456 1234567 12345678901234567890",
    "a  12   345 6789 x3.14e-10 ٣٤٥٦ १२३ ½ Ⅷ",
    "camelCase HTTPServer XMLHttpRequest's ÉCOLE École ßẞ ǅ ΑΒΓ ру́сский",
    "e\u0301 n\u0303 हिन्दी ไทย עִבְרִית العربية، ok؟",
    "中文字，测试。漢字かなカナ 한국어 ㄅㄆ ㄱㄴ 　全角！？",
    "🦙😀👩‍👩‍👧 🇩🇪 \U0010ffff \ue000 \ufeff \ufffd",
    "if (x == 1) {\n\t\treturn  y->z[0] + 2*w; // ok?\n}\n",
    "https://example.com/a_b?c=d&e=f%20g#h  $5 + 3 < 7 ^ ~ ` | €",
    "\x00\x01\x7f\u0085\u00a0\u2028\u200b end",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa " + " " * 70 + "-" * 40 + "=" * 5,
    "IMGIMGABCZ <sentinel:12> \t    indented\n    more",
    "x<s>y</s> z <unk>  <|user|>  <|endoftext|>\n<0x0A>",
    "the 1st, 2nd... “quoted” — dash… d'abord (ok)",
]


def metadata_of(vocabulary: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A vocabulary's metadata as a header reader gives it; a change to None leaves a key out."""
    found: dict[str, Any] = {}
    for key, value in {**vocabulary, **changes}.items():
        if value is None:
            continue
        if key == "token_type" and isinstance(value, list):
            value = np.array(value, np.int32)
        elif key == "scores" and isinstance(value, list):
            value = np.array(value, np.float32)
        found[key if "." in key else f"tokenizer.ggml.{key}"] = value
    return found


def write_gguf(path: Path, metadata: dict[str, Any]) -> Path:
    """A GGUF file of the metadata alone."""
    raw: dict[str, Any] = {}
    for key, content in metadata.items():
        if isinstance(content, np.ndarray):
            kind = files.F32 if content.dtype == np.float32 else files.I32
            raw[key] = files.array(kind, content.tolist())
        elif isinstance(content, list):
            raw[key] = files.array(files.STRING, content)
        else:
            raw[key] = content
    path.write_bytes(files.file(raw))
    return path
