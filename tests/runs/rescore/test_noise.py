"""The base against itself, by another attention, dtype or engine."""

import shutil
from dataclasses import replace

import pytest
from support.run_requests import request

from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import UsageError
from scoremode.results.folders.finished import load_run
from scoremode.runs.measure import measure
from scoremode.runs.rescore.noise import _variants


@pytest.mark.parametrize("attention", ["sdpa", "flash with sinks"])
def test_whatever_attention_a_base_has_eager_is_another(attention):
    section = {"engine": {"engine": "torch", "dtype": "bfloat16", "attention": attention}}
    first, *_ = _variants("auto", section, TorchOptions(device="cpu"))
    assert (first.change, first.words) == ("attention", "with eager attention")


def test_a_base_in_llama_cpps_arithmetic_runs_again_in_that():
    engine = {"engine": "torch", "dtype": "float32", "attention": "sdpa", "arithmetic": "llama.cpp"}
    section = {"engine": engine, "source": "kept"}
    options = TorchOptions(device="cpu")
    (only,) = _variants("auto", section, options)
    assert isinstance(only.options, TorchOptions)
    assert (only.change, only.options.arithmetic) == ("attention", "llama.cpp")
    for change in ("dtype", "engine"):
        with pytest.raises(UsageError, match=rf"{change}: kept is in llama.cpp's arithmetic"):
            _variants(change, section, options)


class TestNoiseFloor:
    def test_by_attention(self, kept, quant, text, tmp_path):
        result = measure(request(quant, text, tmp_path, reference=str(kept), noise_floor="auto"))
        floor = result.record.document["noise_floor"]
        # What `auto` came to is no contradiction of what was asked for.
        assert load_run(result.folder)[0].document["noise_floor"] == floor
        assert floor["change"] == "attention" and floor["engine"]["attention"] == "eager"
        assert floor["resolves"] and 0 < floor["kld"]["value"] < 1e-3

    def test_by_dtype_of_a_live_base(self, base, quant, text, tmp_path):
        record = measure(
            request(quant, text, tmp_path, reference=str(base), noise_floor="dtype")
        ).record.document
        assert record["noise_floor"]["engine"]["dtype"] == "float32"
        assert 0 < record["noise_floor"]["kld"]["value"] < 0.1 * record["metrics"]["kld"]["value"]

    def test_of_a_base_that_has_only_eager_attention(self, base, quant, text, tmp_path):
        """What would change nothing is not tried."""
        options = TorchOptions(device="cpu", dtype="bfloat16", attention="eager", batch_windows=4)
        ask = request(quant, text, tmp_path, reference=str(base), options=options)
        assert (
            measure(replace(ask, noise_floor="auto")).record.document["noise_floor"]["change"]
            == "dtype"
        )
        with pytest.raises(UsageError, match="only attention"):
            measure(replace(ask, noise_floor="attention"))

    def test_a_base_that_is_gone(self, base, quant, text, tmp_path):
        model = shutil.copytree(base, tmp_path / "model")
        folder = tmp_path / "reference"
        measure(request(model, text, folder, keep="stored"))
        shutil.rmtree(model)
        from scoremode.errors import CheckpointError

        ask = request(quant, text, tmp_path / "runs", reference=str(folder))
        with pytest.raises(CheckpointError, match=str(model)):
            measure(replace(ask, noise_floor="auto"))
        assert measure(ask).record.document["status"] == "done"

    def test_by_engine_needs_a_stored_base(self, base, quant, text, tmp_path):
        with pytest.raises(UsageError, match="needs a base that scoremode reference has kept"):
            measure(request(quant, text, tmp_path, reference=str(base), noise_floor="engine"))
