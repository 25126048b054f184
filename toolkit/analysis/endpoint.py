"""An endpoint that is measured: where it is, who answers there, and how to speak to it."""

import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from toolkit.analysis.key import read_key
from toolkit.analysis.rate_limit import pause_asked, too_long
from toolkit.engines import ENGINES
from toolkit.engines.contract import Counters, Engine
from toolkit.errors import EngineError, InputError

MOST_NAMES = 10  # that a message lists


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One OpenAI-compatible server. `key` never leaves the request headers."""

    name: str
    base_url: str
    model: str
    engine: Engine
    version: str | None = None
    facts: tuple[tuple[str, str], ...] = ()
    key: str | None = None

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r}, {self.base_url!r}, {self.model!r})"

    @property
    def headers(self) -> dict[str, str]:
        """Request headers; the only place where the key appears."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    @property
    def metrics_url(self) -> str:
        return f"{root(self.base_url)}/metrics"

    def counters(self, page: str) -> Counters | None:
        """The counters on a /metrics page, None when it cannot be read."""
        try:
            return self.engine.counters(page)
        except ValueError:
            return None


def root(base_url: str) -> str:
    """The server's address without the API's path."""
    return base_url.rstrip("/").removesuffix("/v1")


def is_address(base_url: str) -> bool:
    """Whether `base_url` can be asked at all: http or https, a host, a possible port."""
    try:
        address = urlsplit(base_url)
        plain = base_url.isascii() and base_url.isprintable() and not set(" #") & set(base_url)
        httpx.URL(base_url)
        return plain and address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except (ValueError, httpx.InvalidURL):
        return False


def check_address(base_url: str) -> None:
    """Raises InputError for what is no base URL, or one that may hold a key: that one is never repeated."""
    if "@" in base_url or "?" in base_url:
        raise InputError(
            "the base URL must hold no user, password or query: pass a key with --api-key-env NAME or "
            "--api-key-file PATH."
        )
    if not is_address(base_url):
        raise InputError(f"{base_url}: not a URL like http://localhost:8000/v1.")


def find_endpoint(
    name: str,
    base_url: str,
    model: str | None = None,
    key_env: str | None = None,
    timeout: float = 30.0,
    key_file: str | None = None,
) -> Endpoint:
    """Ask the server at `base_url` who it is, each question answered within `timeout` seconds.

    A service that no adapter knows may serve more than it lists, or list nothing: there `model` is taken as it is.

    Raises InputError for a URL or a model that cannot be right, EngineError when nothing usable answers there.
    """
    check_address(base_url)
    key = read_key(key_env, key_file)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(timeout=timeout, headers=headers, trust_env=False) as client:
        served = _models(client, base_url, has_key=key is not None, may_lack=model is not None)
        owners = {str(one.get("owned_by")) for one in served}
        adapter = next((one for one in ENGINES.values() if owners & one.owners), ENGINES["openai"])
        version = _version(client, base_url, adapter)
    names = [str(one.get("id")) for one in served]
    if model is None:
        if len(names) != 1:
            raise InputError(f"{base_url} serves {len(names)} models ({_some(names)}): choose one with --model.")
        model = names[0]
    elif names and model not in names and adapter is not ENGINES["openai"]:
        raise InputError(f"{base_url} does not serve {model!r}, it serves {_some(names)}.")
    facts = next((one for one in served if one.get("id") == model), {})
    return Endpoint(
        name=name,
        base_url=base_url.rstrip("/"),
        model=model,
        engine=adapter,
        version=version,
        facts=tuple((key, str(facts[key])) for key in ("root", "max_model_len") if key in facts),
        key=key,
    )


def _models(client: httpx.Client, base_url: str, has_key: bool, may_lack: bool) -> list[dict[str, Any]]:
    url = f"{base_url.rstrip('/')}/models"
    try:
        answer = _patiently(client, url)
        if answer.status_code in (401, 403):
            raise InputError(
                f"{url} answered {answer.status_code}: it does not take the key that was sent."
                if has_key
                else f"{url} answered {answer.status_code}: it wants a key, pass --api-key-env NAME or "
                "--api-key-file PATH."
            )
        if answer.status_code in (404, 405) and may_lack:
            return []
        if answer.status_code != 200:
            raise EngineError(f"{url} answered {answer.status_code}, not a list of models. Is it an OpenAI-style /v1?")
        data = answer.json()["data"]
        return [one for one in data if isinstance(one, dict) and _is_name(one.get("id"))]
    except httpx.HTTPError as error:
        raise EngineError(f"{url} cannot be reached: {error or type(error).__name__}.") from None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise EngineError(
            f"{url} answered something that is not a list of models. Is it an OpenAI-style /v1?"
        ) from None


def _patiently(client: httpx.Client, url: str) -> httpx.Response:
    """The answer, after the pauses that a rate limit asks for."""
    begun = time.monotonic()
    while True:
        answer = client.get(url)
        pause = pause_asked(answer.status_code, answer.headers)
        if pause is None:
            return answer
        if why := too_long(pause, time.monotonic() - begun):
            raise EngineError(f"{url} answered {answer.status_code}, a rate limit: {why}.")
        time.sleep(pause)


def _some(names: list[str]) -> str:
    """The first of `names`: a hosted service may have hundreds."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and bool(value)


def _version(client: httpx.Client, base_url: str, adapter: Engine) -> str | None:
    if adapter.version_at is None:
        return None
    path, key = adapter.version_at
    try:
        return str(client.get(root(base_url) + path).json()[key])
    except (httpx.HTTPError, ValueError, LookupError, TypeError, RecursionError):
        return None
