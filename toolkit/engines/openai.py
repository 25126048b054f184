"""Any other OpenAI-compatible endpoint: tokens by `usage`, acceptance unavailable, nothing to launch.

One kind of them tells of its drafts: LM Studio, of which the names are documented in its API changelog, 0.3.10
(https://lmstudio.ai/docs/developer/api-changelog). They stand in `stats` of the response, or in `usage` (as seen in
logs of its 0.4.24). It tells no steps.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolkit.engines.contract import Command, Counters, KnownFailure, Profile, SpecCounts
from toolkit.errors import InputError

_TOTAL, _ACCEPTED = "total_draft_tokens_count", "accepted_draft_tokens_count"
_IGNORED = "ignored_draft_tokens_count"  # drafted, and not sent to the target


class OpenAIEndpoint:
    """An endpoint that is only talked to."""

    name = "openai"
    known_failures: Sequence[KnownFailure] = ()
    key_variable: str | None = None
    owners: frozenset[str] = frozenset()
    version_at: tuple[str, str] | None = None
    greedy_on: frozenset[str] = frozenset()
    not_under_speculation: Mapping[str, str] = {}

    def command(self, profile: Profile, resolve: Callable[[str], str]) -> Command:
        how = f"--profile {profile.name}` or `toolkit sweep --base-url URL" if profile.endpoint else "--base-url URL"
        raise InputError(
            f"profile {profile.name}: engine openai is an endpoint that already runs, there is nothing to launch; "
            f"use `toolkit sweep {how}`."
        )

    def installed_version(self) -> str | None:
        return None

    def scheduling(self, profile: Profile) -> str | None:
        return None

    def schedule_refusal(self, profile: Profile) -> str | None:
        return "an endpoint that already runs has the schedule that it was started with"

    def check(self, profile: Profile, configs: Callable[[str], str]) -> list[str]:
        return []

    def request_fields(self) -> dict[str, Any]:
        return {}

    def chunk_tokens(self, chunk: dict[str, Any]) -> int | None:
        return None

    def prompt_ids(self, chunk: dict[str, Any]) -> list[int] | None:
        return None

    def answer_ids(self, chunk: dict[str, Any]) -> list[int] | None:
        return None

    def spec_counts(self, chunk: dict[str, Any]) -> SpecCounts | None:
        """Of LM Studio: draft tokens that the target did not get to see (`ignored`) were not drafted, as we count."""
        for found in (chunk.get("stats"), chunk.get("usage")):
            if isinstance(found, dict) and found.get(_TOTAL) is not None:
                total: Any = found[_TOTAL]
                accepted: Any = found.get(_ACCEPTED)
                ignored: Any = found.get(_IGNORED) or 0
                possible = all(type(count) is int and count >= 0 for count in (total, accepted, ignored))
                if possible and accepted <= total - ignored:
                    return SpecCounts(steps=None, drafted=total - ignored, accepted=accepted)
        return None

    def passes(self, completion_tokens: int, chunk_sizes: Sequence[int], counts: SpecCounts) -> tuple[int, int] | None:
        return None

    def counters(self, page: str) -> Counters:
        return Counters()
