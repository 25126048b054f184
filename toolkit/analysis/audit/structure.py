"""Level 4: strict JSON at concurrency 8. Every reply of the arm must parse and fit the schema."""

import json
from collections.abc import Sequence
from typing import Any

from toolkit.analysis.audit.judgement import Check, Findings
from toolkit.analysis.audit.replies import Reply

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "color": {"type": "string", "enum": ["red", "green", "blue"]},
        "size": {"type": "string", "enum": ["small", "large"]},
        "ripe": {"type": "boolean"},
        "count": {"type": "integer", "enum": [1, 2, 3, 5, 8]},
    },
    "required": ["color", "size", "ripe", "count"],
    "additionalProperties": False,
}
RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "fruit", "schema": SCHEMA, "strict": True}}
CUT = "length"
"""The reason to finish of a reply that was cut off, which need not parse."""


def judge_structure(replies: Sequence[Reply], refused: str = "") -> Findings:
    """Replies that do not parse under the schema, the baseline's as the control. `refused`: why nothing was asked."""
    if refused:
        return Findings(gap=refused)
    arm, baseline = (
        [r for r in replies if r.question == "structure" and r.side == side and r.finish_reason != CUT]
        for side in ("arm", "baseline")
    )
    if not arm or not baseline:
        return Findings(gap="no reply in strict JSON was complete")
    broken = [reply for reply in arm if not fits(reply.text)]
    also = sum(not fits(reply.text) for reply in baseline)
    control = f"{also} of {len(baseline)} of the baseline's"
    note = f"{len(broken)} of {len(arm)} replies do not parse under the schema ({control})"
    check = Check("strict JSON at concurrency 8", len(broken), 0.0 if broken and not also else 1.0, len(arm), note=note)
    gap = f"the baseline's own replies do not parse: {note}" if also else ""
    examples = [f"structured reply to prompt {reply.prompt}: {reply.text[:120]!r}" for reply in broken[:3]]
    return Findings([check], gap, f"{len(arm)} replies in strict JSON parse under the schema", examples)


def fits(text: str) -> bool:
    """Whether `text` is an object of the schema and nothing else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    properties = SCHEMA["properties"]
    return (
        isinstance(value, dict)
        and value.keys() == properties.keys()
        and isinstance(value["ripe"], bool)
        and all(value[name] in properties[name]["enum"] for name in ("color", "size", "count"))
        and not isinstance(value["count"], bool)
    )
