"""What happens beside planning: its errors, its end, and the seconds that the record tells."""

import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from scoremode.background.beside import Beside
from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.vllm.options import VllmOptions
from scoremode.runs.scoring import engine_factory
from scoremode.startup.gpu_libraries import warmer
from scoremode.startup.imports import libraries
from scoremode.startup.prepare import open_gpu, preparing


def command(demo, tmp_path, *more):
    return [
        *(
            sys.executable,
            "-m",
            "scoremode",
            "ppl",
            str(demo / "model"),
            "-c",
            "128",
            "--limit",
            "2",
        ),
        *("-f", str(demo / "heldout.txt"), "--device", "cpu", "-o", str(tmp_path), *more),
    ]


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
        engine_factory(options, None, print)  # pyright: ignore[reportArgumentType]
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


def test_without_a_gpu_nothing_is_warmed():
    assert warmer(9999, {}) is None


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0"])
def test_what_warms_ends_before_an_engine_is_made_and_its_error_is_nobodys(
    demo, monkeypatch, device
):
    done = []

    def warm():
        time.sleep(0.3)
        done.append(True)
        raise RuntimeError("no kernel for this GPU")

    monkeypatch.setattr("scoremode.startup.gpu_libraries.warmer", lambda gpu, config: warm)
    checkpoint = open_checkpoint(str(demo / "model"))
    with preparing(checkpoint, TorchOptions(device=device)):
        engine_factory(TorchOptions(device="cpu"), None, print)  # pyright: ignore[reportArgumentType]
        assert done == ([] if device == "cpu" else [True])


def test_what_can_not_be_warmed_is_nobodys_error_either(demo, monkeypatch):
    def broken(gpu, config):
        raise ImportError("Triton, half there")

    monkeypatch.setattr("scoremode.startup.gpu_libraries.warmer", broken)
    with preparing(open_checkpoint(str(demo / "model")), TorchOptions(device="cuda")):
        engine_factory(TorchOptions(device="cpu"), None, print)  # pyright: ignore[reportArgumentType]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("config", [{"hidden_size": 4096}, {"hidden_size": [1]}, {}])
def test_a_gpu_is_warmed_by_another_thread_and_nothing_stays(config):
    before = torch.cuda.memory_allocated(0)
    warm = warmer(0, config)
    assert warm is not None
    Beside(warm).result()
    # But cuBLAS's workspace, which is every later product's too.
    assert torch.cuda.memory_allocated(0) - before <= 64 << 20


def test_exit_codes_and_errors_come_through_the_quick_end(demo, tmp_path):
    done = subprocess.run(command(demo, tmp_path, "--stride", "0"), capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("scoremode: error: ")
    assert done.stderr.count("\n") == 1
    wrong = [sys.executable, "-m", "scoremode", "ppl", str(tmp_path / "none"), "--text", "a"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(wrong, capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and done.stderr.startswith("scoremode: error: ")


def test_exit_handlers_run_before_the_quick_end():
    program = (
        "import atexit, sys\n"
        "from scoremode.cli.program import program\n"
        "sys.argv = ['scoremode', 'compare', 'no-such-run']\n"
        "atexit.register(lambda: print('earlier'))\n"
        "code = program()\n"
        "atexit.register(lambda: print('later'))\n"
        "sys.exit(99)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    # The command's own code; a handler of before it belongs to whoever embeds it and is not called.
    assert (done.returncode, done.stdout) == (1, "later\n")
