"""What a folder of tasks may do without its user's consent."""

from pathlib import Path

import pytest
from support.harness_runs import NEEDED

from scoremode.checkpoint.model_files import resolve_local
from scoremode.errors import UsageError

pytest.importorskip("lm_eval", reason=NEEDED)

TASK = "task: t\ndataset_path: json\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("doc_to_text: !function evil.text\n", "line 3: !function evil.text: runs Python code"),
        ("class: !<!function> evil.Task\n", "line 3: !function evil.Task"),
        ("a: [{b: !function evil.text}]\n", "line 3: !function"),
        ("a: &x [*x, !function evil.text]\n", "line 3: !function"),
        ("a: !!python/name:os.system\n", "line 3: tag:yaml.org,2002:python/name:os.system"),
        ("metric_list:\n- metric: org/evil\n", "line 4: the metric org/evil, a program of HF Eval"),
        ("metric_list:\n- metric: acc\n  hf_evaluate: true\n", "line 5: hf_evaluate"),
        ("include: other\n", "other, line 2: !function"),
        ("include: [other]\n", "other, line 2: !function"),
        ("a: &x {include: other}\n<<: [{b: 1}, *x]\n", "other, line 2: !function"),
        ("<<: {<<: {include: other}}\n", "other, line 2: !function"),
        ("a: {\n", "is not YAML: "),
    ],
)
def test_code_is_refused_by_file_and_line(text, words, tmp_path):
    from scoremode.harness.harness import check_folder

    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "t.yaml").write_text(TASK + text)
    (tmp_path / "deep" / "other").write_text("# No YAML by its name.\nx: !function evil.text\n")
    with pytest.raises(UsageError) as caught:
        check_folder(tmp_path)
    assert words in str(caught.value)


def test_a_folder_without_is_taken_and_the_harnesss_own_tasks_are_trusted(tmp_path):
    import lm_eval  # pyright: ignore[reportMissingImports]

    from scoremode.harness.harness import check_folder

    own = f"{lm_eval.__path__[0]}/tasks/wikitext/wikitext.yaml"
    assert "!function" in Path(own).read_text()
    (tmp_path / "t.yaml").write_text(
        f"{TASK}include: {own}\nmetric_list:\n- metric: acc\n- metric: perplexity\n"
    )
    check_folder(tmp_path)


def test_templates_are_sandboxed_and_write_the_same(tmp_path):
    from lm_eval import utils  # pyright: ignore[reportMissingImports]

    from scoremode.harness.harness import sandboxed

    text = "{{ a | regex_replace('b', 'c') }}\n"
    escape = "{{ cycler.__init__.__globals__ }}"
    plain = utils.apply_template(text, {"a": "abc"})
    assert utils.apply_template(escape, {})
    with sandboxed():
        assert utils.apply_template(text, {"a": "abc"}) == plain == "acc\n"
        with pytest.raises(Exception, match="access to attribute '__init__'"):
            utils.apply_template(escape, {})
    assert utils.apply_template(escape, {})


def test_without_consent_nothing_of_the_folder_is_imported(local_data, demo):
    from scoremode.harness.chat import ChatPrompts
    from scoremode.harness.harness import Harness, Prompting

    speaker = ChatPrompts([resolve_local(demo / "model")])
    with pytest.raises(UsageError, match=r"who.yaml, line \d+: !function who\.\w+: runs Python"):
        Harness(Prompting(("ends",), include_path=local_data), speaker, quiet=True).corpus()


def test_a_folder_without_code_needs_no_consent(local_data, demo, tmp_path):
    from scoremode.harness.chat import ChatPrompts
    from scoremode.harness.harness import Harness, Prompting

    (tmp_path / "ends.yaml").write_text((local_data / "ends.yaml").read_text())
    speaker = ChatPrompts([resolve_local(demo / "model")])
    given, free = (
        Harness(Prompting(("ends",), include_path=tmp_path, runs_code=code), speaker, quiet=True)
        for code in (True, False)
    )
    assert free.corpus().requests == given.corpus().requests
    assert free.identity() == given.identity()
