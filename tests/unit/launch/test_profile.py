"""Profiles: the `extends` chain, `--set`, and refusals that name the file and the line."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from toolkit.engines import ENGINES
from toolkit.errors import InputError
from toolkit.launch.profile import load_profile, shipped_profiles
from toolkit.launch.profile_file import merge

BASE = "engine: vllm\ntarget:\n  model: a/b\n"
NGRAM = BASE + "speculation:\n  method: ngram\n  num_speculative_tokens: 4\n"
LOOKUP = NGRAM.replace("ngram", "lookup")

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a profile's text (or bytes) beside the others; gives its path."""

    def write(text: str | bytes, name: str = "mine") -> str:
        path = tmp_path / f"{name}.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def refusal(path: str, *changes: str, engine: str | None = None) -> str:
    """What the refusal of a profile says, with its own path as `FILE`."""
    with pytest.raises(InputError) as caught:
        load_profile(path, changes, engine)
    return str(caught.value).replace(path, "FILE")


class TestShipped:
    @pytest.mark.parametrize("name", shipped_profiles())
    def test_it_loads_under_its_own_name(self, name: str) -> None:
        assert load_profile(name).name == name

    @pytest.mark.parametrize("name", shipped_profiles())
    def test_it_describes_itself(self, name: str) -> None:
        assert load_profile(name).description.endswith(".")

    def test_all_of_them(self) -> None:
        assert {"lab-baseline", "lab-ngram", "lab-draft", "baseline-8b", "draft-1b", "eagle3-8b"} <= set(
            shipped_profiles()
        )

    @pytest.mark.parametrize("name", [name for name in shipped_profiles() if load_profile(name).endpoint is None])
    def test_an_arm_has_the_limits_of_its_baseline(self, name: str) -> None:
        baseline = "lab-baseline" if name.startswith("lab-") else f"baseline-{'qwen3-8b' if 'qwen3' in name else '8b'}"
        if name.startswith(("lab-sglang-", "lab-llamacpp-")):
            baseline = f"{name.rsplit('-', 1)[0]}-baseline"
        assert load_profile(name).limits == load_profile(baseline).limits

    def test_an_unknown_name_is_refused_naming_the_nearest(self) -> None:
        with pytest.raises(InputError, match="Did you mean draft-1b"):
            load_profile("draft-1")

    def test_a_file_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        assert refusal(str(tmp_path / "none.yaml")) == "profile FILE: there is no such file."

    def test_a_directory_is_refused(self, tmp_path: Path) -> None:
        assert refusal(str(tmp_path)) == "profile FILE: there is no such file."

    def test_a_file_is_named_by_its_stem(self, write: Write) -> None:
        assert load_profile(write(BASE, "some-arm")).name == "some-arm"


class TestExtends:
    def test_the_child_goes_over_the_parent_key_by_key(self, write: Write) -> None:
        write(BASE + "limits: {max_num_seqs: 8, max_model_len: 512}\n", "parent")
        profile = load_profile(write("extends: parent\nlimits: {max_num_seqs: 16}\n"))
        assert (profile.limits.max_num_seqs, profile.limits.max_model_len) == (16, 512)

    def test_a_chain_of_three(self, write: Write) -> None:
        write(BASE + "description: first\n", "first")
        write("extends: first\ndescription: second\nlimits: {eager: true}\n", "second")
        profile = load_profile(write("extends: second\ndescription: third\n"))
        assert (profile.description, profile.limits.eager, profile.target.model) == ("third", True, "a/b")

    def test_a_null_takes_the_key_away(self, write: Write) -> None:
        write(NGRAM + "limits: {max_num_seqs: 8, eager: true}\n", "parent")
        profile = load_profile(write("extends: parent\nspeculation: null\nlimits: {max_num_seqs: null}\n"))
        assert (profile.speculation, profile.limits.max_num_seqs, profile.limits.eager) == (None, None, True)

    def test_a_null_gives_a_key_its_default_back(self, write: Write) -> None:
        write(BASE + "limits: {eager: true}\n", "parent")
        assert load_profile(write("extends: parent\nlimits: {eager: null}\n")).limits.eager is False

    def test_a_list_is_replaced_whole(self, write: Write) -> None:
        write(BASE + "engine_args: [--a, --b]\n", "parent")
        assert load_profile(write("extends: parent\nengine_args: [--c]\n")).engine_args == ["--c"]

    def test_a_file_beside_wins_over_a_shipped_one(self, write: Write) -> None:
        write(BASE, "lab-ngram")
        assert load_profile(write("extends: lab-ngram\n")).target.model == "a/b"

    def test_a_shipped_one_is_found_from_anywhere(self, write: Write) -> None:
        assert load_profile(write("extends: draft-1b\n")).speculation == load_profile("draft-1b").speculation

    def test_a_path_is_relative_to_the_file(self, write: Write, tmp_path: Path) -> None:
        (tmp_path / "below").mkdir()
        write(BASE, "below/parent")
        assert load_profile(write("extends: below/parent.yaml\n")).target.model == "a/b"

    def test_an_unknown_parent_is_refused_at_its_line_naming_the_nearest(self, write: Write) -> None:
        said = refusal(write("description: x\nextends: lab-ngramm\n"))
        assert said.startswith("FILE:2: there is no profile 'lab-ngramm'. Did you mean lab-ngram?")

    def test_a_parent_file_that_is_not_there_is_refused_at_its_line(self, write: Write) -> None:
        assert refusal(write("\nextends: other.yaml\n")) == "FILE:2: profile other.yaml: there is no such file."

    def test_a_parent_that_is_no_name_is_refused(self, write: Write) -> None:
        assert refusal(write("extends: [a]\n")) == "FILE:1: `extends` takes the name of one profile or a path."

    def test_a_circle_is_refused(self, write: Write, tmp_path: Path) -> None:
        write("\n\nextends: mine\n", "other")
        said = refusal(write("extends: other\n"))
        assert said == f"{tmp_path}/other.yaml:3: `extends` goes round in a circle (mine)."

    def test_a_profile_that_extends_itself_is_refused(self, write: Write) -> None:
        assert refusal(write("extends: mine\n")) == "FILE:1: `extends` goes round in a circle (mine)."

    def test_a_fault_in_the_parent_is_shown_in_the_parents_file(self, write: Write, tmp_path: Path) -> None:
        write(BASE + "limits:\n  max_num_seqs: many\n", "parent")
        assert refusal(write("extends: parent\n")).startswith(f"{tmp_path}/parent.yaml:5: limits.max_num_seqs: ")

    def test_a_key_that_the_parent_lacks_is_shown_where_its_section_stands(self, write: Write, tmp_path: Path) -> None:
        write("engine: vllm\n\ntarget: {dtype: auto}\n", "parent")
        said = refusal(write("extends: parent\n"))
        assert said == f"{tmp_path}/parent.yaml:3: the key 'target.model' is missing."

    @given(st.recursive(st.none() | st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner)))
    def test_merging_over_nothing_changes_nothing(self, value: Any) -> None:
        assert merge({}, {"k": value}) == {"k": value}

    @given(
        st.dictionaries(st.sampled_from("abc"), st.integers()),
        st.dictionaries(st.sampled_from("abc"), st.none() | st.integers()),
    )
    def test_merging_takes_the_upper_value_where_there_is_one(self, below: Any, above: Any) -> None:
        assert merge({"k": below}, {"k": above}) == {"k": {**below, **above}}


class TestSet:
    def test_it_changes_a_key(self, write: Write) -> None:
        assert load_profile(write(BASE), ["limits.max_num_seqs=32"]).limits.max_num_seqs == 32

    def test_it_makes_the_sections_on_the_way(self, write: Write) -> None:
        changes = ["speculation.method=ngram", "speculation.num_speculative_tokens=3", "speculation.options.deep.key=1"]
        speculation = load_profile(write(BASE), changes).speculation
        assert speculation is not None
        assert speculation.options == {"deep": {"key": 1}}

    def test_it_takes_a_list(self, write: Write) -> None:
        schedule = load_profile(write(NGRAM), ["speculation.schedule=[[1,16,4],[17,64,0]]"]).speculation
        assert schedule is not None
        assert schedule.schedule == [(1, 16, 4), (17, 64, 0)]

    def test_it_takes_a_null_away(self, write: Write) -> None:
        assert load_profile(write(NGRAM), ["speculation=null"]).speculation is None

    def test_the_last_change_of_a_key_stands(self, write: Write) -> None:
        assert load_profile(write(BASE), ["server.port=1", "server.port=2"]).server.port == 2

    def test_a_value_may_hold_an_equals_sign(self, write: Write) -> None:
        assert load_profile(write(BASE), ["description=a=b"]).description == "a=b"

    def test_it_leaves_the_next_load_alone(self) -> None:
        load_profile("draft-1b", ["limits.max_num_seqs=1"])
        assert load_profile("draft-1b").limits.max_num_seqs == 64

    @pytest.mark.parametrize("change", ["limits.eager", "=5", "limits..eager=1", ".=1"])
    def test_what_is_no_change_is_refused_showing_how(self, change: str, write: Write) -> None:
        assert refusal(write(BASE), change) == f"--set {change}: write it as --set limits.max_num_seqs=64."

    @pytest.mark.parametrize("change", ["engine_args=[a", "description=2024-13-45"])
    def test_a_value_that_is_no_yaml_is_refused(self, change: str, write: Write) -> None:
        assert refusal(write(BASE), change) == f"--set {change}: the value is not valid YAML."

    def test_an_unknown_key_is_refused_naming_the_nearest(self, write: Write) -> None:
        said = refusal(write(BASE), "limits.max_num_seq=4")
        assert said == "--set limits.max_num_seq=4: unknown key 'limits.max_num_seq': did you mean 'max_num_seqs'?"

    def test_a_wrong_type_is_refused_naming_the_change(self, write: Write) -> None:
        assert refusal(write(BASE), "server.port=many").startswith("--set server.port=many: server.port: ")

    def test_it_cannot_change_the_parent(self, write: Write) -> None:
        assert refusal(write(BASE), "extends=x").startswith("--set extends=x: `extends` stands in a file")

    def test_another_engine(self, write: Write) -> None:
        assert load_profile(write(BASE), engine_name="openai").engine == "openai"

    def test_an_unknown_engine_of_the_command_line_is_shown_there(self, write: Write) -> None:
        assert refusal(write(BASE), engine="vlm").startswith("--engine vlm: unknown engine 'vlm'. Did you mean 'vllm'?")


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("engine: vllm\ntarget: a: b\n", "FILE:2: not valid YAML: "),
            ("engine: [vllm\ntarget: x\n", "FILE:2: not valid YAML: "),
            (BASE + "limits: {eager: true}\nlimits: {eager: false}\n", "FILE:5: the key 'limits' stands here twice."),
            (BASE + "limits:\n  eager: true\n  eager: false\n", "FILE:6: the key 'eager' stands here twice."),
            ("", "FILE:1: a profile is a mapping of keys"),
            ("# nothing\n", "FILE:1: a profile is a mapping of keys"),
            ("- engine\n", "FILE:1: a profile is a mapping of keys"),
            ("vllm\n", "FILE:1: a profile is a mapping of keys"),
            ("engine: vllm\n", "FILE:1: the key 'target' is missing."),
            ("engine: vllm\n\ntarget:\n  dtype: auto\n", "FILE:3: the key 'target.model' is missing."),
            ("target:\n  model: a/b\nengine: vlm\n", "FILE:3: unknown engine 'vlm'. Did you mean 'vllm'?"),
            (BASE + "limit: {}\n", "FILE:4: unknown key 'limit': did you mean 'limits'?"),
            (BASE + "extend: x\n", "FILE:4: unknown key 'extend': did you mean 'extends'?"),
            (BASE + "  modell: x\n", "FILE:4: unknown key 'target.modell': did you mean 'model'?"),
            (BASE + "server:\n  zzz: 1\n", "FILE:5: unknown key 'server.zzz': known here: host, port."),
            (BASE + "server: {port: http}\n", "FILE:4: server.port: "),
            (BASE + "server:\n\n  port: 70000\n", "FILE:6: server.port: "),
            (BASE + "limits: [1]\n", "FILE:4: limits: "),
            (BASE + "engine_args: [--a, 7]\n", "FILE:4: engine_args.1: "),
            (BASE + "on: 5\n", "FILE:4: the key 'on' is not text: put it in quotes."),
            (BASE + "environment:\n  1: a\n", "FILE:5: the key '1' is not text: put it in quotes."),
            (
                BASE + "speculation: {method: eagle3, num_speculative_tokens: 3}\n",
                "FILE:4: method eagle3 needs",
            ),
            (NGRAM + "  memory_tokens: 0\n", "FILE:4: max_match, memory_tokens, corpus and probe_budget belong to"),
            (LOOKUP + "  lookup_max: 5\n", "FILE:4: lookup_min and lookup_max belong to method ngram, not lookup"),
            (LOOKUP + "  memory_tokens: -1\n", "FILE:7: speculation.memory_tokens: "),
            (LOOKUP + "  max_match: 0\n", "FILE:7: speculation.max_match: "),
            (LOOKUP + "  probe_budget: 0.6\n", "FILE:7: speculation.probe_budget: "),
            (LOOKUP + "  corpus: ''\n", "FILE:7: speculation.corpus: "),
            (LOOKUP + "  memory_token: 1\n", "FILE:7: unknown key 'speculation.memory_token': did you mean"),
            (NGRAM + "  schedule: [[1, 4, 3], [6, 8, 0]]\n", "FILE:4: schedule entry [6, 8, 0]: ranges start at 1"),
            (NGRAM + "  schedule:\n  - [1, 4, 9]\n", "FILE:4: schedule entry [1, 4, 9]: K is above"),
            (NGRAM + "  schedule:\n  - [1, 4, few]\n", "FILE:8: speculation.schedule.0.2: "),
            (b"engine: vllm\ndescription: \xff\n", "FILE:2: is not UTF-8 text."),
            (BASE + "description: \x07\n", "FILE:4: not valid YAML: special characters are not allowed."),
            (BASE + "description: 2024-13-45\n", "FILE:1: not valid YAML: month must be in 1..12."),
            (BASE + "environment: &a {x: *a}\n", "FILE:1: nested too deeply, or an alias"),
            ("a: 1\n---\nb: 2\n", "FILE:2: not valid YAML: "),
        ],
    )
    def test_a_fault_is_shown_with_file_and_line(self, text: str | bytes, said: str, write: Write) -> None:
        assert refusal(write(text)).startswith(said)

    def test_every_fault_is_shown_not_the_first_alone(self, write: Write) -> None:
        said = refusal(write(BASE + "limit: {}\nserver: {port: 0}\n"))
        assert [line.split(":")[1] for line in said.splitlines()] == ["5", "4"]

    def test_a_name_that_no_profile_may_have_is_shown_with_the_file(self, write: Write) -> None:
        assert refusal(write(BASE, "two words")).startswith("FILE:1: name: ")

    @given(st.text(max_size=60))
    def test_no_text_is_answered_with_a_traceback(self, text: str) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            with pytest.raises(InputError):
                load_profile(file.name)

    @given(st.dictionaries(st.sampled_from(["engine", "target", "limits", "x"]), st.integers() | st.none()))
    def test_no_mapping_is_answered_with_a_traceback(self, values: dict[str, int | None]) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(values, file)
            file.flush()
            with pytest.raises(InputError, match=r":\d+: "):
                load_profile(file.name)

    def test_the_engines_known_to_profiles_are_those_of_the_list(self) -> None:
        assert {load_profile(name).engine for name in shipped_profiles()} <= set(ENGINES)
