"""`scoremode demo` as a user meets it."""

import json

from programs import run


def test_demo_shows_an_order_from_4_bits_down(capsys, tmp_path):
    code, out, err = run(capsys, "demo", "--json", "-o", str(tmp_path / "demo"))
    # Without a terminal it says nothing, nor does a library: transformers has bars of its own.
    assert code == 0 and err == ""
    records = json.loads(out)
    ppl = {name: r["metrics"]["ppl"] for name, r in records.items()}
    assert ppl["dense"]["value"] < ppl["W4A16-g32"]["value"] < ppl["W4A16-channel"]["value"]
    assert abs(ppl["W8A16"]["value"] / ppl["dense"]["value"] - 1) < 0.002
    assert all(m["ci95"][0] < m["value"] < m["ci95"][1] for m in ppl.values())
    assert len({r["plan"]["sha256"] for r in records.values()}) == 1
    code, _, err = run(capsys, "demo", "-o", str(tmp_path / "demo"))
    assert code == 2 and "is there already" in err
