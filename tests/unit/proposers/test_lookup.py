"""Prompt lookup for a batch: what is drafted, from where, and how likely it is said to be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.errors import InputError
from toolkit.proposers import batch as batch_module
from toolkit.proposers import lookup as module
from toolkit.proposers.lookup import LookupOptions, PromptLookup


def drafts(lookup, handle, text):
    """What would be drafted after `text`, and its survival."""
    found = lookup.step(*batch([handle], [text]))
    return found.tokens[0, : found.lengths[0]].tolist(), found.survival[0, : found.lengths[0]].tolist()


def batch(handles, texts):
    rows = np.zeros((len(texts), max(map(len, texts))), np.int32)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = text
    return (
        np.array(handles, np.int32),
        np.arange(len(texts), dtype=np.int32),
        np.array([len(text) for text in texts], np.int32),
        rows,
    )


def ints(values):
    return np.array(values, np.int32)


def serve(lookup, prompt, output):
    handle = lookup.start(ints(prompt))
    drafts(lookup, handle, prompt + output)
    lookup.finish(handle)


PROMPT = list(range(100, 140))


def test_drafts_what_followed_the_match_in_the_prompt():
    lookup = PromptLookup(LookupOptions(max_draft=4), 1)
    handle = lookup.start(ints([*PROMPT, 110, 111]))
    assert drafts(lookup, handle, [*PROMPT, 110, 111, 112])[0] == [113, 114, 115, 116]


def test_drafts_nothing_where_nothing_matches():
    lookup = PromptLookup(LookupOptions(), 1)
    handle = lookup.start(ints(PROMPT))
    assert drafts(lookup, handle, [*PROMPT, 7])[0] == []


def test_a_copy_that_reaches_the_end_goes_round():
    lookup = PromptLookup(LookupOptions(max_draft=8), 1)
    handle = lookup.start(ints([1, 2, 3, 1, 2, 3, 1, 2, 3]))
    assert drafts(lookup, handle, [1, 2, 3, 1, 2, 3, 1, 2, 3, 1])[0] == [2, 3, 1, 2, 3, 1, 2, 3]


def test_remembers_what_another_request_wrote():
    lookup = PromptLookup(LookupOptions(max_draft=4), 2)
    serve(lookup, [1, 2, 3, 4, 5], [50, 51, 52, 53, 54, 55, 56])
    handle = lookup.start(ints([7, 8, 9, 10]))
    assert drafts(lookup, handle, [7, 8, 9, 10, 50, 51])[0] == [52, 53, 54, 55]


def test_without_a_memory_it_remembers_nothing():
    lookup = PromptLookup(LookupOptions(memory_tokens=0), 2)
    serve(lookup, [1, 2, 3, 4, 5], [50, 51, 52, 53, 54, 55, 56])
    handle = lookup.start(ints([7, 8, 9, 10]))
    assert drafts(lookup, handle, [7, 8, 9, 10, 50, 51])[0] == []


def test_what_was_not_used_for_long_is_forgotten():
    lookup = PromptLookup(LookupOptions(memory_tokens=400), 2)
    serve(lookup, [1, 2, 3, 4, 5], [50, 51, 52, 53, 54, 55, 56])
    for round_ in range(10):
        serve(lookup, [1, 2, 3, 4, 5], list(range(1000 * round_ + 1000, 1000 * round_ + 1100)))
    handle = lookup.start(ints([7, 8, 9, 10]))
    assert drafts(lookup, handle, [7, 8, 9, 10, 50, 51])[0] == []


def test_what_is_written_again_is_kept():
    lookup = PromptLookup(LookupOptions(memory_tokens=400, max_draft=2), 2)
    for round_ in range(10):
        serve(lookup, [1, 2, 3, 4, 5], [50, 51, 52, 53, 54, 55, 56])
        serve(lookup, [1, 2, 3, 4, 5], list(range(1000 * round_ + 1000, 1000 * round_ + 1080)))
    handle = lookup.start(ints([7, 8, 9, 10]))
    assert drafts(lookup, handle, [7, 8, 9, 10, 50, 51])[0] == [52, 53]


def test_a_sequence_that_is_forgotten_leaves_nothing():
    lookup = PromptLookup(LookupOptions(), 1)
    handle = lookup.start(ints([1, 2, 3, 4, 5]))
    drafts(lookup, handle, [1, 2, 3, 4, 5, 50, 51, 52])
    lookup.forget(handle)
    handle = lookup.start(ints([7, 8, 9, 10]))
    assert drafts(lookup, handle, [7, 8, 9, 10, 50, 51])[0] == []


def test_looks_in_the_corpus():
    lookup = PromptLookup(LookupOptions(max_draft=3), 1, ints(range(500, 600)))
    handle = lookup.start(ints([7, 8, 9, 10]))
    assert drafts(lookup, handle, [7, 8, 9, 10, 520, 521])[0] == [522, 523, 524]


def test_a_draft_ends_with_the_corpus():
    lookup = PromptLookup(LookupOptions(), 1, ints(range(500, 600)))
    handle = lookup.start(ints([7, 8, 9, 10]))
    assert drafts(lookup, handle, [7, 8, 9, 10, 596, 597])[0] == [598, 599]


def test_takes_the_longer_match():
    lookup = PromptLookup(LookupOptions(max_draft=1), 1, ints([520, 521, 522, 900]))
    handle = lookup.start(ints([7, 8, 9, 522, 111]))
    assert drafts(lookup, handle, [7, 8, 9, 522, 111, 520, 521, 522])[0] == [900]


def test_where_text_branched_it_takes_the_branch_that_was_taken_most():
    lookup = PromptLookup(LookupOptions(max_draft=3), 1)
    stem = [1, 2, 3, 4]
    for branch in (60, 60, 60, 70):
        serve(lookup, [9, 9, branch, 11], [*stem, branch, branch + 1, 5])
    handle = lookup.start(ints([7, 8, 9, 10]))
    assert drafts(lookup, handle, [7, 8, 9, 10, *stem])[0][0] == 60


def test_survival_is_learned_from_what_was_kept():
    lookup = PromptLookup(LookupOptions(max_draft=4, memory_tokens=0), 1)
    kept, broken = list(PROMPT), list(PROMPT)
    said = []
    for text, after in ((kept, [112, 113, 114, 115, 116]), (broken, [112, 7, 8, 110, 9])):
        lookup = PromptLookup(LookupOptions(max_draft=4, memory_tokens=0), 1)
        for _ in range(30):
            handle = lookup.start(ints(text))
            for end in range(len(after) + 1):
                drafts(lookup, handle, [*text, 110, 111, *after[:end]])
            lookup.forget(handle)
        handle = lookup.start(ints(text))
        said.append(drafts(lookup, handle, [*text, 110, 111])[1][1])
    assert said[0] > 0.8
    assert said[1] < 0.3


@given(st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=60), min_size=1, max_size=5), st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_survival_falls_along_a_draft(texts, most):
    lookup = PromptLookup(LookupOptions(max_draft=most), len(texts))
    handles = [lookup.start(ints(text[:4])) for text in texts]
    found = lookup.step(*batch(handles, texts))
    assert (np.diff(found.survival, axis=1) <= 0).all()
    assert ((found.survival >= 0) & (found.survival <= 1)).all()
    assert (found.lengths == (found.survival > 0).sum(axis=1)).all()


@given(st.lists(st.integers(0, 3), min_size=9, max_size=60))
@settings(max_examples=60, deadline=None)
def test_drafts_do_not_depend_on_how_the_tokens_arrived(text):
    at_once, one_by_one = (PromptLookup(LookupOptions(memory_tokens=0), 1) for _ in range(2))
    expected, _ = drafts(at_once, at_once.start(ints(text[:4])), text)
    handle = one_by_one.start(ints(text[:4]))
    for end in range(5, len(text) + 1):
        found, _ = drafts(one_by_one, handle, text[:end])
    common = min(len(found), len(expected))  # survival, and so the end of a draft, is learned on the way
    assert found[:common] == expected[:common]


def step_without_asking_ahead(table, handles, rows, ends, token_ids, prompts, cursors, shadows, *rest):
    survived, followed, most, tokens, survival, lengths = rest
    batch_module.take_in(table, handles, rows, ends, token_ids, cursors, shadows, survived, followed)
    batch_module.look_up(table, handles, prompts, cursors, shadows, survived, followed, most, tokens, survival, lengths)


@given(st.lists(st.lists(st.integers(0, 5), min_size=9, max_size=60), min_size=2, max_size=5))
@settings(max_examples=40, deadline=None)
def test_asking_memory_ahead_changes_nothing(texts):
    results = []
    for step in (batch_module.step, step_without_asking_ahead):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "step", step)
            lookup = PromptLookup(LookupOptions(), len(texts), ints([1, 2, 3, 4, 5, 0] * 5))
            serve(lookup, [1, 2, 3], texts[0])
            handles = [lookup.start(ints(text[:4])) for text in texts[1:]]
            found = lookup.step(*batch(handles, texts[1:]))
            results.append((found.tokens[found.survival > 0].tolist(), found.survival.tolist()))
    assert results[0] == results[1]


def test_rows_may_be_anywhere_in_the_batch():
    lookup = PromptLookup(LookupOptions(max_draft=2), 2)
    handles = [lookup.start(ints(PROMPT)), lookup.start(ints(range(50)))]
    rows = np.zeros((5, 60), np.int32)
    rows[4, :42], rows[1, :52] = [*PROMPT, 110, 111], [*range(50), 20, 21]
    found = lookup.step(ints(handles), ints([4, 1]), ints([42, 52]), rows)
    assert found.tokens.tolist() == [[112, 113], [22, 23]]


def test_a_batch_of_nothing_drafts_nothing():
    lookup = PromptLookup(LookupOptions(), 2)
    assert len(lookup.step(ints([]), ints([]), ints([]), np.zeros((2, 8), np.int32)).lengths) == 0


def test_more_sequences_than_there_is_room_for_are_refused():
    lookup = PromptLookup(LookupOptions(), 1)
    lookup.start(ints([1, 2, 3]))
    with pytest.raises(RuntimeError, match="more than 1 sequences"):
        lookup.start(ints([1, 2, 3]))


def test_a_handle_that_was_freed_is_used_again():
    lookup = PromptLookup(LookupOptions(), 1)
    for prompt in ([1, 2, 3, 1, 2], [5, 6, 7, 5, 6]):
        handle = lookup.start(ints(prompt))
        assert drafts(lookup, handle, [*prompt, prompt[2]])[0][0] == prompt[0]
        lookup.finish(handle)


def test_says_what_it_has_of_a_sequence():
    lookup = PromptLookup(LookupOptions(), 1)
    handle = lookup.start(ints(PROMPT))
    drafts(lookup, handle, [*PROMPT, 5, 6, 7])
    assert lookup.length(handle) == len(PROMPT) + 3
    assert lookup.tail(handle, 4).tolist() == [139, 5, 6, 7]


@pytest.mark.parametrize(
    "wrong", [{"max_draft": 0}, {"max_draft": 129}, {"max_match": 0}, {"memory_tokens": -1}, {"max_draft": True}]
)
def test_options_that_cannot_be_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        LookupOptions(**wrong)


def test_a_million_steps_stay_within_the_bound():
    bound, length, steps = 20_000, 250, 1_000_000
    lookup = PromptLookup(LookupOptions(memory_tokens=bound, max_draft=4), 64)
    rng = np.random.default_rng(3)
    rows = np.arange(64, dtype=np.int32)
    sizes = []
    for _ in range(steps // 64 // length):
        texts = rng.integers(0, 500, (64, length + 10)).astype(np.int32)
        texts[:, length // 2 :] = texts[:, : length + 10 - length // 2]
        handles = ints([lookup.start(text[:10]) for text in texts])
        for end in range(11, length + 11):
            lookup.step(handles, rows, np.full(64, end, np.int32), texts)
        for handle in handles.tolist():
            lookup.finish(handle)
        sizes.append(lookup.bytes_used())
    assert sizes[-1] <= 101 * bound + 2000
    assert max(sizes[len(sizes) // 2 :]) <= 1.1 * max(sizes[: len(sizes) // 2])
