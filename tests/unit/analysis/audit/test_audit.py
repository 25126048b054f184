"""The whole audit: what is refused, what it says of sound servers by the hundred, and of servers of every dialect."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_servers import FRUIT, Noise, World, greedy, reply, sampled, structured
from talking_server import TalkingServer

from toolkit.analysis.audit.audit import (
    About,
    AuditAsk,
    audit,
    drafts_one_hot,
    judge_folder,
    judge_replies,
    judge_transformed,
)
from toolkit.analysis.audit.judgement import Judgement
from toolkit.analysis.audit.questions import Sampled
from toolkit.analysis.audit.replies import Reply, read_replies
from toolkit.analysis.audit.transform import transform
from toolkit.errors import EngineError, InputError
from toolkit.launch.profile import load_profile

SERVERS, NOISY = 300, 3
FEW = 200  # tokens, where the distribution is not looked at
Servers = tuple[TalkingServer, TalkingServer]
ABOUT = About(arm="arm", baseline="reference", toolkit_version="0", how=Sampled(), drafts_per_step=4, one_hot=True)


class Silent:
    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def cells(self, done: int, total: int | None, seconds_left: float | None) -> None:
        raise AssertionError("an audit has no cells")


def simulated(world: World, seed: int, noise: Noise, top_k: int | None = None) -> Judgement:
    rng = np.random.default_rng(seed)
    drawn = sampled(world, rng, noise, top_k)
    arm, control = (
        transform(one, other, 1.0, top_k, rng)
        for one, other in ((drawn.arm, drawn.control), (drawn.control, drawn.arm))
    )
    return judge_transformed([*drawn.replies, *greedy(world, rng, noise), *structured()], arm, control, ABOUT, rng)


class TestFalseAlarms:
    def test_of_300_sound_servers_at_most_7_are_called_lossy(self) -> None:
        """1 % are promised: of 300 more than 7 come once in 80 times. A third of them rounds, by 0.02 to 0.1 nats, in
        the arm, the baseline and the reference each for itself; half of those have a baseline that rounds alike in
        every batch shape. Two thirds sample from all tokens, the others from the 16 likeliest. All four levels are
        judged together.
        """
        world = World(1)
        verdicts: Counter[str] = Counter()
        for number in range(SERVERS):
            sd = np.random.default_rng(number).uniform(0.02, 0.1) if number % NOISY == 0 else 0.0
            noise = Noise(sd, sd, sd, baseline_steady=bool(number % 2))
            top_k = 16 if number // NOISY % 3 == 0 else None
            verdicts[simulated(world, 1000 + number, noise, top_k).verdict] += 1
        assert verdicts["lossy"] <= 7, verdicts
        assert verdicts["lossless"] >= SERVERS - 7, verdicts

    @pytest.mark.parametrize("top_k", [None, 16])
    def test_an_arm_that_rounds_where_the_baseline_is_the_reference_is_not_called_lossy(
        self, top_k: int | None
    ) -> None:
        """Four servers; the reference scores its own tokens without error, so the control is no excuse for the arm."""
        world = World(1)
        found = [simulated(world, seed, Noise(arm=0.1, baseline_steady=True), top_k).verdict for seed in range(4)]
        assert found.count("lossy") == 0


class TestFaults:
    """The simulated server with one thing wrong; the greatest of the ways in which a verdict is reached."""

    def judged(self, change: Callable[[list[Reply]], list[Reply]]) -> Judgement:
        world, rng = World(1), np.random.default_rng(2)
        drawn = sampled(world, rng, Noise())
        arm = transform(drawn.arm, drawn.control, 1.0, None, rng)
        control = transform(drawn.control, drawn.arm, 1.0, None, rng)
        replies = [*drawn.replies, *greedy(world, rng, Noise()), *structured()]
        return judge_transformed(change(replies), arm, control, ABOUT, rng)

    def test_without_one_it_is_lossless_on_every_level(self) -> None:
        found = self.judged(list)
        assert {name: level.verdict for name, level in found.levels.items()} == dict.fromkeys(found.levels, "lossless")

    def test_json_that_does_not_parse_makes_it_lossy(self) -> None:
        found = self.judged(
            lambda replies: [
                replace(one, text=FRUIT[:-1])
                if (one.question, one.side, one.prompt) == ("structure", "arm", 0)
                else one
                for one in replies
            ]
        )
        assert (found.verdict, found.levels["structure"].verdict) == ("lossy", "lossy")

    def test_a_reason_to_finish_makes_it_lossy(self) -> None:
        found = self.judged(
            lambda replies: [
                replace(one, finish_reason="stop") if (one.question, one.side) == ("greedy", "arm") else one
                for one in replies
            ]
        )
        assert (found.verdict, found.levels["greedy"].verdict) == ("lossy", "lossy")

    def test_a_power_is_stated(self) -> None:
        """Between 0.05 and 0.1 with 1,900 tokens."""
        power = self.judged(list).power
        assert power is not None
        assert 0.05 < power < 0.1


class TestJudgeReplies:
    def test_the_same_replies_give_the_same_judgement(self) -> None:
        replies = [
            reply("sample", side, i, [1, 1 + i % 2, 2], scores=[[(1, -0.7), (2, -0.7)]] * 3)  # type: ignore[arg-type]
            for side in ("arm", "baseline")
            for i in range(300)
        ]
        assert judge_replies(replies, ABOUT).as_json() == judge_replies(replies, ABOUT).as_json()

    def test_nothing_at_all_is_inconclusive(self) -> None:
        found = judge_replies([], ABOUT)
        assert (found.verdict, found.power) == ("inconclusive", None)
        json.dumps(found.as_json(), allow_nan=False)

    def test_sides_of_different_size_are_judged(self) -> None:
        """64 replies of the arm, 30 of the baseline, and one that ends with its first token."""
        row = [(1, -0.7), (2, -0.7)]
        rng = np.random.default_rng(1)
        replies = [
            reply("sample", side, i, rng.integers(1, 3, 48).tolist(), scores=[row] * 48)  # type: ignore[arg-type]
            for side, n in (("arm", 64), ("baseline", 30))
            for i in range(n)
        ]
        short = reply("sample", "arm", 99, [1], scores=[row])
        found = judge_replies([*replies, short], ABOUT).levels["distribution"]
        assert [check.n for check in found.tests if check.name == "impossible tokens"] == [64 * 47]
        assert not any(check.judged and (check.p or 0.0) < 1e-4 for check in found.tests)


class TestRefused:
    @pytest.mark.parametrize(
        ("ask", "said"),
        [
            (AuditAsk(), "give --profile (we launch it) or --base-url"),
            (AuditAsk(profile="lab-ngram", base_url="http://a/v1"), "one of them"),
            (AuditAsk(base_url="http://a/v1"), "--base-url needs --reference-url"),
            (AuditAsk(base_url="http://a/v1", reference_url="http://b/v1", baseline="x"), "--baseline and --set go"),
            (AuditAsk(base_url="http://a/v1", reference_url="http://b/v1", changes=["a=b"]), "--baseline and --set go"),
            (AuditAsk(base_url="http://a/v1", reference_url="http://a/v1/"), "is the same server as --base-url"),
            (AuditAsk(profile="lab-ngram", reference_url="http://b/v1"), "--reference-url goes with --base-url"),
            (AuditAsk(profile="lab-ngram", model="m"), "--model goes with --base-url"),
            (AuditAsk(profile="lab-ngram", api_key_env="KEY"), "--api-key-env goes with --base-url"),
            (AuditAsk(profile="lab-baseline"), "does not speculate: there is nothing to audit"),
            (AuditAsk(profile="lab-ngram", baseline="lab-ngram"), "--baseline lab-ngram speculates itself"),
            (AuditAsk(profile="no-such-profile"), "no-such-profile"),
            (AuditAsk(profile="lab-ngram", how=Sampled(tokens=199)), "--tokens 199: from 200 to 200000"),
            (AuditAsk(profile="lab-ngram", how=Sampled(tokens=200_001)), "--tokens 200001"),
            (AuditAsk(profile="lab-ngram", how=Sampled(temperature=0.0, top_k=8)), "--temperature 0.0: above 0"),
            (AuditAsk(profile="lab-ngram", how=Sampled(temperature=2.1, top_k=8)), "--temperature 2.1"),
            (AuditAsk(profile="lab-ngram", how=Sampled(temperature=float("nan"), top_k=8)), "--temperature nan"),
            (AuditAsk(profile="lab-ngram", how=Sampled(temperature=0.7)), "--temperature 0.7 needs --top-k"),
            (AuditAsk(profile="lab-ngram", how=Sampled(top_k=1)), "--top-k 1: from 2 to 16"),
            (AuditAsk(profile="lab-ngram", how=Sampled(top_k=17)), "--top-k 17"),
        ],
    )
    def test_what_cannot_be_met_starts_nothing(self, tmp_path: Path, ask: AuditAsk, said: str) -> None:
        with pytest.raises(InputError) as refused:
            audit(replace(ask, run=tmp_path / "run"), Silent())
        assert said in str(refused.value)
        assert not (tmp_path / "run").exists()

    def test_a_directory_that_is_not_empty(self, tmp_path: Path) -> None:
        (tmp_path / "mine.txt").write_text("keep me")
        with pytest.raises(InputError, match="is not empty; an audit takes a directory of its own"):
            audit(AuditAsk(profile="lab-ngram", run=tmp_path), Silent())

    def test_a_directory_that_cannot_be(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match=r"--run .*file.*: cannot be used: (File exists|Not a directory)"):
            audit(AuditAsk(profile="lab-ngram", run=tmp_path / "file"), Silent())

    def test_a_folder_without_an_audit_cannot_be_judged(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="holds no finished audit"):
            judge_folder(tmp_path)

    @pytest.mark.parametrize("text", ["", "{}", "null", '{"arm": 1}'])
    def test_nor_can_one_with_another_file(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "audit.json").write_text(text)
        with pytest.raises(InputError, match="holds no finished audit"):
            judge_folder(tmp_path)


@pytest.fixture
def servers() -> Iterator[Servers]:
    """An arm that keeps drafts and a reference; both say the same."""
    with TalkingServer(accepts=[4, 3]) as arm, TalkingServer(chunk=8) as reference:
        yield arm, reference


def audited(servers: Servers, run: Path, **how: Any) -> Judgement:
    arm, reference = servers
    ask = AuditAsk(base_url=arm.url, reference_url=reference.url, how=Sampled(**{"tokens": 1200, **how}), run=run)
    return judge_folder(audit(ask, Silent()))


def refusing(field: str) -> Callable[[int, dict[str, Any]], str | None]:
    return lambda number, body: f"400 no {field}" if field in body else None


@dataclass(frozen=True)
class Sound:
    """One audit of servers that offer everything and say the same, the arm slow enough to be watched."""

    folder: Path
    judgement: Judgement
    servers: Servers


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    folder = tmp_path_factory.mktemp("audit")
    with TalkingServer(accepts=[4, 3], gap=0.001) as arm, TalkingServer(chunk=8) as reference:
        return Sound(folder, audited((arm, reference), folder), (arm, reference))


class TestSound:
    """Over HTTP, against servers that offer everything."""

    def test_it_is_lossless(self, sound: Sound) -> None:
        assert {name: level.verdict for name, level in sound.judgement.levels.items()} == {
            "greedy": "lossless",
            "distribution": "lossless",
            "acceptance": "inconclusive",  # how a running server drafts is not known
            "structure": "lossless",
        }
        assert sound.judgement.verdict == "lossless"

    def test_what_was_kept_is_what_was_answered(self, sound: Sound) -> None:
        replies = read_replies(sound.folder)
        counts = Counter((one.question, one.side) for one in replies)
        assert counts == {
            (question, side): number
            for question, number in {"greedy": 16, "stop": 8, "sample": 24, "structure": 8}.items()
            for side in ("arm", "baseline")
        }
        assert all((one.scores is not None) == (one.question == "sample") for one in replies)
        assert all((one.counts is not None) == (one.side == "arm") for one in replies)

    def test_both_sides_were_asked_the_same(self, sound: Sound) -> None:
        ours, theirs = (Counter(json.dumps(body, sort_keys=True) for body in server.bodies) for server in sound.servers)
        assert ours == theirs

    def test_the_folder_is_judged_again_alike(self, sound: Sound) -> None:
        assert judge_folder(sound.folder).as_json() == sound.judgement.as_json()

    def test_as_many_requests_ran_at_once_as_the_questions_say(self, sound: Sound) -> None:
        assert sound.servers[0].running_peak == Sampled().concurrency


class TestLossy:
    @pytest.mark.parametrize(("top_k", "allowed"), [(None, ""), (16, " where the top 16 are allowed")])
    def test_an_arm_that_slips_when_it_samples_is_shown_with_examples(
        self, servers: Servers, tmp_path: Path, top_k: int | None, allowed: str
    ) -> None:
        servers[0].slips = frozenset({5})
        level = audited(servers, tmp_path, top_k=top_k).levels["distribution"]
        assert level.verdict == "lossy"
        assert f"after ' w0 w1 w2 w3 w4' came ' w705' (beyond rank 20{allowed}, e^60.0 times" in level.examples[0]
        assert len(level.examples) == 3

    def test_a_fault_of_both_sides_is_not_the_arms(self, servers: Servers, tmp_path: Path) -> None:
        for server in servers:
            server.slips = frozenset({5})
        assert audited(servers, tmp_path).verdict != "lossy"


class TestDialects:
    """Servers that do not offer everything: the weaker check, or one clear message."""

    def weaker(self, found: Judgement) -> str:
        """What stands behind the label of the weaker check."""
        level = found.levels["distribution"]
        assert (found.verdict, level.verdict, found.power) == ("lossless", "lossless", None), level.reason
        return level.reason.partition("This is the weaker check: reference does not score tokens: ")[2]

    def test_a_reference_without_prompt_logprobs(self, servers: Servers, tmp_path: Path) -> None:
        servers[1].width = None
        assert self.weaker(audited(servers, tmp_path)) == "it answers without prompt_logprobs"

    def test_a_reference_that_gives_fewer_log_probabilities_than_top_k(self, servers: Servers, tmp_path: Path) -> None:
        """What could be drawn is not known then: all beyond the third would look impossible."""
        servers[1].width, servers[1].sure = 3, -0.01
        said = self.weaker(audited(servers, tmp_path, top_k=16))
        assert said == "it gives 3 log probabilities of a place where 16 are needed"

    def test_hosted_servers_without_token_ids(self, servers: Servers, tmp_path: Path) -> None:
        for server in servers:
            server.owned_by, server.token_ids, server.metrics, server.accepts = "someone", False, False, None
        found = audited(servers, tmp_path)
        assert "retokenised text is not what was emitted" in self.weaker(found)
        assert found.levels["acceptance"].reason == "the server does not report acceptance per request"

    def test_a_hosted_reference_beside_an_arm_with_token_ids(self, servers: Servers, tmp_path: Path) -> None:
        servers[1].owned_by, servers[1].token_ids = "someone", False
        assert "retokenised text" in self.weaker(audited(servers, tmp_path))

    def test_the_weaker_check_sees_a_coarse_fault(self, servers: Servers, tmp_path: Path) -> None:
        servers[0].slips, servers[1].width = frozenset({5}), None
        assert audited(servers, tmp_path).levels["distribution"].verdict == "lossy"

    def test_few_replies_are_too_few_for_it(self, servers: Servers, tmp_path: Path) -> None:
        servers[1].width = None
        assert audited(servers, tmp_path, tokens=FEW).verdict == "inconclusive"

    def test_log_probabilities_that_are_refused_are_done_without(self, servers: Servers, tmp_path: Path) -> None:
        for server in servers:
            server.fault = refusing("top_logprobs")
        assert audited(servers, tmp_path, tokens=FEW).levels["greedy"].verdict == "lossless"

    def test_top_k_that_both_refuse_is_done_without(self, servers: Servers, tmp_path: Path) -> None:
        for server in servers:
            server.fault = refusing("top_k")
        found = audited(servers, tmp_path, top_k=16)
        assert found.levels["distribution"].verdict == "lossless"
        assert not any(check.name.startswith("two samples") for check in found.levels["distribution"].tests)

    def test_top_k_that_both_refuse_at_another_temperature(self, servers: Servers, tmp_path: Path) -> None:
        """The mass of what is not listed cannot be known then."""
        for server in servers:
            server.fault = refusing("top_k")
        said = self.weaker(audited(servers, tmp_path, top_k=16, temperature=0.7))
        assert said == "the servers take no top_k, so that p is not known at temperature 0.7"

    def test_top_k_that_the_arm_alone_refuses_is_asked_of_neither(self, servers: Servers, tmp_path: Path) -> None:
        servers[0].fault = refusing("top_k")
        audited(servers, tmp_path, tokens=FEW)
        assert not any("top_k" in body for body in servers[1].bodies)

    def test_top_k_that_the_reference_alone_refuses(self, servers: Servers, tmp_path: Path) -> None:
        servers[1].fault = refusing("top_k")
        with pytest.raises(InputError, match="reference does not take top_k, which the other side takes"):
            audited(servers, tmp_path, tokens=FEW, top_k=16)

    def test_top_k_that_the_reference_alone_refuses_where_all_tokens_may_be_drawn(
        self, servers: Servers, tmp_path: Path
    ) -> None:
        """What the arm is told in so many words is what the reference does anyway."""
        servers[1].fault = refusing("top_k")
        assert audited(servers, tmp_path, tokens=FEW).levels["greedy"].verdict == "lossless"

    def test_stop_strings_that_are_refused_are_done_without(self, servers: Servers, tmp_path: Path) -> None:
        for server in servers:
            server.fault = refusing("stop")
        assert audited(servers, tmp_path, tokens=FEW).levels["greedy"].verdict == "lossless"

    @pytest.mark.parametrize(("side", "name"), [(0, "arm"), (1, "reference")])
    def test_a_schema_that_is_refused(self, servers: Servers, tmp_path: Path, side: int, name: str) -> None:
        servers[side].fault = refusing("response_format")
        level = audited(servers, tmp_path, tokens=FEW).levels["structure"]
        said = f"{name} does not take a JSON schema: HTTP 400: no response_format"
        assert (level.verdict, level.reason) == ("inconclusive", said)

    def test_a_server_that_refuses_everything(self, servers: Servers, tmp_path: Path) -> None:
        servers[0].fault = lambda number, body: "422 go away"
        with pytest.raises(InputError, match=r"^arm refuses the audit's questions: HTTP 422: go away$"):
            audited(servers, tmp_path)

    @pytest.mark.parametrize("fault", ["429 slow down", "500 broken", "drop", "cut", "redirect"])
    def test_a_server_that_fails(self, servers: Servers, tmp_path: Path, fault: str) -> None:
        servers[1].fault = lambda number, body: fault
        with pytest.raises(EngineError, match=r"^reference"):
            audited(servers, tmp_path, tokens=FEW)

    def test_a_server_that_wants_a_key(self, servers: Servers, tmp_path: Path) -> None:
        servers[0].key = "secret"
        with pytest.raises(InputError, match="it wants a key, pass --api-key-env NAME"):
            audited(servers, tmp_path)

    def test_a_reference_that_speculates(self, servers: Servers, tmp_path: Path) -> None:
        """Its faults would be taken for the model's."""
        servers[1].accepts = [1]
        with pytest.raises(InputError, match="reference speculates itself: it cannot show what the model alone"):
            audited(servers, tmp_path)


class TestProfiles:
    @pytest.mark.parametrize(
        ("name", "changes", "certain"),
        [
            ("lab-ngram", [], True),
            ("lab-draft", [], True),
            ("lab-draft", ["speculation.options={draft_sample_method: probabilistic}"], False),
            ("lab-baseline", [], False),
        ],
    )
    def test_which_drafts_are_certain(self, name: str, changes: list[str], certain: bool) -> None:
        """Looked up, or a vLLM model's argmax unless it is told to sample."""
        assert drafts_one_hot(load_profile(name, changes)) is certain
