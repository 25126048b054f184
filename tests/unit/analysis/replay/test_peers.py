"""The oracle copies exactly what a naive search finds; a peer that is not installed says how to get it."""

import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.replay.candidates import Lookup, above
from toolkit.analysis.replay.engine import serve
from toolkit.analysis.replay.peers import Oracle, Suffix, UnavailableError, VllmNgram, copied_lengths
from toolkit.analysis.replay.traces import Request

texts = st.lists(st.integers(0, 2), min_size=1, max_size=15)


def request(prompt: Sequence[int], output: Sequence[int]) -> Request:
    return Request("any", np.array(prompt, dtype=np.int32), np.array(output, dtype=np.int32))


def naive(requests: Sequence[Request], most: int) -> list[int]:
    """By definition: the longest start of what comes that stands, whole, in what was."""
    found = []
    for number, one in enumerate(requests):
        earlier = [[*r.prompt, *r.output] for r in requests[:number]]
        whole = [*one.prompt, *one.output]
        for at in range(len(whole)):
            known = [*earlier, whole[:at]]
            lengths = [
                length
                for length in range(1, min(most, len(whole) - at) + 1)
                if any(whole[at : at + length] == text[i : i + length] for text in known for i in range(len(text)))
            ]
            found.append(max(lengths, default=0))
    return found


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4), st.integers(1, 6))
def test_copied_lengths_are_those_of_a_naive_search(pairs: list[tuple[list[int], list[int]]], most: int) -> None:
    requests = [request(*pair) for pair in pairs]
    assert copied_lengths(requests, most).tolist() == naive(requests, most)


def test_large_token_ids_do_not_collide() -> None:
    requests = [request([2**31 - 1, 0, 2**31 - 1], [0, 1, 2**31 - 1])]
    assert copied_lengths(requests, 4).tolist() == naive(requests, 4)


def test_the_oracle_drafts_nothing_that_is_not_kept() -> None:
    requests = [request([1, 2, 3, 4, 5], [1, 2, 3, 9, 4, 5, 1]), request([7], [9, 4, 5, 8])]
    tally = serve(Oracle(16, requests), requests)
    # 1 | 2 3 and 9 | 4 5 1 (it stands over the end of the prompt); 9 | 4 5 and 8.
    assert (tally.passes, tally.drafted, tally.accepted) == (5, 7, 7)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=3), st.integers(1, 5))
def test_no_other_way_to_copy_takes_fewer_passes(pairs: list[tuple[list[int], list[int]]], most: int) -> None:
    requests = [request(*pair) for pair in pairs]
    lengths = iter(copied_lengths(requests, most).tolist())
    fewest = 0
    for one in requests:
        here = [next(lengths) for _ in range(one.length)][len(one.prompt) :]
        best = [0] * (len(here) + 1)  # passes from each token on, by trying every shorter copy too
        for at in reversed(range(len(here))):
            best[at] = 1 + min(best[min(at + kept + 1, len(here))] for kept in range(here[at] + 1))
        fewest += 1 + best[1]
    assert serve(Oracle(most, requests), requests).passes == fewest


@pytest.mark.parametrize(
    ("module", "make", "said"),
    [
        ("vllm.v1.spec_decode.ngram_proposer", lambda: VllmNgram(4, 1, 10), "vLLM cannot be imported"),
        ("toolkit.proposers.lookup", lambda: Lookup(4, 1, above(0.5)), "pip install numba"),
        ("arctic_inference.suffix_decoding", lambda: Suffix(4, 1.0), "build_suffix_decoding.sh"),
    ],
)
def test_who_is_not_installed_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, module: str, make: object, said: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert callable(make)
    with pytest.raises(UnavailableError, match=said):
        make()
