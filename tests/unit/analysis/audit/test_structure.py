"""Strict JSON under speculation: what parses, what is a fault of the arm, what the baseline cannot do either."""

import json

import pytest
from simulated_servers import FRUIT, reply

from toolkit.analysis.audit.judgement import Findings, holm
from toolkit.analysis.audit.replies import Reply
from toolkit.analysis.audit.structure import RESPONSE_FORMAT, SCHEMA, fits, judge_structure

BROKEN = '{"color": "red", "size": "small", "ripe": true, "count": 3}}'


def replies(arm: list[str], baseline: list[str] | None = None, finish_reason: str = "stop") -> list[Reply]:
    sides = {"arm": arm, "baseline": [FRUIT] * 8 if baseline is None else baseline}
    return [
        reply("structure", side, i, [1], text=text, finish_reason=finish_reason)
        for side, texts in sides.items()
        for i, text in enumerate(texts)
    ]


def is_lossy(found: Findings) -> bool:
    return any(holm([check.p or 0.0 for check in found.tests if check.judged]))


class TestFits:
    def test_an_object_of_the_schema(self) -> None:
        assert fits(FRUIT)

    def test_white_space_around_it(self) -> None:
        assert fits(f"\n {FRUIT}\n")

    @pytest.mark.parametrize("color", SCHEMA["properties"]["color"]["enum"])
    def test_every_value_that_the_schema_allows(self, color: str) -> None:
        assert fits(json.dumps({"color": color, "size": "large", "ripe": False, "count": 8}))

    @pytest.mark.parametrize(
        "text",
        [
            "",
            BROKEN,
            FRUIT[:-1],
            f"Sure! {FRUIT}",
            FRUIT.replace("3", "4"),
            FRUIT.replace("3", "true"),
            FRUIT.replace("3", "[3]"),
            FRUIT.replace("red", "rred"),
            FRUIT.replace('"red"', "{}"),
            FRUIT.replace("true", '"true"'),
            FRUIT.replace("true", "1"),
            FRUIT.replace('"size": "small", ', ""),
            FRUIT.replace("}", ', "taste": "sweet"}'),
            f"[{FRUIT}]",
            "null",
            "[" * 100_000,
        ],
    )
    def test_all_else_does_not(self, text: str) -> None:
        assert not fits(text)

    def test_the_schema_that_is_asked_for_is_strict(self) -> None:
        asked = RESPONSE_FORMAT["json_schema"]
        assert (RESPONSE_FORMAT["type"], asked["strict"], asked["schema"]["additionalProperties"]) == (
            "json_schema",
            True,
            False,
        )


class TestJudge:
    def test_all_that_parse_are_sound(self) -> None:
        found = judge_structure(replies([FRUIT] * 8))
        assert (is_lossy(found), found.gap, found.proved) == (
            False,
            "",
            "8 replies in strict JSON parse under the schema",
        )

    def test_one_that_does_not_is_a_fault_and_is_shown(self) -> None:
        """vllm#44993: at concurrency 8 some replies do not parse."""
        found = judge_structure(replies([FRUIT] * 7 + [BROKEN]))
        assert (is_lossy(found), found.examples) == (True, [f"structured reply to prompt 7: {BROKEN!r}"])

    def test_what_the_baseline_cannot_either_is_inconclusive(self) -> None:
        found = judge_structure(replies([BROKEN] * 8, [FRUIT] * 7 + [BROKEN]))
        assert (is_lossy(found), "the baseline's own replies do not parse" in found.gap) == (False, True)

    def test_a_reply_that_was_cut_need_not_parse(self) -> None:
        cut = replies([FRUIT[:9]], [], finish_reason="length")
        assert not is_lossy(judge_structure([*replies([FRUIT] * 7), *cut]))

    def test_replies_that_all_were_cut_prove_nothing(self) -> None:
        assert judge_structure(replies([FRUIT[:9]] * 8, finish_reason="length")).gap == (
            "no reply in strict JSON was complete"
        )

    def test_a_server_that_refuses_is_inconclusive_with_its_words(self) -> None:
        assert judge_structure([], "arm does not take a JSON schema: HTTP 400").gap == (
            "arm does not take a JSON schema: HTTP 400"
        )

    def test_replies_to_other_questions_are_left_alone(self) -> None:
        assert judge_structure([reply("sample", "arm", 0, [1], text="x")]).tests == []
