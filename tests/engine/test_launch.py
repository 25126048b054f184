"""`toolkit launch` and `toolkit stop` with the real vLLM: ready means answering, stopped means nothing is left."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from harness import BOOT, Toolkit, session_members, wait_for
from openai import OpenAI

pytestmark = [pytest.mark.engine, pytest.mark.timeout(2 * BOOT)]

MODEL = "lab/SmolLM2-135M-Instruct"


@pytest.fixture(scope="module")
def served(toolkit: Toolkit) -> Iterator[dict[str, Any]]:
    """lab-draft, served in the foreground: the target drafts for itself, so every greedy draft is right."""
    from toolkit.launch.server import free_port

    port = free_port()
    process = toolkit.start("launch", "--profile", "lab-draft", "--port", str(port))
    wait_for(
        lambda: "ready" in (toolkit.folder / "out").read_text() or process.poll() is not None, BOOT, "ready server"
    )
    assert process.poll() is None, (toolkit.folder / "err").read_text()
    entry = next(entry for entry in toolkit.entries() if entry["base_url"].endswith(f":{port}/v1"))
    yield {"process": process, "port": port, "entry": entry, "out": (toolkit.folder / "out").read_text()}
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.wait(60)


@pytest.fixture(scope="module")
def answers(served: dict[str, Any]) -> list[Any]:
    client = OpenAI(base_url=served["entry"]["base_url"], api_key="none")
    return [
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": f"Tell me about the {topic}."}],
            max_tokens=48,
            temperature=0,
        )
        for topic in ("sea", "moon", "city of Rome", "violin", "desert")
    ]


def test_it_prints_url_pid_and_log(served: dict[str, Any]) -> None:
    entry = served["entry"]
    wanted = [entry["base_url"], str(entry["tree"]["session"]), entry["log"]]
    assert [word for word in wanted if word not in served["out"]] == []


def test_an_ordinary_openai_client_is_answered(answers: list[Any]) -> None:
    assert all(answer.choices[0].message.content.strip() for answer in answers)


def test_the_target_accepts_its_own_greedy_drafts(answers: list[Any]) -> None:
    counts = [answer.model_extra["metrics"]["speculative_decoding"] for answer in answers]
    drafted = sum(one["num_draft_tokens"] for one in counts)
    accepted = sum(one["num_accepted_draft_tokens"] for one in counts)
    # Not all: verifying five tokens rounds differently from drafting one, so a near tie may fall the other way.
    assert accepted >= 0.7 * drafted > 0


def test_it_listens_on_loopback_only(served: dict[str, Any]) -> None:
    import psutil

    pids = {process.pid for process in session_members(served["entry"]["tree"]["session"])}
    hosts = {c.laddr.ip for c in psutil.net_connections("tcp") if c.pid in pids and c.laddr.port == served["port"]}
    assert hosts == {"127.0.0.1"}


def test_the_occupied_port_is_refused_by_naming_who_holds_it(toolkit: Toolkit, served: dict[str, Any]) -> None:
    done = toolkit.run("launch", "--profile", "lab-baseline", "--port", str(served["port"]))
    assert done.returncode == 2
    assert f"pid {served['entry']['tree']['session']}" in done.stderr


def test_stop_ends_the_whole_tree_after_our_own_process_was_killed(toolkit: Toolkit, served: dict[str, Any]) -> None:
    session = served["entry"]["tree"]["session"]
    before = len(session_members(session))
    os.kill(served["process"].pid, signal.SIGKILL)
    served["process"].wait(30)
    still = len(session_members(session))
    done = toolkit.run("stop", "lab-draft")
    assert (before >= 4, still, done.returncode, session_members(session)) == (True, before, 0, [])


def test_ctrl_c_while_booting_leaves_nothing(toolkit: Toolkit) -> None:
    from toolkit.launch.server import free_port

    process = toolkit.start("launch", "--profile", "lab-baseline", "--port", str(free_port()))
    entry = wait_for(lambda: next(iter(toolkit.entries()), None), 60, "entry of the booting server")
    session = entry["tree"]["session"]
    wait_for(lambda: len(session_members(session)) >= 3, 120, "engine core process")
    process.send_signal(signal.SIGINT)
    code = process.wait(90)
    assert (code, session_members(session), toolkit.entries()) == (130, [], [])


def test_an_engine_that_dies_while_booting_exits_3_with_its_reason(toolkit: Toolkit) -> None:
    from toolkit.launch.server import free_port

    done = toolkit.run(
        "launch", "-p", "lab-baseline", "--port", str(free_port()), "--set", "engine_args=[--no-such-flag]"
    )
    assert done.returncode == 3
    assert "unrecognized arguments: --no-such-flag" in done.stderr
