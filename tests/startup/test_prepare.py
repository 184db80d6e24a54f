"""What happens beside planning: its errors, its end, and the seconds that the record tells."""

import subprocess
import sys
import threading
import time

import pytest

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.vllm.options import VllmOptions
from scoremode.runs.context import import_engine
from scoremode.startup.warmup import libraries, open_gpu, preparing


def test_a_block_ends_without_threads_of_its_own(demo):
    before = set(threading.enumerate())
    with preparing(open_checkpoint(str(demo / "model")), TorchOptions(device="cpu")):
        pass
    assert set(threading.enumerate()) == before


def test_an_error_within_is_itself_and_ends_all_threads(demo):
    before = set(threading.enumerate())
    with (
        pytest.raises(ValueError, match="within"),
        preparing(open_checkpoint(str(demo / "model")), TorchOptions(device="cpu")),
    ):
        raise ValueError("within")
    assert set(threading.enumerate()) == before


def test_an_import_that_fails_surfaces_where_the_engine_is_asked_for(demo, monkeypatch):
    monkeypatch.setattr(TorchOptions, "modules", ("scoremode.no_such_module",))
    checkpoint = open_checkpoint(str(demo / "model"))
    options = TorchOptions(device="cpu")
    with (
        preparing(checkpoint, options),
        pytest.raises(ImportError, match=r"scoremode\.no_such_module"),
    ):
        import_engine(options)
    libraries.wait()


def test_a_gpu_that_is_not_there_is_left_to_torch_to_tell():
    open_gpu(9999)


@pytest.mark.parametrize(
    ("device", "gpu"),
    [(None, 3), ("cuda", 3), ("cuda:1", 1), ("cuda:x", None), ("cpu", None), ("no such", None)],
)
def test_the_gpu_to_open_is_the_one_that_the_flag_or_torchrun_names(device, gpu, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert TorchOptions(device=device).gpu == gpu
    monkeypatch.delenv("LOCAL_RANK")
    assert TorchOptions(device=device).gpu == (0 if gpu == 3 else gpu)
    assert VllmOptions().gpu is None


def test_options_alone_import_neither_torch_nor_vllm():
    program = (
        "import sys\n"
        "from scoremode.engines.torch.options import TorchOptions\n"
        "from scoremode.engines.vllm.options import VllmOptions\n"
        "TorchOptions(), VllmOptions()\n"
        "sys.exit(bool({'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0"])
def test_what_warms_ends_before_an_engine_is_made_and_its_error_is_nobodys(
    demo, monkeypatch, device
):
    done = []

    def warm():
        time.sleep(0.3)
        done.append(True)
        raise RuntimeError("no kernel for this GPU")

    monkeypatch.setattr("scoremode.startup.warmup.warmer", lambda gpu, config: warm)
    checkpoint = open_checkpoint(str(demo / "model"))
    with preparing(checkpoint, TorchOptions(device=device)):
        import_engine(TorchOptions(device="cpu"))
        assert done == ([] if device == "cpu" else [True])


def test_what_can_not_be_warmed_is_nobodys_error_either(demo, monkeypatch):
    def broken(gpu, config):
        raise ImportError("Triton, half there")

    monkeypatch.setattr("scoremode.startup.warmup.warmer", broken)
    with preparing(open_checkpoint(str(demo / "model")), TorchOptions(device="cuda")):
        import_engine(TorchOptions(device="cpu"))
