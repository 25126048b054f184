"""A stub that says what it is told to and scores what others said: an arm or a reference for `toolkit audit`.

Every answer is a run of the words w0 w1 w2 ..., of which each is a token of that number, whatever the chunks. The model
is sure of every word, so that an answer with another one in it is a fault.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stub_server import StubServer

PROMPT = [500, 501, 502]
RIVALS = range(900, 930)


@dataclass
class TalkingServer(StubServer):
    """`tokens` per answer. `slips` are places where it says another word, when it samples; `width` is how many log
    probabilities it gives a place, None is none, `sure` that of the right word; `json` is its answer under a schema."""

    tokens: int = 48
    slips: frozenset[int] = field(default_factory=frozenset)
    width: int | None = 20
    sure: float = -1e-6
    json: str | None = '{"color": "red", "size": "small", "ripe": true, "count": 3}'

    def _events(self, body: dict[str, Any], fault: str | None) -> Iterator[Any]:
        said, strict = 0, "response_format" in body
        for event in super()._events(body, fault):
            choices = event.get("choices") if isinstance(event, dict) else None
            if not choices or "index" not in choices[0] or choices[0]["delta"].get("role"):
                yield {**event, "prompt_token_ids": PROMPT} if choices and self.token_ids else event
                continue
            choice = choices[0]
            size = sum(map(len, choice["delta"].values()))
            ids = [self._word(place, body) for place in range(said, said + size)]
            text = self.json or "" if said == 0 else ""
            choice["delta"] = {"content": text if strict else "".join(f" w{one}" for one in ids)}
            if "token_ids" in choice:
                choice["token_ids"] = ids
            if strict and choice.get("finish_reason"):
                choice["finish_reason"] = "stop"
            said += size
            yield event

    def _word(self, place: int, body: dict[str, Any]) -> int:
        return place + 700 if place in self.slips and body.get("temperature") else place

    def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("prompt_logprobs") is None or self.width is None:
            return {"choices": [{"text": "x"}]}
        rows = [None, *(self._row(place - len(PROMPT), token) for place, token in enumerate(body["prompt"]) if place)]
        return {"choices": [{"text": "x", "prompt_logprobs": rows}]}

    def _row(self, right: int, token: int) -> dict[str, Any]:
        """The right word, its rivals far behind it, and the one that was emitted."""
        best = {right: self.sure, **{rival: -15.0 - rank for rank, rival in enumerate(RIVALS)}}
        listed = dict(list(best.items())[: self.width]) | {token: best.get(token, -60.0)}
        return {str(one): {"logprob": value, "rank": 1, "decoded_token": f" w{one}"} for one, value in listed.items()}
