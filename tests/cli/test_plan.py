"""`scoremode plan` as a user meets it."""

import json
import subprocess
import sys

from support.programs import run


def test_plan_needs_no_weights_and_no_torch(data):
    program = (
        "import sys; from scoremode.cli.main import main; "
        f"code = main(['plan', '--tokenizer', {str(data / 'tokenizers' / 'gpt2')!r}, "
        f"'--dataset-file', {str(data / 'wikitext2' / 'wiki.test.raw')!r}, '--json']); "
        "sys.exit(code or ('torch' in sys.modules) * 7)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)["plan"]
    assert plan["windows"] > 500 and plan["scored"] == plan["windows"] * 2047


def test_windows_are_counted_without_a_model(demo, capsys):
    """16 windows of 64 are 1,024 tokens and the BOS; the first of each is no target."""
    flags = ["--tokenizer", str(demo / "model"), "-f", str(demo / "heldout.txt")]
    flags += ["--protocol", "disjoint", "-c", "64", "--limit", "16"]
    code, out, err = run(capsys, "plan", *flags)
    rows = dict(line.split("  ", 1) for line in out.splitlines())
    assert (code, err) == (0, "")
    assert rows["windows"].strip() == "16" and rows["targets"].strip().startswith("1,008 scored")
