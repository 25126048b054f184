"""Files of prompts in the shapes of public datasets: what is asked, under which category, and what is refused."""

from pathlib import Path

import pytest

from toolkit.analysis.datasets import Dataset, read_dataset
from toolkit.analysis.language import looks_random
from toolkit.analysis.workload import in_language, load_workload
from toolkit.errors import InputError

DATA = Path(__file__).parents[2] / "data" / "datasets"


def asked(dataset: Dataset) -> list[tuple[str, str]]:
    """(category, the question) of every prompt."""
    return [(prompt.category, prompt.messages[-1]["content"]) for prompt in dataset.prompts]


def written(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("\n".join(lines))
    return path


class TestSpecBench:
    def test_the_first_turn_is_asked_under_its_category(self) -> None:
        first, translation, math = asked(read_dataset(DATA / "spec_bench.jsonl"))
        assert first == ("writing", "Describe a market on a rainy morning in two paragraphs.")
        assert (translation[0], math[0]) == ("translation", "math_reasoning")

    @pytest.mark.parametrize("turns", ["[]", '"one"', "[7]", '[""]', "null"])
    def test_turns_that_are_none_are_refused_with_their_line(self, tmp_path: Path, turns: str) -> None:
        path = written(tmp_path, "q.jsonl", '{"turns": ["one"]}', f'{{"question_id": 1, "turns": {turns}}}')
        with pytest.raises(InputError, match=r"q\.jsonl:2: this line has .*turns"):
            read_dataset(path)


class TestSpeedBench:
    def test_as_prepared_the_first_turn_is_asked_and_not_the_whole_dialogue_at_once(self) -> None:
        found = read_dataset(DATA / "speed_bench_prepared.jsonl")
        assert [len(prompt.messages) for prompt in found.prompts] == [1, 1]
        assert asked(found)[0] == ("coding", "Write a function that merges two sorted lists.")

    def test_a_placeholder_is_refused_saying_what_fills_it_in(self) -> None:
        """Sent as it is, one third of the benchmark would be the same prompt."""
        with pytest.raises(InputError, match=r"speed_bench_hub\.jsonl:2: this line has a placeholder.*prepare\.py"):
            read_dataset(DATA / "speed_bench_hub.jsonl")

    def test_from_the_hub_the_first_turn_is_asked(self, tmp_path: Path) -> None:
        line = (DATA / "speed_bench_hub.jsonl").read_text().splitlines()[0]
        assert asked(read_dataset(written(tmp_path, "q.jsonl", line))) == [
            ("coding", "Write a function that merges two sorted lists.")
        ]


class TestShareGpt:
    def test_the_first_user_turn_is_asked(self) -> None:
        assert asked(read_dataset(DATA / "sharegpt.json")) == [
            ("sharegpt", "How do I keep bread fresh for a week?"),
            ("sharegpt", 'Why is the "sky" blue?\nI asked 你好 too.'),
            ("sharegpt", "Yes, go on."),
        ]

    def test_what_stands_before_it_comes_along(self) -> None:
        roles = [[m["role"] for m in prompt.messages] for prompt in read_dataset(DATA / "sharegpt.json").prompts]
        assert roles == [["user"], ["system", "user"], ["assistant", "user"]]

    def test_a_line_each_works_too_whoever_speaks(self) -> None:
        assert [text for _, text in asked(read_dataset(DATA / "sharegpt.jsonl"))] == [
            "How do I keep bread fresh for a week?",
            "What is a fjord?",
        ]

    def test_a_file_without_any_question_holds_no_prompt(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="holds no prompt"):
            read_dataset(written(tmp_path, "s.json", '[{"conversations": []}]'))

    @pytest.mark.parametrize("turns", ["7", "[7]", '[{"from": "human"}]', '[{"value": "hi"}]'])
    def test_turns_of_another_shape_are_refused_with_their_line(self, tmp_path: Path, turns: str) -> None:
        path = written(tmp_path, "s.json", "[", f'{{"conversations": {turns}}}', "]")
        with pytest.raises(InputError, match=r"s\.json:2: this line has .*conversations"):
            read_dataset(path)


class TestPlain:
    def test_a_list_of_prompts(self) -> None:
        assert asked(read_dataset(DATA / "prompts.json")) == [
            ("prompts", "What is a monad?"),
            ("prompts", "Name three rivers of Spain."),
        ]

    def test_a_list_of_messages_a_line_ends_in_the_question(self) -> None:
        found = read_dataset(DATA / "messages.jsonl").prompts
        assert [len(prompt.messages) for prompt in found[:2]] == [2, 3]

    def test_a_log_that_holds_its_answers_is_asked_up_to_its_first_question(self) -> None:
        log = read_dataset(DATA / "messages.jsonl").prompts[2]
        assert (log.category, [message["content"] for message in log.messages]) == (
            "log",
            ["Be brief.", "What is ice?"],
        )

    @pytest.mark.parametrize(
        ("content", "count"),
        [
            ('[{"prompt": "a"}, {"prompt": "b"}]', 2),
            ('[\n"a",\n\n"b"\n]', 2),
            ('\ufeff [\n{"turns": ["a"]}]', 1),
            ('[[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]]', 2),
            ('[{"role": "user",\n "content": "a"}, {"role": "user", "content": "b"}]', 1),
            ('[{"role": "user", "content": "a"}]\n\n[{"role": "user", "content": "b"}]\n', 2),
        ],
    )
    @pytest.mark.parametrize("name", ["x.json", "x.jsonl", "x.txt"])
    def test_the_content_says_whether_it_is_an_array_or_lines(
        self, tmp_path: Path, content: str, count: int, name: str
    ) -> None:
        assert len(read_dataset(written(tmp_path, name, content)).prompts) == count

    def test_an_array_of_strings_on_one_line_is_one_in_a_json_file(self, tmp_path: Path) -> None:
        assert len(read_dataset(written(tmp_path, "x.json", '["a", "b"]')).prompts) == 2

    @pytest.mark.parametrize(
        ("lines", "number", "said"),
        [
            (["[", '"a",', '"b"'], 3, "the file ends where"),
            (["[", '"a"', '"b"', "]"], 3, "stands where"),
            (["[", '"a",', "{bad},", '"b"]'], 3, "is not JSON"),
            (["[", '"a",', "7]"], 3, "holds a number"),
            (["[", '{"prompt": "a",', '"prompt" "b"}]'], 3, "is not JSON"),
            (["[", '"a"', "]", "more"], 4, "follows the end"),
            (["[", '"a",', '"no end]'], 3, "is not JSON"),
            (["[", '"a",', "1" * 5000, "]"], 3, "not JSON that can be read"),
        ],
    )
    def test_a_fault_in_an_array_is_named_with_its_line(
        self, tmp_path: Path, lines: list[str], number: int, said: str
    ) -> None:
        path = written(tmp_path, "x.json", *lines)
        with pytest.raises(InputError) as caught:
            read_dataset(path)
        assert (str(caught.value).startswith(f"{path}:{number}: this line "), said in str(caught.value)) == (True, True)

    def test_bytes_that_are_no_utf_8_are_named_with_their_line(self, tmp_path: Path) -> None:
        (tmp_path / "x.json").write_bytes(b'[\n"a",\n"caf\xe9"]')
        with pytest.raises(InputError, match=r"x\.json:3: this line is not UTF-8"):
            read_dataset(tmp_path / "x.json")


class TestRandom:
    @pytest.mark.parametrize("name", ["copy-code", "copy-list", "extract", "chat", "creative"])
    def test_the_other_shipped_workloads_are_language(self, name: str) -> None:
        workload = load_workload(name)
        texts = [workload.prompt(index).messages[0]["content"] for index in range(300)]
        assert (workload.random, sum(map(looks_random, texts))) == (False, 0)

    @pytest.mark.parametrize("name", ["spec_bench.jsonl", "sharegpt.json", "prompts.json", "messages.jsonl"])
    def test_so_are_the_datasets(self, name: str) -> None:
        assert not load_workload(str(DATA / name)).random

    def test_the_random_workload_is_for_load_only(self) -> None:
        assert load_workload("random").random

    def test_its_prompts_are_seeded_and_never_repeat(self) -> None:
        digests = [load_workload("random", seed).prompt(index).digest for seed in (1, 2) for index in range(200)]
        assert (len(set(digests)), load_workload("random", 1).prompt(3).digest) == (400, digests[3])

    def test_token_ids_are_sent_as_numbers_for_load_only(self) -> None:
        workload = load_workload(str(DATA / "token_ids.jsonl"))
        assert (workload.random, workload.prompt(1).messages[0]["content"]) == (True, "511 20877 46002 318 7")

    def test_one_list_of_token_ids_among_texts_is_enough(self, tmp_path: Path) -> None:
        path = written(tmp_path, "x.jsonl", *['"What is a monad?"'] * 50, '{"prompt": [1, 2, 3]}')
        assert load_workload(str(path)).random

    def test_a_claim_on_random_prompts_is_refused_saying_what_to_take(self) -> None:
        with pytest.raises(InputError, match=r"random.*for load only: a schedule depends .* copy-code"):
            in_language(load_workload("random"), "a schedule")
