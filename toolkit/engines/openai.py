"""Any other OpenAI-compatible endpoint: tokens by `usage`, acceptance unavailable, nothing to launch."""

from collections.abc import Callable, Sequence
from typing import Any

from toolkit.engines.contract import Command, Counters, KnownFailure, Profile, SpecCounts
from toolkit.errors import InputError


class OpenAIEndpoint:
    """An endpoint that is only talked to."""

    name = "openai"
    known_failures: Sequence[KnownFailure] = ()
    key_variable: str | None = None
    owners: frozenset[str] = frozenset()
    version_at: tuple[str, str] | None = None

    def command(self, profile: Profile, resolve: Callable[[str], str]) -> Command:
        raise InputError(
            f"profile {profile.name}: engine openai is an endpoint that already runs; "
            "use `toolkit sweep --base-url URL`."
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
        return None

    def passes(self, completion_tokens: int, chunk_sizes: Sequence[int], counts: SpecCounts) -> tuple[int, int] | None:
        return None

    def counters(self, page: str) -> Counters:
        return Counters()
