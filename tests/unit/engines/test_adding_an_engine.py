"""docs/adding-an-engine.md: its adapter is one file and one line, and a sweep with it ends in a crossover."""

import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolkit import cli
from toolkit.analysis.run import Run
from toolkit.engines import ENGINES
from toolkit.engines.contract import Engine

PAGE = (Path(__file__).parents[3] / "docs" / "adding-an-engine.md").read_text(encoding="utf-8")
SERVER = Path(__file__).with_name("tiny_server.py")
MEMBERS = [name for name in (*Engine.__annotations__, *vars(Engine)) if not name.startswith("_")]
Ran = tuple[int, str, str]


def block(language: str) -> str:
    """The one block of code in this language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The page's adapter, registered; its server on PATH; its profiles in the current folder."""
    (tmp_path / "tiny.py").write_text(block("python"))
    spec = importlib.util.spec_from_file_location("toolkit.engines.tiny", tmp_path / "tiny.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(ENGINES, "tiny", module.Tiny())
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "tiny-server"
    script.write_text(f"#!{sys.executable}\n{SERVER.read_text()}")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    (tmp_path / "tiny-ngram.yaml").write_text(block("yaml"))
    plain = re.sub(r"^speculation: .*\n", "", block("yaml"), flags=re.MULTILINE)
    (tmp_path / "tiny-baseline.yaml").write_text(plain)
    monkeypatch.chdir(tmp_path)
    return ENGINES["tiny"]


@pytest.fixture
def toolkit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs the command line in this process: (exit code, stdout, stderr)."""
    monkeypatch.setattr("signal.signal", lambda *_: None)  # the handlers of this process stay

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["toolkit", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


@pytest.mark.parametrize("member", MEMBERS)
def test_the_page_says_what_each_member_means(member: str) -> None:
    assert f"`{member}`" in PAGE.split("## The members")[1]


@pytest.mark.parametrize("member", MEMBERS)
def test_the_pages_adapter_has_each_member(member: str, tiny: Engine) -> None:
    assert hasattr(tiny, member)


def test_a_sweep_with_it_ends_in_a_crossover(tiny: Engine, toolkit: Callable[..., Ran], tmp_path: Path) -> None:
    """17 tokens: 1, then 4 2 4 2 4: 11 kept of 5 x 4 drafted, in 6 passes for 17 without."""
    profiles = ["--profile", "tiny-ngram.yaml", "--baseline", "tiny-baseline.yaml"]
    load = ["--workload", "chat", "--concurrency", "1", "--rounds", "5", "--n", "4", "--max-tokens", "17"]
    code, out, err = toolkit("sweep", *profiles, *load, "--run", "run", "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)["results"][0]
    (level,) = found["levels"]
    assert (level["draft_acceptance_rate"], level["tokens_per_pass"]) == (11 / 20, pytest.approx(17 / 6))
    assert (level["verdict"], found["pays_up_to"]) == ("pays", 1)
    arm = Run(tmp_path / "run").info.arms[0]
    assert (arm.engine, arm.engine_version, arm.speculates) == ("tiny", "0.1", True)


def test_what_it_cannot_serve_is_refused_in_the_profiles_words(tiny: Engine, toolkit: Callable[..., Ran]) -> None:
    code, _, err = toolkit("launch", "--profile", "tiny-ngram.yaml", "--set", "speculation.method=suffix", "--dry-run")
    assert (code, "speculation.method suffix: tiny-server has ngram alone" in err) == (2, True), err
