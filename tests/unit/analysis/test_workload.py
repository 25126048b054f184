"""The shipped generators (pure, never repeating, of the promised shape) and files (right and wrong lines)."""

import ast
import json
import pickle
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.generators import GENERATOR_VERSION, WRITERS
from toolkit.analysis.workload import Prompt, Workload, load_workload
from toolkit.errors import InputError

SHIPPED = ["copy-code", "copy-list", "extract", "chat", "creative"]
COUNT = 3000

shipped = pytest.mark.parametrize("name", SHIPPED)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text.strip() != "")


def user_text(prompt: Prompt) -> str:
    (message,) = prompt.messages
    assert message["role"] == "user"
    return message["content"]


def fenced(prompt: Prompt) -> str:
    return user_text(prompt).split("```python\n")[1].split("```")[0]


@pytest.fixture(scope="module")
def many() -> dict[str, list[Prompt]]:
    """COUNT prompts of each shipped workload."""
    return {name: [load_workload(name).prompt(index) for index in range(COUNT)] for name in SHIPPED}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all the examples of a property: hypothesis refuses a function's own tmp_path."""
    return tmp_path_factory.mktemp("prompts")


def written(directory: Path, *lines: str | bytes, name: str = "mine.jsonl") -> str:
    path = directory / name
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return str(path)


class TestGenerators:
    def test_the_shipped_names(self) -> None:
        assert list(WRITERS) == SHIPPED

    @given(st.sampled_from(SHIPPED), st.integers(0, 2**64), st.integers(0, 10**7))
    def test_a_prompt_depends_on_name_seed_and_index_only(self, name: str, seed: int, index: int) -> None:
        assert load_workload(name, seed).prompt(index) == load_workload(name, seed).prompt(index)

    @shipped
    def test_order_of_asking_does_not_matter(self, name: str) -> None:
        workload = load_workload(name)
        forward = [workload.prompt(index) for index in range(20)]
        assert [workload.prompt(index) for index in reversed(range(20))] == forward[::-1]

    @shipped
    def test_no_prompt_repeats(self, name: str, many: dict[str, list[Prompt]]) -> None:
        assert len({prompt.digest for prompt in many[name]}) == COUNT

    @shipped
    def test_no_prompt_repeats_across_seeds(self, name: str) -> None:
        workloads = [load_workload(name, seed) for seed in range(5)]
        assert len({workload.prompt(index).digest for workload in workloads for index in range(400)}) == 2000

    @shipped
    def test_far_apart_indices_do_not_repeat(self, name: str) -> None:
        workload = load_workload(name)
        assert len({workload.prompt(index).digest for index in range(0, 100_000, 97)}) == len(range(0, 100_000, 97))

    @shipped
    def test_prompts_differ_within_twenty_characters(self, name: str, many: dict[str, list[Prompt]]) -> None:
        # A block of a prefix cache is 16 tokens or more: nothing after the chat template's own head may be shared.
        assert len({user_text(prompt)[:20] for prompt in many[name]}) == COUNT

    @shipped
    def test_text_is_printable_ascii(self, name: str, many: dict[str, list[Prompt]]) -> None:
        texts = [user_text(prompt).replace("\n", "") for prompt in many[name]]
        assert all(text.isascii() and text.isprintable() for text in texts)

    @shipped
    def test_no_slot_is_left_unfilled(self, name: str, many: dict[str, list[Prompt]]) -> None:
        # The f-strings of copy-code keep their braces, around a name of the code.
        slots = ("{noun}", "{verb}", "{trait}", "{job}", "{town}", "{month}", "{author}", "{new}", "{a}", "{b}")
        assert not any(slot in user_text(prompt) for prompt in many[name] for slot in slots)

    def test_this_version_writes_these_prompts(self) -> None:
        # A failure here after an edit: raise GENERATOR_VERSION, or two runs with one digest would differ in prompts.
        def digest(*names: str) -> str:
            prompts = "".join(load_workload(name).prompt(index).digest for name in names for index in range(50))
            return sha256(prompts.encode()).hexdigest()[:16]

        first_four = digest("copy-code", "extract", "chat", "creative")
        assert (GENERATOR_VERSION, first_four, digest("copy-list")) == (1, "6d6e23d894227627", "f9454897ce2c77cf")

    def test_copied_code_parses(self, many: dict[str, list[Prompt]]) -> None:
        for prompt in many["copy-code"]:
            ast.parse(fenced(prompt))

    def test_copied_code_has_400_to_620_characters(self, many: dict[str, list[Prompt]]) -> None:
        sizes = [len(fenced(prompt)) for prompt in many["copy-code"]]
        assert (min(sizes) >= 400, max(sizes) <= 620) == (True, True)

    @pytest.mark.parametrize(("category", "share"), [("repeat", 0.5), ("rename", 0.3), ("explain", 0.2)])
    def test_copy_code_asks_in_these_shares(self, category: str, share: float, many: dict[str, list[Prompt]]) -> None:
        assert sum(prompt.category == category for prompt in many["copy-code"]) / COUNT == pytest.approx(
            share, abs=0.03
        )

    def test_the_name_to_rename_is_in_the_code(self, many: dict[str, list[Prompt]]) -> None:
        for prompt in many["copy-code"]:
            if prompt.category == "rename":
                old = user_text(prompt).split("```\n")[1].split(" renamed to ")[0].split()[-1]
                assert old in fenced(prompt)

    def test_the_new_name_is_not_in_the_code(self, many: dict[str, list[Prompt]]) -> None:
        for prompt in many["copy-code"]:
            if prompt.category == "rename":
                new = user_text(prompt).split(" renamed to ")[1].split()[0].rstrip(",.")
                assert new not in fenced(prompt)

    def test_extract_has_600_to_900_characters(self, many: dict[str, list[Prompt]]) -> None:
        sizes = [len(user_text(prompt)) for prompt in many["extract"]]
        assert (min(sizes) >= 600, max(sizes) <= 900) == (True, True)

    def test_chat_has_at_most_400_characters(self, many: dict[str, list[Prompt]]) -> None:
        assert max(len(user_text(prompt)) for prompt in many["chat"]) <= 400

    @pytest.mark.parametrize(("name", "least"), [("copy-code", 3), ("extract", 4), ("chat", 10), ("creative", 6)])
    def test_categories_are_varied(self, name: str, least: int, many: dict[str, list[Prompt]]) -> None:
        assert len({prompt.category for prompt in many[name]}) >= least


class TestDigests:
    @given(st.sampled_from(SHIPPED), st.integers(), st.integers())
    def test_a_generator_digest_tells_seeds_apart(self, name: str, one: int, other: int) -> None:
        assert (load_workload(name, one).digest == load_workload(name, other).digest) == (one == other)

    def test_a_generator_digest_tells_names_apart(self) -> None:
        assert len({load_workload(name).digest for name in SHIPPED}) == len(SHIPPED)

    def test_a_generator_digest_tells_versions_apart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = load_workload("chat").digest
        monkeypatch.setattr("toolkit.analysis.workload.GENERATOR_VERSION", GENERATOR_VERSION + 1)
        assert load_workload("chat").digest != before

    def test_a_file_digest_is_the_sha256_of_its_content(self, tmp_path: Path) -> None:
        path = written(tmp_path, '"one"', '"two"')
        assert load_workload(path).digest == sha256(b'"one"\n"two"').hexdigest()

    def test_a_file_digest_ignores_the_seed(self, tmp_path: Path) -> None:
        path = written(tmp_path, '"one"')
        assert load_workload(path, seed=1).digest == load_workload(path, seed=2).digest

    def test_a_prompt_digest_is_16_hex_digits_of_the_canonical_messages(self) -> None:
        prompt = Prompt(({"role": "user", "content": "é"},), "any")
        assert prompt.digest == sha256(b'[{"content":"\\u00e9","role":"user"}]').hexdigest()[:16]

    def test_a_prompt_digest_ignores_the_order_of_keys(self) -> None:
        one, other = {"role": "user", "content": "hi"}, {"content": "hi", "role": "user"}
        assert Prompt((one,), "a").digest == Prompt((other,), "a").digest


class TestFiles:
    def test_a_string_is_a_user_message(self, tmp_path: Path) -> None:
        prompt = load_workload(written(tmp_path, '"hi"')).prompt(0)
        assert prompt == Prompt(({"role": "user", "content": "hi"},), "mine")

    def test_an_object_with_a_prompt_and_other_keys(self, tmp_path: Path) -> None:
        prompt = load_workload(written(tmp_path, '{"id": 7, "prompt": "hi", "category": "greeting"}')).prompt(0)
        assert prompt == Prompt(({"role": "user", "content": "hi"},), "greeting")

    def test_an_object_with_messages(self, tmp_path: Path) -> None:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi", "name": "Ann"}]
        prompt = load_workload(written(tmp_path, json.dumps({"messages": messages}))).prompt(0)
        assert prompt.messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"})

    @pytest.mark.parametrize("line", ['"hi"', '{"prompt": "hi"}', '{"prompt": "hi", "category": null}'])
    def test_the_category_is_the_file_stem_by_default(self, tmp_path: Path, line: str) -> None:
        assert load_workload(written(tmp_path, line, name="tickets.jsonl")).prompt(0).category == "tickets"

    def test_the_name_is_the_file_stem(self, tmp_path: Path) -> None:
        assert load_workload(written(tmp_path, '"hi"', name="tickets.jsonl")).name == "tickets"

    def test_blank_lines_are_skipped(self, tmp_path: Path) -> None:
        assert load_workload(written(tmp_path, "", '"one"', "  \t", '"two"', "")).size == 2

    def test_a_byte_order_mark_is_tolerated(self, tmp_path: Path) -> None:
        assert user_text(load_workload(written(tmp_path, b'\xef\xbb\xbf"hi"')).prompt(0)) == "hi"

    def test_windows_line_ends_are_tolerated(self, tmp_path: Path) -> None:
        assert load_workload(written(tmp_path, '"one"\r', '"two"\r', "")).size == 2

    @given(st.lists(texts, min_size=1, max_size=5))
    def test_any_text_comes_back_unchanged(self, folder: Path, contents: list[str]) -> None:
        lines = [json.dumps(content, ensure_ascii=False) for content in contents]
        workload = load_workload(written(folder, *lines))
        assert [user_text(workload.prompt(index)) for index in range(len(contents))] == contents

    @given(st.integers(0, 10**9))
    def test_an_index_wraps_around_the_size(self, folder: Path, index: int) -> None:
        workload = load_workload(written(folder, '"0"', '"1"', '"2"', name="three.jsonl"))
        assert user_text(workload.prompt(index)) == str(index % 3)

    def test_editing_a_prompt_does_not_change_the_next_one(self, tmp_path: Path) -> None:
        workload = load_workload(written(tmp_path, '"hi"'))
        workload.prompt(0).messages[0]["content"] = "edited"
        assert user_text(workload.prompt(0)) == "hi"

    def test_a_file_may_have_another_ending(self, tmp_path: Path) -> None:
        assert load_workload(written(tmp_path, '"hi"', name="prompts.txt")).size == 1


class TestMalformedLines:
    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ('{"prompt": "hi"', "not JSON"),
            ("hello there", "not JSON"),
            ("1" * 5000, "not JSON that can be read"),
            ("[" * 100_000, "not JSON that can be read"),
            (b'"caf\xe9"', "not UTF-8 (byte 5"),
            ("7", "holds a number"),
            ("1.5", "holds a number"),
            ("null", "holds null"),
            ("true", "holds true or false"),
            ('["hi"]', "holds a list"),
            ('""', "empty"),
            ('"  "', "empty"),
            ('"\\ud800"', "surrogate"),
            ("{}", "neither `prompt` nor `messages`"),
            ('{"prompt": "a", "messages": [{"role": "user", "content": "a"}]}', "both `prompt` and `messages`"),
            ('{"prompt": 3}', "a number where the prompt"),
            ('{"prompt": null}', "null where the prompt"),
            ('{"prompt": ""}', "empty"),
            ('{"prompt": "hi", "category": 3}', "`category`"),
            ('{"prompt": "hi", "category": ""}', "`category`"),
            ('{"messages": []}', "at least one message"),
            ('{"messages": "hi"}', "at least one message"),
            ('{"messages": ["hi"]}', "a string as messages[0]"),
            ('{"messages": [{"content": "hi"}]}', "`role` in messages[0]"),
            ('{"messages": [{"role": "boss", "content": "hi"}]}', "`role` in messages[0]"),
            ('{"messages": [{"role": ["user"], "content": "hi"}]}', "`role` in messages[0]"),
            ('{"messages": [{"role": "user"}]}', "`content` of messages[0]"),
            ('{"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": " "}]}', "messages[1]"),
            ('{"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}', "a list where `content`"),
        ],
    )
    def test_the_problem_is_named(self, tmp_path: Path, line: str | bytes, problem: str) -> None:
        with pytest.raises(InputError) as caught:
            load_workload(written(tmp_path, line))
        assert problem in str(caught.value)

    @given(st.integers(0, 30), st.sampled_from(['"ok"', "", '{"prompt": "ok"}']))
    def test_the_file_and_line_are_named(self, folder: Path, before: int, filler: str) -> None:
        path = written(folder, *[filler] * before, "{bad", '"ok"')
        with pytest.raises(InputError) as caught:
            load_workload(path)
        assert str(caught.value).startswith(f"{path}:{before + 1}: ")

    def test_a_right_line_is_shown(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match='"prompt": "What is a monad'):
            load_workload(written(tmp_path, "7"))

    @given(st.binary(max_size=60))
    def test_any_bytes_give_a_workload_or_an_input_error(self, folder: Path, content: bytes) -> None:
        path = written(folder, content)
        with suppress(InputError):
            assert load_workload(path).size


class TestUnusable:
    def test_an_unknown_name_gets_the_nearest(self) -> None:
        with pytest.raises(InputError, match=r"Did you mean copy-code\?"):
            load_workload("copycode")

    @pytest.mark.parametrize("name", ["", "zzz", "CHAT", "x" * 5000, "a\0b"])
    def test_an_unknown_name_gets_the_list(self, name: str) -> None:
        with pytest.raises(
            InputError, match=r"copy-code, copy-list, extract, chat, creative; a path to a \.jsonl file"
        ):
            load_workload(name)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"missing\.jsonl: cannot read"):
            load_workload(str(tmp_path / "missing.jsonl"))

    def test_a_path_with_a_null_byte(self) -> None:
        with pytest.raises(InputError, match="cannot read"):
            load_workload("a\0b.jsonl")

    def test_an_unreadable_file(self, tmp_path: Path) -> None:
        path = tmp_path / "unreadable.jsonl"
        path.symlink_to("/proc/self/mem")  # nobody, not even root, reads it from its start
        with pytest.raises(InputError, match="cannot read"):
            load_workload(str(path))

    def test_a_directory(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="is a directory"):
            load_workload(str(tmp_path))

    @pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf"])
    def test_a_file_without_a_prompt(self, tmp_path: Path, content: bytes) -> None:
        with pytest.raises(InputError, match="holds no prompt"):
            load_workload(written(tmp_path, content))

    @shipped
    def test_a_negative_index(self, name: str) -> None:
        with pytest.raises(ValueError, match="0 or more"):
            load_workload(name).prompt(-1)

    @shipped
    def test_a_workload_survives_pickling(self, name: str) -> None:
        copied: Workload = pickle.loads(pickle.dumps(load_workload(name)))
        assert copied.prompt(5) == load_workload(name).prompt(5)
