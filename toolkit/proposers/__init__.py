"""Proposers: guesses that an engine verifies. Engine-free cores, and thin adapters that run inside the engine.

`PromptLookupProposer` is what vLLM's method `custom_class` is given by this name; it is imported when it is asked for,
so that a plugin, a profile or a test that needs only the package does not wait for compiled code.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolkit.proposers.prompt_lookup import PromptLookupProposer

__all__ = ["PromptLookupProposer", "registered"]

registered = False
"""Whether the entry point of vLLM's plugins ran in this process; the proposer says so when it boots in a worker."""


def __getattr__(name: str) -> Any:
    if name == "PromptLookupProposer":
        from toolkit.proposers.prompt_lookup import PromptLookupProposer

        return PromptLookupProposer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
