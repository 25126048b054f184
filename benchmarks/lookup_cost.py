"""What a lookup takes by length of context: time and memory per proposer, in one run, in full batches.

usage: lookup_cost.py [--contexts 1024,4096,16384,131072] [--batches 64,16] [--max-draft 16] [--steps 100]
                      [--tokenizer FILE] [--proposers prompt-lookup,vllm-ngram,suffix]

Contexts are windows of the standard library's sources, as the lab model's tokenizer reads them (`make model`). Answers
copy stretches of the context, 1 to 60 tokens of it from anywhere, with one to three foreign tokens between them, so
that every step appends what its draft earned and looks up what it has not seen. 64 contexts of 131,072 tokens and their
indexes lie far beyond any cache. Build and index are per token of context. Times are CPU times, the least of three runs
in which proposers take turns (`toolkit/analysis/replay/timing.py`). Batches whose trees would take gigabytes are left
out.
"""

import argparse
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from toolkit.analysis.replay.candidates import above
from toolkit.analysis.replay.comparison import FLOOR, make
from toolkit.analysis.replay.timing import Maker, timings
from toolkit.analysis.replay.traces import Request, Tokens

MODEL = Path.home() / ".cache" / "toolkit" / "models" / "SmolLM2-135M-Instruct" / "tokenizer.json"
NAMES = ("prompt-lookup", "vllm-ngram", "suffix")
VOCABULARY = 49_152
ANSWER = 2000  # tokens: more than the steps of one run take
COPIED, FOREIGN = (1, 60), (1, 3)
LARGEST = {"suffix": 2**22}  # tokens in one batch: at 350 bytes each, and its trees take more while they grow


def main() -> None:
    """Tokenise, measure, print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", default="1024,4096,16384,131072")
    parser.add_argument("--batches", default="64,16")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--max-draft", type=int, default=16)
    parser.add_argument("--tokenizer", type=Path, default=MODEL)
    parser.add_argument("--proposers", default=",".join(NAMES))
    arguments = parser.parse_args()
    contexts = [int(text) for text in arguments.contexts.split(",")]
    batches = [int(text) for text in arguments.batches.split(",")]
    text = library(arguments.tokenizer, max(contexts) * max(batches))
    heads = ("context", "batch", "proposer", "us per request and step", "tokens per step", "build, ns", "index, bytes")
    print("|", " | ".join(heads), "|")
    print("|---:|---:|---|" + "---:|" * 4)
    for context in contexts:
        for batch in batches:
            requests = windows(text, context, batch)
            names = [name for name in arguments.proposers.split(",") if context * batch <= LARGEST.get(name, 2**40)]
            fresh = makers(names, requests, arguments.max_draft)
            for name, found in timings(fresh, requests, batch, arguments.steps).items():
                took = f"{found.us_per_step:.2f} | {found.tokens_per_step:.1f}"
                index = f"{found.build_ns_per_token:.0f} | {found.bytes_per_token:.0f}"
                print(f"| {context} | {batch} | {name} | {took} | {index} |", flush=True)


def makers(names: list[str], requests: list[Request], most: int) -> dict[str, Maker]:
    """What makes each proposer afresh."""

    def maker(name: str) -> Maker:
        return lambda in_flight: make(name, requests, most, above(FLOOR), in_flight)

    return {name: maker(name) for name in names}


def library(tokenizer: Path, least: int) -> Tokens:
    """The standard library's sources as token ids, over again where there are too few."""
    encode = Tokenizer.from_file(str(tokenizer))
    files = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    random.Random(0).shuffle(files)
    parts: list[Tokens] = []
    for path in (path for path in files if "site-packages" not in path.parts):
        if sum(map(len, parts)) >= least:
            break
        parts.append(np.array(encode.encode(path.read_text(encoding="utf-8", errors="ignore")).ids, dtype=np.int32))
    return np.resize(np.concatenate(parts), least)


def windows(text: Tokens, context: int, count: int) -> list[Request]:
    """`count` requests over contexts that do not overlap."""
    rng = random.Random(context)
    prompts = text[: context * count].reshape(count, context)
    return [Request("library", prompt, np.array(list(answer(prompt, rng)), dtype=np.int32)) for prompt in prompts]


def answer(prompt: Tokens, rng: random.Random) -> Iterator[int]:
    """Copied stretches of the prompt with foreign tokens between them."""
    written = 0
    while written < ANSWER:
        begin = rng.randrange(len(prompt))
        copied = prompt[begin : begin + rng.randint(*COPIED)].tolist()
        stretch = [*copied, *rng.sample(range(VOCABULARY), rng.randint(*FOREIGN))]
        written += len(stretch)
        yield from stretch


if __name__ == "__main__":
    main()
