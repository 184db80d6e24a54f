"""A checkpoint as file names and bytes, and safetensors files in two parts."""

import json
from typing import Any

Files = dict[str, bytes]
INDEX = "model.safetensors.index.json"
MODELOPT = "hf_quant_config.json"


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors file."""
    size = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:size]), content[size:]


def join(header: str | bytes, data: bytes) -> bytes:
    header = header.encode() if isinstance(header, str) else header
    return len(header).to_bytes(8, "little") + header + data
