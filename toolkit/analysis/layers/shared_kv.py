"""Drafts of a target's own layers that read the target's KV, for all places of its texts at once.

A draft step at a place runs one token through the kept layers. In each it attends to the *target's* keys and values of
all places before its start, and to its own of the tokens drafted since: what the proposer does inside the engine. So a
draft depends on the text before it and on nothing that was drafted elsewhere, all places can be rows of one batch, and
what rounds along a text would keep follows from the rows exactly (`Recording.kept`).

The target runs once over each text; its inputs to every layer are kept. A set of layers that begins like one whose
states are known (`Scorer`) is run from the first layer where they differ.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolkit.analysis.forecast.estimate import IntArray
from toolkit.errors import InputError

Layers = tuple[int, ...]

ATTENTION = "toolkit_shared_kv"
ROWS = 256
"""Rows that go through the output head at once: their logits are the largest array here."""


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and what the target answered greedily, token ids. Drafts start at the first `starts` of the answer."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    starts: int


def continuations(network: Any, prompts: Sequence[Sequence[int]], tokens: int, more: int, eos: int) -> list[Text]:
    """The target's greedy answers, of `tokens` tokens and `more` after them, or to their end.

    A draft can start at each of the first `tokens` that a token follows; the `more` say what it had to guess. Prompts
    go through the network side by side, padded on the left.
    """
    import torch
    from transformers import GenerationConfig

    longest = max(map(len, prompts))
    ids = torch.tensor([[eos] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=network.device)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=network.device)
    settings = GenerationConfig(max_new_tokens=tokens + more, do_sample=False, eos_token_id=eos, pad_token_id=eos)
    with torch.inference_mode():
        found = network.generate(input_ids=ids, attention_mask=mask, generation_config=settings)[:, longest:]
    texts = []
    for prompt, row in zip(prompts, found.tolist(), strict=True):
        answer = row[: row.index(eos) + 1] if eos in row else row
        texts.append(Text(tuple(prompt), tuple(answer), min(tokens, len(answer) - 1)))
    return texts


class Recording:
    """What the target saw and said in its texts.

    A *place* is a token of an answer that was an input: the last one of an answer is none. Places of all texts lie
    behind one another: `text` [places] is the number of each one's text, `position` its position there, `truth` the
    token that the target says follows, `token` the one that does; `starts` are the places where drafts start.
    """

    def __init__(self, network: Any, texts: Sequence[Text]) -> None:
        import torch
        from transformers import AttentionInterface, DynamicCache

        self.network = network
        self.texts = [text for text in texts if text.starts > 0]
        if not self.texts:
            raise InputError("every answer ended with its first token: choose other prompts.")
        AttentionInterface.register(ATTENTION, _attend)
        decoder = network.model
        self.count = int(network.config.num_hidden_layers)
        inputs: list[list[Any]] = [[] for _ in range(self.count + 1)]
        self.kv: list[list[tuple[Any, Any]]] = [[] for _ in range(self.count)]
        text: list[int] = []
        position: list[int] = []
        token: list[int] = []
        starts: list[int] = []
        with torch.inference_mode():
            for number, one in enumerate(self.texts):
                ids = [*one.prompt, *one.answer[:-1]]
                first, here = len(one.prompt), len(one.answer) - 1
                cache = DynamicCache()
                output = decoder(
                    torch.tensor([ids], device=network.device),
                    past_key_values=cache,
                    use_cache=True,
                    output_hidden_states=True,
                )
                for layer, hidden in enumerate(output.hidden_states):
                    inputs[layer].append(hidden[0, first:])
                for layer in range(self.count):
                    self.kv[layer].append((cache.layers[layer].keys[0], cache.layers[layer].values[0]))
                starts += range(len(text), len(text) + one.starts)
                text += [number] * here
                position += range(first, first + here)
                token += one.answer[1:]
            self.inputs = [torch.cat(parts) for parts in inputs]  # the last is the head's input, already normed
            self.truth = _says(network, self.inputs[-1])
        self.text = np.array(text)
        self.position = np.array(position)
        self.token = np.array(token)
        self.starts = np.array(starts)

    def rows(self, places: IntArray, depth: int = 1) -> "_Rows":
        """The rows of draft tokens number `depth` at `places`: their drafts started `depth` - 1 places earlier."""
        import torch

        position = self.position[places]
        device = self.network.device
        hidden = self.inputs[0][:1]
        with torch.inference_mode():
            turned = self.network.model.rotary_emb(hidden, torch.tensor(position[None], device=device))
        text = self.text[places]
        edges = np.flatnonzero(np.diff(text)) + 1
        slices = list(zip([0, *edges.tolist()], [*edges.tolist(), len(text)], strict=True)) if len(text) else []
        start = torch.tensor(position - (depth - 1), device=device)
        return _Rows([(int(text[begin]), begin, end) for begin, end in slices], start, turned)

    def run(self, rows: "_Rows", hidden: Any, layers: Iterable[int], drafted: "_Drafted | None" = None) -> Any:
        """`hidden` [n, width] after `layers`, rising; `drafted` is what the drafts wrote so far, and is added to."""
        config = self.network.config
        before, config._attn_implementation = config._attn_implementation, ATTENTION
        try:
            for layer in layers:
                past = drafted.kv.get(layer, []) if drafted else []
                step = _Step(rows, self.kv[layer], past)
                hidden = self.network.model.layers[layer](
                    hidden[None], attention_mask=None, position_embeddings=rows.turned, toolkit_step=step
                )[0]
                if drafted is not None:
                    drafted.kv[layer] = [*past, step.own]
        finally:
            config._attn_implementation = before
        return hidden

    def says(self, hidden: Any) -> IntArray:
        """The token that the model says follows, of hidden states [n, width] behind the last kept layer: [n]."""
        return _says(self.network, self.network.model.norm(hidden))

    def kept(
        self, layers: Sequence[int], k: int, enough: Callable[[int, IntArray], bool] = lambda depth, counts: False
    ) -> IntArray:
        """Of drafts of `k` tokens from each start, how many the target keeps: [starts].

        Where the text ends, the tokens beyond its end count as not kept. Drafts end before `k` when `enough` says so of
        a depth and of the counts that drafts of that depth have.
        """
        import torch

        first = next((layer for layer in range(self.count) if layer not in layers), self.count)
        behind = [layer for layer in layers if layer > first]
        counts = np.zeros(len(self.starts), dtype=np.int64)
        alive = np.arange(len(self.starts))
        drafted = _Drafted()
        with torch.inference_mode():
            for depth in range(1, k + 1):
                places = self.starts[alive] + depth - 1
                inside = places < len(self.text)
                inside[inside] &= self.text[places[inside]] == self.text[self.starts[alive[inside]]]
                alive, places = alive[inside], places[inside]
                drafted.select(inside)
                if not len(alive):
                    break
                hidden = self.run(self.rows(places, depth), self.inputs[first][places], behind, drafted)
                right = self.says(hidden) == self.truth[places]
                alive = alive[right]
                drafted.select(right)
                counts[alive] += 1
                if enough(depth, counts):
                    break
        return counts


@dataclass(slots=True)
class _Rows:
    """Rows sorted by text: (text, begin, end) of each run of them; the position where their drafts started [n]."""

    texts: list[tuple[int, int, int]]
    start: Any
    turned: Any


class _Drafted:
    """What drafts wrote so far: for each layer, by depth, keys and values [KV heads, n, head size]."""

    def __init__(self) -> None:
        self.kv: dict[int, list[tuple[Any, Any]]] = {}

    def select(self, rows: Any) -> None:
        import torch

        chosen = torch.from_numpy(np.flatnonzero(rows))
        self.kv = {layer: [(k[:, chosen], v[:, chosen]) for k, v in past] for layer, past in self.kv.items()}


@dataclass(slots=True)
class _Step:
    """What one layer needs beside its rows: the target's KV of each text, and what the drafts wrote there before."""

    rows: _Rows
    target: list[tuple[Any, Any]]
    past: list[tuple[Any, Any]]
    own: Any = None


def _attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float,
    toolkit_step: _Step,
    **_: Any,
) -> tuple[Any, None]:
    """An attention function of transformers: `query` [1, heads, n, size], `key` and `value` [1, KV heads, n, size].

    A row sees the target's places before its start, what its draft wrote since, and itself: [1, n, heads, size].
    """
    import torch

    heads, n, size = query.shape[1:]
    groups = key.shape[1]
    toolkit_step.own = (key[0], value[0])
    drafted = [*toolkit_step.past, toolkit_step.own]
    q = query[0].view(groups, heads // groups, n, size) * scaling
    own = torch.stack([(q * k[:, None]).sum(-1) for k, _ in drafted], dim=-1)  # [groups, per group, n, depth]
    found = torch.empty_like(q)
    for text, begin, end in toolkit_step.rows.texts:
        keys, values = toolkit_step.target[text]
        start = toolkit_step.rows.start[begin:end]
        seen = int(start.max())
        part = q[:, :, begin:end]
        past = (part.flatten(1, 2) @ keys[:, :seen].transpose(1, 2)).view(*part.shape[:3], seen)
        past.masked_fill_(torch.arange(seen, device=start.device) >= start[:, None], float("-inf"))
        weights = torch.cat([past, own[:, :, begin:end]], dim=-1).softmax(-1, dtype=torch.float32).to(q.dtype)
        mixed = (weights[..., :seen].flatten(1, 2) @ values[:, :seen]).view_as(part)
        for depth, (_, v) in enumerate(drafted):
            mixed += weights[..., seen + depth, None] * v[:, None, begin:end]
        found[:, :, begin:end] = mixed
    return found.view(1, heads, n, size).transpose(1, 2), None


def _says(network: Any, normed: Any) -> IntArray:
    """The argmax of the output head for rows [n, width]: [n]."""
    head = network.get_output_embeddings()
    found: IntArray = np.concatenate([head(part).argmax(-1).cpu().numpy() for part in normed.split(ROWS)])
    return found


class Scorer:
    """Agreement at the first position of sets of layers, each run from the first layer where it leaves the base.

    The base is where the search stands: all layers at first. What was scored once is remembered.
    """

    def __init__(self, recording: Recording) -> None:
        self.count = recording.count
        self.evaluations = 0
        self._recording = recording
        self._truth = recording.truth[recording.starts]
        self._rows = recording.rows(recording.starts)
        self._base = tuple(range(self.count))
        self._states = [hidden[recording.starts] for hidden in recording.inputs[: self.count]]
        self._known = {self._base: 1.0}

    def agreement(self, layers: Layers) -> float:
        """The share of starts at which a draft of `layers` says the target's token."""
        if layers not in self._known:
            import torch

            self.evaluations += 1
            with torch.inference_mode():
                said = self._recording.says(self._run(layers)[-1])
            self._known[layers] = float((said == self._truth).mean())
        return self._known[layers]

    def settle(self, layers: Layers) -> None:
        """Make `layers` the base."""
        import torch

        with torch.inference_mode():
            states = self._run(layers)
        self._base, self._states = layers, states[:-1]

    def _run(self, layers: Layers) -> list[Any]:
        """The states before each layer of the model, kept or not, and the last one behind them: [count + 1]."""
        different = (layer for layer in range(self.count) if (layer in layers) != (layer in self._base))
        first = next(different, self.count - 1)
        states = self._states[: first + 1]
        for layer in range(first, self.count):
            hidden = states[-1]
            states.append(self._recording.run(self._rows, hidden, [layer]) if layer in layers else hidden)
        return states
