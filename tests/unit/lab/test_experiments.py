"""What the timed experiments count and time, on models whose truth is known."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from toolkit import theory
from toolkit.errors import InputError
from toolkit.lab import experiments
from toolkit.lab.experiments import sweep_k, verify_cost
from toolkit.lab.pairing import Pair, load_pair
from toolkit.lab.reference import Draft, Sampling
from toolkit.lab.toy import ToyTokenizer
from toolkit.sampling import FloatArray, one_hot


class Clock:
    """Time that passes only when a test's model works."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Counting:
    """A model that always predicts the next number; a pass takes 10 ms and 1 ms for each token."""

    size = 97

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.cached: list[int] = []

    @property
    def length(self) -> int:
        return len(self.cached)

    def extend(self, tokens: Sequence[int]) -> FloatArray:
        self._clock.now += 0.010 + 0.001 * len(tokens)
        self.cached += tokens
        return np.where(one_hot([(token + 1) % self.size for token in tokens], self.size) > 0, 0.0, -30.0)

    def crop(self, length: int) -> None:
        del self.cached[length:]


class Guessing:
    """Guesses the next numbers, of which the `right` first are right; 2 ms a token. Every `rests`-th time nothing."""

    size = 97

    def __init__(self, clock: Clock, right: int, rests: int = 0) -> None:
        self._clock, self._right, self._rests, self._calls = clock, right, rests, 0

    def propose(self, sequence: Sequence[int], k: int, sampling: Sampling, rng: np.random.Generator) -> Draft:
        self._calls += 1
        if self._rests and self._calls % self._rests == 0:
            return Draft([], np.empty((0, self.size)))
        self._clock.now += 0.002 * k
        tokens = [(sequence[-1] + 1 + i + (i >= self._right)) % self.size for i in range(k)]
        return Draft(tokens, one_hot(tokens, self.size))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(experiments, "time", found)
    return found


Make = Callable[..., Pair]


@pytest.fixture
def counting(clock: Clock) -> Make:
    def make(right: int = 2, rests: int = 0, drafts: bool = True) -> Pair:
        drafter = Guessing(clock, right, rests) if drafts else None
        return Pair("numbers", Counting(clock), ToyTokenizer(), drafter, longest=1000)

    return make


class TestVerifyCost:
    def test_a_pass_is_timed_by_its_new_tokens(self, counting: Make) -> None:
        found = verify_cost(counting(), [1, 2, 3], context=50)
        assert dict(found.passes) == pytest.approx({size: 0.010 + 0.001 * size for size in (1, 2, 4, 8, 16, 32, 64)})

    def test_the_cache_is_back_at_the_context_after_it(self, counting: Make) -> None:
        pair = counting()
        verify_cost(pair, [1, 2, 3], context=50)
        assert pair.target.length == 50

    def test_c_is_a_draft_step_over_a_pass_of_one_token(self, counting: Make) -> None:
        assert verify_cost(counting(), [1], context=5).c == pytest.approx(2 / 11)

    def test_without_a_drafter_there_is_no_c(self, counting: Make) -> None:
        assert verify_cost(counting(drafts=False), [1], context=5).c is None

    def test_a_reading_that_was_disturbed_does_not_count(self, clock: Clock, counting: Make) -> None:
        pair = counting()
        works, passes = pair.target.extend, [0]

        def disturbed(tokens: Sequence[int]) -> FloatArray:
            passes[0] += 1
            clock.now += 5.0 if passes[0] in (1, 2, 4) else 0.0  # the prompt, the round that warms, one reading
            return works(tokens)

        pair.target.extend = disturbed  # type: ignore[method-assign]
        assert verify_cost(pair, [1], context=5, sizes=(1,)).passes == ((1, pytest.approx(0.011)),)

    def test_a_draft_step_is_one_token_of_a_draft(self, counting: Make) -> None:
        assert verify_cost(counting(), [1], context=5).draft_step == pytest.approx(0.002)

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"context": 0}, "--context and --repeats"),
            ({"repeats": 0}, "--context and --repeats"),
            ({"context": 990}, "--context 990: numbers holds 1000"),
        ],
    )
    def test_what_cannot_be_timed_is_refused(self, counting: Make, changes: dict[str, int], said: str) -> None:
        with pytest.raises(InputError, match=said):
            verify_cost(counting(), [1], **changes)


class TestSweepK:
    def test_tokens_per_pass_count_every_pass_but_the_prefill(self, counting: Make) -> None:
        found = sweep_k(counting(right=2), [[1], [2]], [1, 2, 4], max_tokens=13)
        assert [(one.tokens, one.passes) for one in found.lengths] == [(24, 12), (24, 8), (24, 8)]

    def test_seconds_are_of_decoding_alone(self, counting: Make) -> None:
        found = sweep_k(counting(right=2), [[1] * 100], [2], max_tokens=13)
        assert (found.seconds, found.lengths[0].seconds) == pytest.approx((12 * 0.011, 4 * (0.013 + 0.004)))

    def test_speedup_is_of_tokens_a_second(self, counting: Make) -> None:
        found = sweep_k(counting(right=2), [[1] * 100], [2], max_tokens=13).lengths[0]
        assert found.speedup == pytest.approx(12 * 0.011 / (4 * 0.017))

    def test_acceptance_is_told_by_position(self, counting: Make) -> None:
        found = sweep_k(counting(right=2), [[1]], [1, 4], max_tokens=13)
        assert [one.given for one in found.lengths] == [(1.0,), (1.0, 1.0, 0.0, None)]

    def test_the_prediction_is_theorys_at_the_measured_c(self, counting: Make) -> None:
        found = sweep_k(counting(right=2), [[1]], [4], max_tokens=13)
        assert found.lengths[0].predicted == pytest.approx(theory.speedup_by_position([1, 1, 0, 0], 4, 2 / 11))

    def test_passes_without_a_draft_are_part_of_the_prediction(self, counting: Make) -> None:
        """Of 9 passes the drafter rests in every third: tokens per pass are (3 + 3 + 1) / 3."""
        pair = counting(right=2, rests=3)
        found = sweep_k(pair, [[1]], [2], max_tokens=22).lengths[0]
        assert found.predicted == pytest.approx(found.tokens_per_pass / (1 + 2 * 2 / 11))

    def test_greedy_answers_are_plain_decodings(self, counting: Make) -> None:
        found = sweep_k(counting(), [[1], [2], [3]], [1, 3], max_tokens=9)
        assert [one.same for one in found.lengths] == [3, 3]

    def test_another_answer_is_not_counted_as_the_same(self, counting: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        pair, right = counting(), experiments.generate

        def wrong(target: Any, prompt: Any, *rest: Any) -> Any:
            return right(target, [5] if rest[4] == 2 and prompt == [1] else prompt, *rest)  # rest[4] is K

        monkeypatch.setattr(experiments, "generate", wrong)
        assert [one.same for one in sweep_k(pair, [[1], [2]], [1, 2], max_tokens=9).lengths] == [2, 1]

    def test_a_real_loop_agrees_with_the_toy(self) -> None:
        pair = load_pair("toy", "bigram")
        found = sweep_k(pair, [pair.tokenizer.encode("So a small")], [1, 4], max_tokens=40)
        assert [(one.same, one.tokens_per_pass >= 1) for one in found.lengths] == [(1, True), (1, True)]

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"ks": []}, "--k takes numbers of at least 1"),
            ({"ks": [0, 2]}, "--k takes numbers of at least 1"),
            ({"max_tokens": 1}, "--max-tokens takes at least 2"),
            ({"max_tokens": 999}, "the longest prompt needs"),
            ({"sampling": Sampling(-1.0)}, "--temperature -1.0"),
            ({"sampling": Sampling(float("nan"))}, "--temperature nan"),
            ({"seed": -1}, "--seed -1"),
        ],
    )
    def test_what_cannot_be_swept_is_refused(self, counting: Make, changes: dict[str, Any], said: str) -> None:
        with pytest.raises(InputError, match=said):
            sweep_k(counting(), [[1]], **changes)

    def test_without_a_drafter_there_is_nothing_to_sweep(self, counting: Make) -> None:
        with pytest.raises(InputError, match="choose a --drafter"):
            sweep_k(counting(drafts=False), [[1]])
