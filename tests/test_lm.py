"""scoremode as a model of lm-evaluation-harness, against the harness's own hf backend in float32."""

from pathlib import Path

import pytest
from support.harness_runs import NEEDED, answers, evaluated, local_data, tiny_gpt2, with_template
from support.local_tasks import ALL

from scoremode.errors import UsageError

pytest.importorskip("lm_eval", reason=NEEDED)
pytestmark = pytest.mark.filterwarnings("ignore")
__all__ = ["local_data"]


@pytest.fixture(scope="session")
def llama(data: Path) -> Path:
    return data / "stories260K"


@pytest.fixture(scope="session")
def gpt2(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gpt2(data / "tokenizers/gpt2", tmp_path_factory.mktemp("gpt2") / "model")


def ours(model: Path, **more):
    from scoremode.lm import ScoremodeLM

    return ScoremodeLM(model, dtype="float32", device="cpu", quiet=True, **more)


def theirs(model: Path, **more):
    from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]

    return HFLM(pretrained=str(model), dtype="float32", device="cpu", batch_size=8, **more)


def assert_alike(one, other):
    """The same requests, log-likelihoods within 1e-4, and the same metrics.

    The harness sums a page's tokens in float32, whose steps are 5e-4 at a sum of -5406.
    """
    pairs = list(zip(answers(one), answers(other), strict=True))
    assert len(pairs) > 30
    for (name, logprob, greedy), (their_name, their_logprob, their_greedy) in pairs:
        assert name == their_name and greedy == their_greedy
        assert logprob == pytest.approx(their_logprob, abs=1e-4, rel=2e-7), name
    assert one["results"].keys() == other["results"].keys()
    for task, metrics in one["results"].items():
        for name, value in metrics.items():
            if name.startswith(("acc", "acc_norm")):
                assert value == other["results"][task][name], (task, name)
            elif "perplexity," in name or "bits_per_byte," in name:
                assert value == pytest.approx(other["results"][task][name], rel=1e-5), (task, name)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_every_answer_is_the_hf_backends(name, request, local_data):
    model = request.getfixturevalue(name)
    found = evaluated(ours(model), local_data, ALL)
    assert_alike(found, evaluated(theirs(model), local_data, ALL))
    assert {sample["doc_id"] for sample in found["samples"]["ends"]} == set(range(12))
    greedy = [g for _, _, g in answers(found) if g is not None]
    assert any(greedy) == (name == "llama") and not all(greedy)


def test_a_shorter_maximum_cuts_contexts_from_the_left(llama, local_data):
    tasks = ("shots", "pages", "letters", "ends")
    found = evaluated(ours(llama, max_length=64), local_data, tasks)
    assert_alike(found, evaluated(theirs(llama, max_length=64), local_data, tasks))


@pytest.mark.parametrize("multiturn", [True, False])
def test_a_chat_template_writes_the_prompts(llama, local_data, tmp_path, multiturn):
    model = with_template(llama, tmp_path / "chat")
    asked = {
        "apply_chat_template": True,
        "fewshot_as_multiturn": multiturn,
        "system_instruction": "Tell a story.",
    }
    tasks = ("shots", "ends", "letters")
    found = evaluated(ours(model), local_data, tasks, **asked)
    assert_alike(found, evaluated(theirs(model), local_data, tasks, **asked))
    (context, _), *_ = found["samples"]["shots"][0]["arguments"]
    assert context.startswith("<s>system: Tell a story.\nuser: ")


def test_its_name_is_registered_and_runs_are_kept(llama, local_data, tmp_path):
    from lm_eval.api.registry import get_model  # pyright: ignore[reportMissingImports]

    import scoremode.lm

    assert get_model("scoremode") is scoremode.lm.ScoremodeLM
    given = f"pretrained={llama},dtype=float32,output_path={tmp_path},quiet=True"
    found = evaluated("scoremode", local_data, ("who",), model_args=given, device="cpu")
    assert 0 <= found["results"]["who"]["acc,none"] <= 1
    assert len(list(tmp_path.glob("*/requests.parquet"))) == 1
    evaluated("scoremode", local_data, ("who",), model_args=given, device="cpu")
    assert len(list(tmp_path.glob("*/requests.parquet"))) == 1


def test_text_is_not_generated_and_flags_are_the_commands(llama, local_data):
    with pytest.raises(UsageError, match=r"says: generates text \(generate_until\)"):
        evaluated(ours(llama), local_data, ("says",))
    with pytest.raises(UsageError, match="no_such_flag"):
        ours(llama, no_such_flag=1)
    with pytest.raises(UsageError, match="compares with a base"):
        ours(llama, reference=str(llama))
