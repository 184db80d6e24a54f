"""A config alone, without its model: as a checkpoint that has no tensors."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scoremode.checkpoint.config_fields import check_config, quantizations
from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.folder import MODELOPT, own_config
from scoremode.checkpoint.strict_json import read_json
from scoremode.errors import CheckpointError, words_of

__all__ = ["opened_config"]

# Has names of the folder that is read as names of the files that were given.
Shown = Callable[[Any], Any]


@contextmanager
def opened_config(file: str) -> Iterator[tuple[Checkpoint, Shown]]:
    """A checkpoint that has the config in `file`, and no tensors; and what makes of its messages such
    that name that file.

    ModelOpt's own file beside a `config.json` belongs to it, as GPTQ's and AWQ's do where it says
    nothing; given alone ModelOpt's is a checkpoint's whose model isn't known. The library reads no
    other file than a folder's config.json, so there is such a folder as long as the context lasts.
    Raises CheckpointError.
    """
    given = Path(file)
    config, path = read_json(given), Path(file)
    modelopt: Mapping[str, Any] | None = None
    beside = given.parent / MODELOPT if given.name == "config.json" else None
    with TemporaryDirectory(prefix="scoremode-") as name:
        folder = Path(name)
        names = {str(folder / "config.json"): str(path)}
        try:
            if _is_modelopts(config):
                names[str(folder / MODELOPT)] = str(path)
                shutil.copyfile(given, folder / MODELOPT)
                config, modelopt = {}, config
            elif beside is not None and beside.exists():
                names[str(folder / MODELOPT)] = str(beside)
                shutil.copyfile(beside, folder / MODELOPT)
                modelopt = read_json(beside)
            (folder / "config.json").write_text(json.dumps(config))
        except OSError as error:
            raise CheckpointError(f"{file}: {words_of(error, named=False)}") from None
        check_config(given, config)
        names[str(folder)] = str(path)
        quantized_by = None
        if beside is not None and modelopt is None and not quantizations(config):
            quantized_by = own_config(given.parent)

        def shown(value: Any) -> Any:
            if isinstance(value, str):
                for before, after in names.items():
                    value = value.replace(before, after)
            elif isinstance(value, Mapping):
                return {key: shown(item) for key, item in value.items()}
            elif isinstance(value, list):
                return [shown(item) for item in value]
            return value

        found = Checkpoint(
            folder, str(path), config, {}, modelopt=modelopt, quantized_by=quantized_by
        )
        yield found, shown


def _is_modelopts(config: Mapping[str, Any]) -> bool:
    return "model_type" not in config and isinstance(config.get("quantization"), Mapping)
