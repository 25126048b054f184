"""What `toolkit lab serve` answers: the pieces of an answer as bodies in the dialect of OpenAI and vLLM.

Places of the fields as in vLLM 0.32 (vllm/entrypoints/openai/chat_completion/serving.py and completion/serving.py):
`token_ids` in the choice; `prompt_token_ids` beside the choices of a chat (when streaming in the first chunk, that of
the role), in the choice of a completion (when streaming in its first chunk); `prompt_logprobs` in the choice;
`metrics.speculative_decoding` in the body, or in the last chunk, the one with `usage`.
"""

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolkit.lab.answer import Choice, Piece, Scored
from toolkit.lab.request import Ask
from toolkit.lab.tokenizer import Tokenizer

LOWEST = -9999.0  # stands for a log probability of minus infinity, which JSON cannot say


@dataclass(slots=True)
class Tally:
    """The counts of one answer as its pieces come. Steps without a draft are no part of the two lists."""

    tokens: int = 0
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        self.tokens += len(piece.tokens)
        if piece.drafted:
            self.drafted.append(piece.drafted)
            self.accepted.append(piece.accepted)

    def speculative(self, k: int) -> dict[str, Any]:
        """As `--per-request-spec-decode-metrics detailed` tells it (vllm/v1/metrics/stats.py)."""
        steps, drafted, accepted = len(self.drafted), sum(self.drafted), sum(self.accepted)
        return {
            "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
            "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
            "acceptance_histogram": [self.accepted.count(kept) for kept in range(k + 1)],
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": drafted,
            "num_spec_tokens": k,
            **({"per_step_accepted": self.accepted, "per_step_drafted": self.drafted} if steps else {}),
        }


class Reply:
    """One answer in the making. `k` is None on a server that does not speculate. Subclasses know the two routes."""

    kind: str
    chunk_kind: str
    prefix: str

    def __init__(self, ask: Ask, model: str, tokenizer: Tokenizer, prompt: Sequence[int], k: int | None) -> None:
        self.tally = Tally()
        self._ask, self._tokenizer, self._prompt, self._k = ask, tokenizer, list(prompt), k
        self._head = {"id": f"{self.prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first token."""
        return []

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """One step as a chunk of a stream."""
        self.tally.add(piece)
        return self._body(self.chunk_kind, [self._delta(piece)])

    def closing(self) -> list[dict[str, Any]]:
        """Chunks after the last token: usage and counts, when asked for."""
        if not self._ask.stream_options.include_usage:
            return []
        return [{**self._body(self.chunk_kind, []), "usage": self._usage(), **self._metrics()}]

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """The answer in one body."""
        for piece in pieces:
            self.tally.add(piece)
        return {**self._body(self.kind, [self._choice(pieces)]), "usage": self._usage(), **self._metrics()}

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"object": kind, **self._head, "choices": choices}

    def _usage(self) -> dict[str, int]:
        prompt, answer = len(self._prompt), self.tally.tokens
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}

    def _metrics(self) -> dict[str, Any]:
        return {} if self._k is None else {"metrics": {"speculative_decoding": self.tally.speculative(self._k)}}

    def _delta(self, piece: Piece) -> dict[str, Any]:
        raise NotImplementedError

    def _choice(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        raise NotImplementedError

    def _ending(self, piece: Piece) -> dict[str, Any]:
        return {"finish_reason": piece.finish_reason, "stop_reason": piece.stop_reason}

    def _tokens(self, pieces: Iterable[Piece]) -> dict[str, Any]:
        ids = [token for piece in pieces for token in piece.tokens]
        return {"token_ids": ids} if self._ask.return_token_ids else {}

    def _prompt_tokens(self) -> dict[str, Any]:
        return {"prompt_token_ids": self._prompt} if self._ask.return_token_ids else {}

    def _word(self, token: int) -> str:
        return f"token_id:{token}" if self._ask.return_tokens_as_token_ids else self._tokenizer.decode([token])


class ChatReply(Reply):
    """POST /v1/chat/completions."""

    kind, chunk_kind, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def opening(self) -> list[dict[str, Any]]:
        role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return [{**self._body(self.chunk_kind, [role]), **self._prompt_tokens()}]

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        return {**super().whole(pieces), **self._prompt_tokens()}

    def _delta(self, piece: Piece) -> dict[str, Any]:
        return {"index": 0, "delta": {"content": piece.text}, **self._rest([piece])}

    def _choice(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        message = {"role": "assistant", "content": "".join(piece.text for piece in pieces)}
        return {"index": 0, "message": message, **self._rest(pieces)}

    def _rest(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        scores = _joined(pieces)
        logprobs = None if scores is None else {"content": [self._entry(one) for one in scores]}
        return {"logprobs": logprobs, **self._ending(pieces[-1]), **self._tokens(pieces)}

    def _entry(self, scored: Scored) -> dict[str, Any]:
        return {**self._told(scored.choice), "top_logprobs": [self._told(choice) for choice in scored.top]}

    def _told(self, choice: Choice) -> dict[str, Any]:
        text = self._tokenizer.decode([choice.token])
        return {
            "token": self._word(choice.token),
            "logprob": max(choice.logprob, LOWEST),
            "bytes": list(text.encode("utf-8", errors="replace")),
        }


class CompletionReply(Reply):
    """POST /v1/completions."""

    kind = chunk_kind = "text_completion"
    prefix = "cmpl"

    def _delta(self, piece: Piece) -> dict[str, Any]:
        first = self.tally.tokens == len(piece.tokens)
        return {"index": 0, **self._rest([piece]), **(self._prompt_tokens() if first else {})}

    def _choice(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        scores = pieces[0].prompt_scores
        told = None if scores is None else [None, *(self._scored_prompt(one) for one in scores)]
        return {"index": 0, **self._rest(pieces), "prompt_logprobs": told, **self._prompt_tokens()}

    def _rest(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        scores = _joined(pieces)
        return {
            "text": "".join(piece.text for piece in pieces),
            "logprobs": None if scores is None else self._logprobs(scores),
            **self._ending(pieces[-1]),
            **self._tokens(pieces),
        }

    def _logprobs(self, scores: Sequence[Scored]) -> dict[str, Any]:
        return {
            "tokens": [self._word(one.choice.token) for one in scores],
            "token_logprobs": [max(one.choice.logprob, LOWEST) for one in scores],
            "top_logprobs": [
                {self._word(choice.token): max(choice.logprob, LOWEST) for choice in (one.choice, *one.top)}
                for one in scores
            ],
        }

    def _scored_prompt(self, scored: Scored) -> dict[str, Any]:
        return {
            str(choice.token): {
                "logprob": max(choice.logprob, LOWEST),
                "rank": choice.rank,
                "decoded_token": self._tokenizer.decode([choice.token]),
            }
            for choice in (scored.choice, *scored.top)
        }


def _joined(pieces: Iterable[Piece]) -> list[Scored] | None:
    scores: list[Scored] = []
    for piece in pieces:
        if piece.scores is None:
            return None
        scores += piece.scores
    return scores
