"""`layer-skip search` on a tiny random model: what it finds, what it says it rests on, and what it refuses when."""

import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from tiny_model import LAYERS, save

from toolkit.analysis.layers import layer_search as searching
from toolkit.analysis.layers.curve import LayerSearch
from toolkit.analysis.layers.layer_search import LayerAsk, layer_search
from toolkit.analysis.layers.shared_kv import Recording, Scorer, continuations
from toolkit.analysis.plots.layers import layers_figure
from toolkit.analysis.plots.style import save as save_plot
from toolkit.errors import InputError
from toolkit.lab.causal_lm import load_model
from toolkit.lab.tokenizer import FolderTokenizer
from toolkit.proposers.layer_set import read

QUESTIONS = ["a cat sat on", "what ?", "mats and a cat !", "what sat on a cat"] * 3
COST = Path(__file__).parents[3] / "data" / "runs" / "lab-cost"


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Two threads on so small a model wait for each other more than they compute."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ask") / "prompts.jsonl"
    path.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    return str(path)


def ask(model: Path, prompts: str, **fields: Any) -> LayerAsk:
    return LayerAsk(str(model), prompts, **{"requests": 12, "tokens": 8, "k": 3, **fields})


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out") / "draft"


@pytest.fixture(scope="module")
def found(model: Path, prompts: str, draft: Path) -> LayerSearch:
    return layer_search(ask(model, prompts, output=draft))


class TestFound:
    def test_every_size_has_a_point_from_many_layers_to_one(self, found: LayerSearch) -> None:
        assert [len(one.layers) for one in found.points] == [5, 4, 3, 2, 1]

    def test_prompts_are_held_out(self, found: LayerSearch) -> None:
        assert found.texts == (6, 6)

    def test_c_counts_the_output_head(self, found: LayerSearch) -> None:
        layer, head = 4 * 16 * 16 + 3 * 16 * 16 + 2 * 16, 12 * 16 + 16
        assert found.points[0].c == pytest.approx((5 * layer + head) / (6 * layer + head), rel=0.01)

    def test_the_draft_directory_holds_the_best_set_though_it_may_not_pay(
        self, found: LayerSearch, draft: Path
    ) -> None:
        assert read(draft).layers == found.best.layers
        assert [path.name for path in draft.iterdir()] == ["config.json"]

    def test_the_same_ask_finds_the_same(self, found: LayerSearch, model: Path, prompts: str) -> None:
        again = layer_search(ask(model, prompts)).as_json() | {"seconds": 0, "cpu_seconds": 0}
        assert again == found.as_json() | {"seconds": 0, "cpu_seconds": 0}

    def test_a_measured_pass_over_more_tokens_is_counted(self, found: LayerSearch, model: Path, prompts: str) -> None:
        costly = layer_search(ask(model, prompts, cost=COST))
        assert "lab-cost measured it" in costly.cost_source
        assert costly.points[0].cost(1) > found.points[0].cost(1)

    def test_the_plot_is_drawn(self, found: LayerSearch, tmp_path: Path) -> None:
        save_plot(layers_figure(found), tmp_path / "plot.svg")
        assert (tmp_path / "plot.svg").read_text().startswith("<?xml")


def test_the_search_is_as_good_as_trying_every_set_of_all_but_two(model: Path) -> None:
    network, tokenizer = load_model(model).network, FolderTokenizer(model)
    texts = continuations(network, [tokenizer.encode(text) for text in QUESTIONS[:4]], 12, 2, tokenizer.eos)
    scorer = Scorer(Recording(network, texts))
    best = searching.search(scorer)
    for size in (LAYERS - 1, LAYERS - 2):
        every = [scorer.agreement(layers) for layers in combinations(range(LAYERS), size)]
        assert scorer.agreement(best[size]) == max(every)


class TestRefused:
    """By config.json and the ask alone: no weights are loaded."""

    @pytest.fixture(autouse=True)
    def _no_weights(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def load(*_: object) -> None:
            raise AssertionError("weights were loaded")

        monkeypatch.setattr(searching, "_load", load)

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"requests": 3}, "--requests 3: 4 or more"),
            ({"tokens": 1}, "--tokens 1: 2 or more"),
            ({"k": 0}, "--k 0: 1 or more"),
            ({"k": 65}, "--k 65: at most 64"),
            ({"output": Path("/tmp/my-eagle3-draft")}, "another method"),
            ({"cost": Path("/nowhere")}, "holds no cost.json"),
            ({"prompts": "chatt"}, "Did you mean chat"),
        ],
    )
    def test_an_ask_that_cannot_be_met(self, model: Path, prompts: str, fields: dict[str, Any], said: str) -> None:
        with pytest.raises(InputError, match=said):
            layer_search(LayerAsk(**{"target": str(model), "prompts": prompts, **fields}))

    def test_a_target_that_cannot(self, prompts: str, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"model_type": "mixtral", "num_local_experts": 8}')
        with pytest.raises(InputError, match="mixture of experts"):
            layer_search(ask(tmp_path, prompts))

    def test_too_few_prompts(self, model: Path, tmp_path: Path) -> None:
        (tmp_path / "few.jsonl").write_text('"a cat"\n"what ?"\n')
        with pytest.raises(InputError, match="holds 2 prompts; half are held out, so 4 or more"):
            layer_search(ask(model, str(tmp_path / "few.jsonl")))

    def test_random_prompts(self, model: Path) -> None:
        with pytest.raises(InputError, match="for load only"):
            layer_search(ask(model, "random"))


def test_prompts_longer_than_the_target_are_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "long.jsonl").write_text((json.dumps("a cat " * 30) + "\n") * 4)
    with pytest.raises(InputError, match="the target was made for 64"):
        layer_search(ask(model, str(tmp_path / "long.jsonl")))
