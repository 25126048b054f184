"""A served profile: start it, wait until it really answers, watch it, stop all of it."""

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from types import TracebackType
from typing import Literal

import httpx

from toolkit.engines import engine
from toolkit.engines.contract import Command, KnownFailure, Profile
from toolkit.errors import EngineError, InputError
from toolkit.launch.container import container_argv, find_runtime, remove
from toolkit.launch.models import resolve_model
from toolkit.launch.process import exit_code, own_identity, port_holder, start
from toolkit.launch.registry import ServerEntry, state_folder

BOOT_TIMEOUT = 1800.0  # seconds: a first start may download and compile
POLL = 0.5  # seconds between two questions for health
_ERROR_LINE = re.compile(r"[\w.]*(Error|Exception)\b.*:|.*\berror: |Value error, |Input should ")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(r"^(\([^)]*pid=\d+\)\s*)?((INFO|WARNING|ERROR|DEBUG)\s+[\d-]+ [\d:]+ \[[^\]]*\]\s*)?")

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Progress = Callable[[str], None]


def command(profile: Profile, dry: bool = False) -> Command:
    """What would run for `profile`, the model resolved, and fetched unless this is `dry`.

    Raises InputError, or EngineError when the lab's model cannot be built.
    """
    return engine(profile.engine).command(profile, partial(resolve_model, dry=dry))


def shell_argv(profile: Profile, what: Command) -> list[str]:
    """`what` as one would type it, its container and environment included."""
    if what.container:
        return container_argv(profile, what, f"toolkit-{profile.name}-{profile.server.port}")
    return ["env", *(f"{key}={value}" for key, value in what.env.items()), *what.argv]


@dataclass(slots=True)
class Server:
    """A running engine that answers. `close` (or leaving the context) ends its whole process tree."""

    profile: Profile
    entry: ServerEntry
    process: Popen[bytes]

    @property
    def base_url(self) -> str:
        return self.entry.base_url

    def check(self) -> None:
        """Raises EngineError when the engine has died."""
        code = exit_code(self.process)
        if code is not None:
            raise EngineError(_death_message(self.profile, self.entry.log, code))

    def close(self) -> None:
        """End the whole process tree; a second Ctrl-C does not stop that. Raises EngineError when a process stays."""
        with undisturbed():
            try:
                self.entry.end()
                self.process.wait(timeout=10)
            except (TimeoutError, TimeoutExpired) as error:
                raise EngineError(f"{self.entry.name} could not be ended: {error}.") from None

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def launch(profile: Profile, progress: Progress = lambda line: None, boot_timeout: float = BOOT_TIMEOUT) -> Server:
    """Start `profile` and wait until it has generated text.

    Raises InputError when the port is taken, EngineError when the engine dies or is not ready in `boot_timeout`
    seconds; nothing is left running in either case.
    """
    server = begin(profile)
    try:
        wait_ready(server, progress, boot_timeout)
    except BaseException:
        server.close()
        raise
    return server


def begin(profile: Profile, purpose: Literal["serve", "sweep"] = "serve") -> Server:
    """Start `profile` without waiting.

    Raises InputError when the port is taken or a container is asked for where no runtime is, EngineError when argv
    cannot run.
    """
    host, port = profile.server.host, profile.server.port
    if holder := port_holder(port):
        raise InputError(
            f"port {port} is taken by {holder}. End it (`toolkit stop` ends ours), or use --set server.port=N."
        )
    what = command(profile)
    argv, env, container = list(what.argv), what.env, None
    if what.container:
        container = (find_runtime(), f"toolkit-{profile.name}-{port}")
        remove(*container)  # left by a client that was killed; nobody listens on its port
        argv, env = container_argv(profile, what, container[1], container[0]), {}
    log = state_folder() / f"{profile.name}-{port}-{time.strftime('%Y%m%d-%H%M%S')}.log"
    try:
        process, tree = start(argv, env, log)
    except OSError as error:
        said = f"{argv[0]} cannot be started: {error.strerror}."
        advice = known_cause(said, engine(profile.engine).known_failures)
        raise EngineError(" ".join(filter(None, [said, advice]))) from None
    reach = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    entry = ServerEntry(
        name=profile.name,
        base_url=f"http://{reach}:{port}/v1",
        log=log,
        tree=tree,
        owner=own_identity(),
        purpose=purpose,
        container=container,
    )
    try:
        entry.save()
    except OSError as error:
        entry.end()
        raise InputError(f"{entry.path}: cannot be written: {error.strerror}. Nothing was left running.") from None
    return Server(profile, entry, process)


def wait_ready(server: Server, progress: Progress = lambda line: None, timeout: float = BOOT_TIMEOUT) -> None:
    """Wait for /health and then for one generation that returns text. Raises EngineError."""
    deadline = time.monotonic() + timeout
    root = server.base_url.removesuffix("/v1")
    key = os.environ.get(engine(server.profile.engine).key_variable or "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(timeout=10, trust_env=False, headers=headers) as client:
        while not _healthy(client, root):
            server.check()
            if time.monotonic() > deadline:
                raise EngineError(
                    f"{server.profile.name} was not healthy after {timeout:.0f} s.\n{_tail(server.entry.log)}"
                )
            _write_down(server)  # so that a later command finds the workers, should we and their leader be gone
            progress(_stage(server.entry.log))
            time.sleep(POLL)
        progress("first generation")
        text = _generate(client, server, max(deadline - time.monotonic(), 60))
    if is_garbage(text):
        raise EngineError(
            f"{server.profile.name} is healthy but answers {text[:40]!r}: the build computes garbage on this machine. "
            f"Log: {server.entry.log}"
        )
    _write_down(server)


def _write_down(server: Server) -> None:
    tree = server.entry.tree.refreshed()
    if tree != server.entry.tree:
        server.entry = server.entry.model_copy(update={"tree": tree})
        server.entry.save()


def is_garbage(text: str) -> bool:
    """No text, or one character over and over: what broken kernels emit while /health stays green (sglang#36716)."""
    letters = text.split()
    return not letters or (len(text.strip()) > 3 and len(set("".join(letters))) == 1)


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave signals that ask us to stop aside for a while."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def closing_all(servers: Iterable[Server]) -> Iterator[None]:
    """Close every one of `servers` on the way out, whatever the closing of another does."""
    try:
        yield
    finally:
        errors = []
        for server in servers:
            try:
                server.close()
            except (OSError, EngineError) as error:
                errors.append(error)
        if errors:
            raise errors[0]


def _healthy(client: httpx.Client, root: str) -> bool:
    try:
        return client.get(f"{root}/health").status_code == 200
    except httpx.HTTPError:
        return False


def _generate(client: httpx.Client, server: Server, timeout: float) -> str:
    body = {
        "model": server.profile.served_model,
        "prompt": "The capital of France is",
        "max_tokens": 16,
        "temperature": 0,
    }
    try:
        answer = client.post(f"{server.base_url}/completions", json=body, timeout=timeout)
        answer.raise_for_status()
        return str(answer.json()["choices"][0]["text"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        server.check()
        raise EngineError(
            f"{server.profile.name} is healthy but its first generation failed: {error}.\n{_tail(server.entry.log)}"
        ) from None


def _lines(log: Path) -> list[str]:
    try:
        with log.open("rb") as handle:
            handle.seek(max(0, log.stat().st_size - 200_000))
            text = handle.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return [line for line in (_PREFIX.sub("", _ANSI.sub("", raw)).strip() for raw in text.splitlines()) if line]


def _stage(log: Path) -> str:
    lines = _lines(log)
    return lines[-1][:100] if lines else "starting"


def _tail(log: Path) -> str:
    """The last meaningful lines: those that name an error, else the last ones."""
    lines = _lines(log)
    errors = list(dict.fromkeys(line for line in lines if _ERROR_LINE.match(line)))
    return "\n".join(f"  {line[:300]}" for line in (errors or lines)[-6:])


def known_cause(log_text: str, failures: Iterable[KnownFailure]) -> str | None:
    """The advice for the first known failure that the log shows."""
    return next((failure.advice for failure in failures if re.search(failure.pattern, log_text)), None)


def _death_message(profile: Profile, log: Path, code: int) -> str:
    how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
    advice = known_cause("\n".join(_lines(log)), engine(profile.engine).known_failures)
    parts = [f"the engine of {profile.name} ended {how}.", _tail(log)]
    if advice:
        parts.append(advice)
    return "\n".join(filter(None, [*parts, f"Log: {log}"]))
