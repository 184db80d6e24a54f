"""Installing scoremode changes nothing for who doesn't ask; a server refuses fields nobody reads."""

import subprocess
import sys

from scoremode.engines.vllm.plugin import is_server, unread


def test_a_plain_llm_is_what_it_was(ran):
    """The entry point was loaded there as well: it generates, and nothing is wrapped."""
    facts = ran("dense", "stock").facts
    assert facts["runner"] == "generate"
    assert len(facts["registry"]) > 100
    assert not [name for name, entry in facts["registry"].items() if "_Scoring" in entry]


def test_a_scoring_start_leaves_registry_and_environment_as_they_were(ran):
    assert ran("dense").facts["restored"] is True


def test_vllm_finds_the_entry_point(engines):
    from importlib.metadata import entry_points

    (found,) = entry_points(group="vllm.general_plugins", name="scoremode")
    assert found.value == "scoremode.engines.vllm.plugin:register"


def test_the_plugin_does_nothing_unasked(monkeypatch):
    """vLLM calls it in every process of everybody who has scoremode installed."""
    program = """
import sys
from scoremode.engines.vllm.plugin import register
register()
sys.exit("vllm" in sys.modules or "torch" in sys.modules)
"""
    monkeypatch.delenv("SCOREMODE_VLLM", raising=False)
    for value in (None, "", "0"):
        if value is not None:
            monkeypatch.setenv("SCOREMODE_VLLM", value)
        subprocess.run([sys.executable, "-c", program], check=True)


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
