"""A mapped file that is truncated under the run."""

import subprocess
import sys

import pytest
from support.waiting import HANG

# Another thread wants the interpreter's lock meanwhile.
PROGRAM = """
import mmap, os, sys, threading
import numpy as np
from scoremode.cli.process import catch_bus_errors
catch_bus_errors()
path = sys.argv[1]
mapped = mmap.mmap(os.open(path, os.O_RDONLY), 0, access=mmap.ACCESS_READ)
def busy():
    while True: sum(range(1000))
threading.Thread(target=busy, daemon=True).start()
{read}
print("still there")
"""
READS = {
    "with the lock": "os.truncate(path, 5000); np.frombuffer(mapped, np.uint8).sum()",
    "by the system": "os.truncate(path, 5000); mapped[:100_000]",
    "by torch's threads": "import torch; "
    "v = torch.from_numpy(np.frombuffer(mapped, 'f4')); "
    "os.truncate(path, 5000); v.sum()",
}


@pytest.mark.skipif(sys.platform != "linux", reason="told by Linux's /proc alone")
@pytest.mark.parametrize("how", READS)
@pytest.mark.filterwarnings("ignore")
def test_a_truncated_file_is_named_in_one_line(how, tmp_path):
    path = tmp_path / "model 1.safetensors"
    path.write_bytes(bytes(1 << 24))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM.format(read=READS[how]), str(path)],
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    said = f"scoremode: error: {path}: became shorter, or could not be read, while it was in use\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)
