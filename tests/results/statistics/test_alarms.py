"""Judgments of a step beside its noise: rounding is let pass, each fault is found and described."""

from dataclasses import replace

import numpy as np
import pytest

from scoremode.results.scores import Comparison, Scores, check_values
from scoremode.results.statistics.alarms import LIMITS, Alarm, Noise, judge_step

WINDOWS, LENGTH, ENTRIES = 24, 128, 24
N = WINDOWS * LENGTH
WINDOW, PLACE = np.divmod(np.arange(N), LENGTH)
POSITION = PLACE + 1
# Of the logits, in these dtypes, of a model that magnifies rounding as much as SmolLM2 does.
ERROR = {"float32": 4e-6, "float16": 6e-3, "bfloat16": 5e-2}


class Model:
    """Logits [N, ENTRIES] of a made text, whose targets are drawn from them; some are harder to compute
    than others, and the errors of two computations share that."""

    def __init__(self, seed: int = 0, size: float = ERROR["bfloat16"]):
        self.random = np.random.default_rng(seed)
        self.logits = self.random.normal(0, 2.5, (N, ENTRIES))
        gumbel = self.random.gumbel(size=self.logits.shape)
        self.target = (self.logits + gumbel).argmax(1).astype(np.int32)
        self.hard = size * np.exp(self.random.normal(0, 0.7, (N, 1)))

    def rounded(self, size: float = 1.0) -> np.ndarray:
        """Another computation of it."""
        return self.logits + size * self.hard * self.random.normal(size=self.logits.shape)

    def scores(self, model: np.ndarray, base: np.ndarray) -> Scores:
        """Scores of the logits `model` beside those of `base`."""
        q, p = (z - np.logaddexp.reduce(z, axis=1, keepdims=True) for z in (model, base))
        rows = np.arange(N)
        columns = {}
        for name, z in (("", q), ("base_", p)):
            top = z.argmax(1).astype(np.int32)
            columns |= {f"{name}logprob": z[rows, self.target], f"{name}top1": top}
            columns[f"{name}top1_logprob"] = z[rows, top]
        against = Comparison(
            columns.pop("base_logprob"),
            columns.pop("base_top1"),
            columns.pop("base_top1_logprob"),
            (np.exp(p) * (p - q)).sum(1),
            (np.exp(q) * (q - p)).sum(1),
            np.abs(np.exp(p) - np.exp(q)).sum(1) / 2,
        )
        labels = zip(("window", "position", "index"), (WINDOW, POSITION, rows), strict=True)
        columns |= {name: column.astype(np.int32) for name, column in labels}
        made = Scores(target=self.target, **columns, against=against)
        check_values(made)
        return made

    def noise(self) -> Noise:
        """The exact computation beside one that rounds."""
        return Noise.of(self.scores(self.rounded(), self.logits))

    def step(self, fault=lambda z: z, size: float = 1.0) -> Scores:
        """One that rounds beside another, which has the fault as well."""
        before = self.rounded()
        return self.scores(fault(self.rounded(size)), before)


def judged(fault, dtype: str = "bfloat16", seed: int = 0) -> Alarm:
    model = Model(seed, ERROR[dtype])
    noise = model.noise()
    return judge_step(model.step(fault), noise, dtype=dtype)


def where(rows, fault):
    """The fault in some rows alone."""
    return lambda z: np.where(rows[:, None], fault(z), z)


def colder(z):
    """As of a forgotten softcap, or an attention sink: sharper predictions."""
    return 1.1 * z


def shifted(z):
    return np.roll(z, 1, axis=0)


@pytest.mark.parametrize("dtype", LIMITS)
def test_rounding_is_no_alarm_in_60_ladders(dtype):
    """Ladders of three steps, whose kernels round from half as much as those of the noise do to 1.15
    times, which is more than any that was measured."""
    alarms = 0
    for seed in range(60):
        model = Model(seed, ERROR[dtype] * 3 ** model_scale(seed))
        noise = model.noise()
        sizes = model.random.uniform(0.5, 1.15, 3)
        steps = [model.step(size=size) for size in sizes]
        alarms += any(judge_step(step, noise, dtype=dtype).alarm for step in steps)
    assert alarms <= 3 * (dtype != "float32")


def model_scale(seed: int) -> float:
    return float(np.random.default_rng(1000 + seed).uniform(-1, 1))


def test_nothing_different_is_no_alarm_where_the_noise_is_0_as_well():
    model = Model()
    noise = Noise.of(model.scores(model.logits, model.logits))
    found = judge_step(model.scores(model.logits, model.logits), noise, dtype="float32")
    assert not found.alarm and found.value == 0 and found.noise_kld == 0


def test_a_floor_stands_in_for_a_noise_of_0():
    model = Model(size=ERROR["float32"])
    noise = Noise.of(model.scores(model.logits, model.logits))
    assert not judge_step(model.step(), noise, dtype="float32").alarm
    found = judge_step(model.step(lambda z: z * 1.0005), noise, dtype="float32")
    assert found.alarm and found.statistic == "size" and found.pattern == "everywhere"


@pytest.mark.parametrize("dtype", LIMITS)
def test_a_difference_everywhere(dtype):
    found = judged(colder, dtype)
    assert found.alarm and found.statistic == "size" and found.pattern == "everywhere"
    assert found.value > found.limit and found.kld > 2 * found.noise_kld
    assert "everywhere" in found.words and "rounding explains" in found.words


def test_what_rounding_in_bfloat16_hides_float32_shows():
    assert not judged(lambda z: 1.01 * z).alarm
    assert judged(lambda z: 1.01 * z, "float32").value > 50


def test_a_row_of_every_batch():
    found = judged(where(WINDOW % 6 == 2, colder))
    assert found.alarm and found.pattern == "windows"
    assert "in one window of every 6 (2, 8, 14, 20)" in found.words


def test_one_row_of_every_batch_shifted():
    found = judged(where(WINDOW % 6 == 2, shifted))
    assert found.pattern == "shifted"
    assert "shifted by one target (late), in one window of every 6" in found.words


def test_all_shifted():
    assert judged(shifted).pattern == "shifted"


def test_one_window_in_anothers_place():
    found = judged(where(WINDOW == 5, lambda z: np.roll(z, LENGTH, axis=0)))
    assert found.alarm and found.pattern == "windows" and "in 1 of 24 windows (5)" in found.words


def test_from_a_position_on():
    found = judged(where(POSITION >= 65, colder))
    assert found.alarm and found.pattern == "from position"
    begin = int(found.words.partition("position ")[2].split()[0])
    assert abs(begin - 65) <= 3


def test_growing_with_the_position():
    found = judged(lambda z: z * (1 + 0.2 * POSITION[:, None] / LENGTH))
    assert found.alarm and found.pattern == "grows"


def test_the_first_positions_alone():
    """A sixteenth of the targets, which the mean of all hides."""
    found = judged(where(POSITION <= 8, lambda z: 1.3 * z))
    assert found.alarm


def test_a_few_targets_behind_one_token():
    model = Model()
    model.target[7::251] = 3
    bad = np.roll((model.target == 3) & (np.arange(N) % (251) == 7), 1)
    noise = model.noise()
    found = judge_step(model.step(where(bad, lambda z: -z)), noise, dtype="bfloat16")
    assert found.alarm and found.statistic == "target" and found.pattern == "targets"
    assert "follow token 3" in found.words


def test_log_probabilities_to_one_side():
    """By less on each target than rounding is."""

    def fault(z):
        changed = z.copy()
        changed[np.arange(N), Model().target] -= 0.03
        return changed

    found = judged(fault)
    assert found.alarm and found.statistic == "bias"


def test_few_long_windows_are_judged_by_stretches():
    model = Model()
    noise = model.noise()

    def long(scores: Scores) -> Scores:
        half = N // 2
        window, position = np.divmod(np.arange(N), half)
        return replace(
            scores, window=window.astype(np.int32), position=(position + 1).astype(np.int32)
        )

    assert not judge_step(long(model.step()), noise, dtype="bfloat16").alarm
    assert judge_step(long(model.step(colder)), noise, dtype="bfloat16").alarm


def test_parts_of_the_noise_add_up():
    """Rounded logits are a part of their own, without which this step would be an alarm."""
    model = Model()
    before = model.rounded()
    kernels = model.scores(model.rounded(), model.logits)
    logits = model.scores(before + model.random.normal(0, 0.12, before.shape), before)
    after = model.rounded() + model.random.normal(0, 0.12, before.shape)
    step = model.scores(after, before)
    assert judge_step(step, Noise.of(kernels), dtype="bfloat16").alarm
    assert not judge_step(step, Noise.of(kernels, logits), dtype="bfloat16").alarm
    assert not judge_step(step, Noise.of(kernels), dtype="bfloat16", logits="bfloat16").alarm


def test_a_judgment_as_json_has_its_numbers():
    found = judged(colder).to_json()
    assert found["alarm"] is True and found["noise_tv"] > 0 and found["words"]
