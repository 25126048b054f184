"""What is asked: the same of both sides, the prompt of vllm#41758 among it, drafts invited."""

import json
from collections import Counter
from itertools import pairwise

import pytest
from simulated_servers import reply

from toolkit.analysis.audit import questions
from toolkit.analysis.audit.asking import TOP
from toolkit.analysis.audit.questions import ALONE, EXTENSIONS, GREEDY_TOKENS, SEEDS, TOGETHER, Sampled


class TestGreedy:
    def test_the_repeated_word_of_vllm_41758_is_among_the_prompts(self) -> None:
        """`serving` 48 times, temperature 0, seed 42, 32 tokens or more, alone and together."""
        for concurrency in (ALONE, TOGETHER):
            (found,) = [
                one for one in questions.greedy(concurrency) if one.messages[-1]["content"].split() == ["serving"] * 48
            ]
            assert (found.fields["temperature"], found.seed, found.concurrency) == (0, 42, concurrency)
            assert found.max_tokens >= 32

    def test_every_concurrency_gets_the_same_prompts(self) -> None:
        ones, others = questions.greedy(1), questions.greedy(8)
        assert [one.messages for one in ones] == [one.messages for one in others]

    def test_enough_for_the_higher_concurrency_to_be_reached(self) -> None:
        assert len(questions.greedy(TOGETHER)) >= TOGETHER >= 8

    def test_log_probabilities_are_asked_for_by_token_id(self) -> None:
        fields = questions.greedy(1)[0].fields
        assert (fields["logprobs"], fields["top_logprobs"], fields["return_tokens_as_token_ids"]) == (True, TOP, True)

    def test_prompts_differ(self) -> None:
        assert len({json.dumps(one.messages) for one in questions.greedy(1)}) == len(questions.greedy(1))


class TestSamples:
    @pytest.mark.parametrize("tokens", [200, 3000, 50_000])
    def test_as_many_tokens_as_wanted_if_replies_are_long(self, tokens: int) -> None:
        how = Sampled(tokens=tokens)
        assert len(questions.samples(how)) * how.length >= tokens * 0.95

    def test_every_prompt_under_several_seeds(self) -> None:
        counts = Counter(one.prompt for one in questions.samples(Sampled()))
        assert set(counts.values()) == {SEEDS}

    def test_no_seed_twice(self) -> None:
        seeds = [one.seed for one in questions.samples(Sampled(tokens=50_000))]
        assert len(set(seeds)) == len(seeds)

    def test_a_prompt_is_not_asked_again_at_once(self) -> None:
        """Its cached prefix, or the same draft twice in a batch, would make replies less apart than they could be."""
        prompts = [one.prompt for one in questions.samples(Sampled())]
        assert all(one != other for one, other in pairwise(prompts))

    @pytest.mark.parametrize(("top_k", "sent"), [(None, -1), (16, 16)])
    def test_the_sampling_is_said_in_full(self, top_k: int | None, sent: int) -> None:
        """A server's own defaults (generation_config.json) must not decide. -1 is all tokens."""
        assert questions.samples(Sampled(temperature=0.7, top_k=top_k))[0].fields == {
            "temperature": 0.7,
            "top_k": sent,
            "top_p": 1.0,
            "repetition_penalty": 1.0,
        }

    def test_another_seed_asks_other_prompts(self) -> None:
        one, other = (questions.samples(Sampled(seed=seed)) for seed in (0, 1))
        assert {json.dumps(r.messages) for r in one}.isdisjoint(json.dumps(r.messages) for r in other)


class TestStops:
    def test_each_reply_is_to_end_at_a_word_from_its_middle(self) -> None:
        (found,) = questions.stops([reply("greedy", "arm", 2, [1], text="one two three four")])
        assert (found.question, found.prompt, found.fields) == ("stop", 2, {"temperature": 0, "stop": ["three"]})
        assert found.messages == questions.greedy(1)[2].messages
        assert found.max_tokens == GREEDY_TOKENS

    def test_a_reply_of_few_words_has_no_middle(self) -> None:
        assert questions.stops([reply("greedy", "arm", 2, [1], text="one two three")]) == []


class TestPlain:
    def test_what_openai_does_not_know_is_left_out(self) -> None:
        for request in [*questions.greedy(8), *questions.samples(Sampled())]:
            (found,) = questions.plain([request])
            assert found.fields == {k: v for k, v in request.fields.items() if k not in EXTENSIONS}
            assert "temperature" in found.fields

    def test_the_rest_stays(self) -> None:
        request = questions.samples(Sampled())[3]
        (found,) = questions.plain([request])
        assert (found.seed, found.messages, found.prompt) == (request.seed, request.messages, request.prompt)


class TestStructures:
    def test_eight_at_once(self) -> None:
        found = questions.structures()
        assert (len(found), {one.concurrency for one in found}) == (8, {8})

    def test_the_shape_is_in_the_words_too(self) -> None:
        """A schema alone leaves a small model without a hint, and the reply runs to its limit."""
        assert all('"ripe": true' in one.messages[0]["content"] for one in questions.structures())
