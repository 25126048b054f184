"""LM Studio tells of its drafts, in names that its API changelog documents; what it does not tell stays unavailable.

https://lmstudio.ai/docs/developer/api-changelog, 0.3.10: `stats` with draft_model, total_draft_tokens_count,
accepted_draft_tokens_count, rejected_draft_tokens_count, ignored_draft_tokens_count. Logs of 0.4.24 that people
published show the counts in `usage`. The numbers here are ours.
"""

from typing import Any

import pytest

from toolkit.engines.contract import SpecCounts
from toolkit.engines.openai import OpenAIEndpoint

DOCUMENTED = {
    "tokens_per_second": 41.0,
    "draft_model": "small",
    "total_draft_tokens_count": 50,
    "accepted_draft_tokens_count": 30,
    "rejected_draft_tokens_count": 16,
    "ignored_draft_tokens_count": 4,
}


def counts(**chunk: Any) -> SpecCounts | None:
    return OpenAIEndpoint().spec_counts({"choices": [], **chunk})


@pytest.mark.parametrize("place", ["stats", "usage"])
def test_its_counts_are_read_where_they_stand(place: str) -> None:
    # What the target was not given to verify was not drafted, by our definition: 30 and 16 were.
    assert counts(**{place: DOCUMENTED}) == SpecCounts(steps=None, drafted=46, accepted=30)


def test_no_ignored_tokens_told_are_none() -> None:
    told = {"total_draft_tokens_count": 492, "accepted_draft_tokens_count": 176, "rejected_draft_tokens_count": 316}
    assert counts(usage=told) == SpecCounts(steps=None, drafted=492, accepted=176)


@pytest.mark.parametrize(
    "stats",
    [
        {},
        {"tokens_per_second": 41.0, "time_to_first_token": 0.1},
        {**DOCUMENTED, "total_draft_tokens_count": None},
        {**DOCUMENTED, "accepted_draft_tokens_count": "30"},
        {**DOCUMENTED, "ignored_draft_tokens_count": -1},
        {**DOCUMENTED, "total_draft_tokens_count": True},
        {"total_draft_tokens_count": 50},
        {**DOCUMENTED, "accepted_draft_tokens_count": 47},
        None,
        [],
        7,
    ],
)
def test_what_tells_no_counts_is_unavailable_and_not_0(stats: Any) -> None:
    assert counts(stats=stats) is None


def test_its_passes_are_not_guessed() -> None:
    assert OpenAIEndpoint().passes(60, [1] * 60, SpecCounts(None, 46, 30)) is None
