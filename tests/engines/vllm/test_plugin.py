"""Installing scoremode changes nothing for anybody who doesn't ask."""

import subprocess
import sys

import pytest
from engines.vllm.checkpoints import FORMATS


@pytest.mark.parametrize("form", FORMATS)
def test_a_plain_llm_is_what_it_was(form, ran):
    """The entry point was loaded there as well: it generates, and nothing is wrapped."""
    facts = ran(form, "stock").facts
    assert facts["runner"] == "generate"
    assert len(facts["registry"]) > 100
    assert not [name for name, entry in facts["registry"].items() if "_Scoring" in entry]


@pytest.mark.parametrize("form", FORMATS)
def test_a_scoring_start_leaves_registry_and_environment_as_they_were(form, ran):
    assert ran(form).facts["restored"] is True


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
