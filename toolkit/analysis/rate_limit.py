"""A server that says it is too much: how long it asks us to wait, and how long we do.

Retry-After is whole seconds or an HTTP date (RFC 9110, section 10.2.3). A date is read against the server's own Date
where it sends one, so that its clock and ours need not agree.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST_HOLD = 120.0  # seconds that one request waits for a rate limit, all its attempts together
SHORTEST_PAUSE = 0.2  # seconds: "retry at once" is no reason to hammer


def pause_asked(status: int, headers: Mapping[str, str]) -> float | None:
    """Seconds to wait after a refusal for a rate limit; None where the answer is none or names no time.

    429 is Too Many Requests (RFC 6585), and 503 with Retry-After is a server that knows when it is free again.
    """
    if status not in (429, 503):
        return None
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return max(float(text[:9]), SHORTEST_PAUSE)
    until = _moment(text)
    if until is None:
        return None
    now = _moment(headers.get("Date", "")) or datetime.now(UTC)
    return max((until - now).total_seconds(), SHORTEST_PAUSE)


def too_long(pause: float, held: float) -> str:
    """Why a request that was held back for `held` seconds does not wait `pause` more; empty where it does."""
    if held + pause <= LONGEST_HOLD:
        return ""
    before = f"held back {held:.0f} s already, " if held >= 1 else ""
    return f"{before}it asks for {pause:.0f} s more, and a request waits {LONGEST_HOLD:.0f} s at most"


def _moment(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
