"""Fields of a request over HTTP that nobody reads."""

import subprocess
import sys

from scoremode.engines.vllm.plugin import is_server, unread


def test_what_nobody_reads_is_named():
    assert unread(None) is None and unread({}) is None
    assert unread({"b": 1, "a": 2}) == "nobody reads the field a, b"
    told = unread({"targets": [[1]]})
    assert told is not None and "targets: over HTTP each token is scored given" in told


def test_only_a_server_is_one():
    assert not is_server()
    program = (
        "import sys, types; sys.modules['vllm.entrypoints.openai.api_server'] = types.ModuleType('x')\n"
        "from scoremode.engines.vllm.plugin import is_server; sys.exit(not is_server())"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
