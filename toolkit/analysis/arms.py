"""The arms of a sweep: a profile that is launched, or a server that already runs; and which of them are up."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httpx
import psutil

from toolkit.analysis.endpoint import Endpoint, find_endpoint
from toolkit.analysis.run import ArmInfo
from toolkit.engines import engine
from toolkit.engines.contract import Counters, Profile
from toolkit.launch.container import image_digest
from toolkit.launch.models import model_identity, resolve_model
from toolkit.launch.server import Server, begin, closing_all, free_port, wait_ready

# Of a CPU engine beside its KV cache: three processes and the weights of a small model. Seen for the lab model under
# load, as proportional set size less the 2 GiB of KV cache: 2.1 plain, 2.2 with n-gram lookup, 2.5 with a draft model.
OVERHEAD_GIB = 3.0


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of a comparison. Either `profile` or `url` is set."""

    name: str
    profile: Profile | None = None
    url: str | None = None
    model: str | None = None
    key_env: str | None = None
    key_file: str | None = None

    @property
    def outlives_us(self) -> bool:
        """The server ran before us and goes on after us: what it has served, it has served."""
        return self.profile is None


def describe(arm: Arm, endpoint: Endpoint | None) -> ArmInfo:
    """What can be said of an arm before it is measured. `endpoint` is needed for running servers only."""
    if arm.profile is None:
        assert endpoint is not None
        return ArmInfo(
            name=arm.name,
            engine=endpoint.engine.name,
            engine_version=endpoint.version,
            model=endpoint.model,
            base_url=endpoint.base_url,
            facts=dict(endpoint.facts),
        )
    profile, asked = arm.profile, list[str]()

    def resolve(name: str) -> str:
        asked.append(name)
        return resolve_model(name, dry=True)

    what = engine(profile.engine).command(profile, resolve)
    speculation = profile.speculation
    return ArmInfo(
        name=arm.name,
        engine=profile.engine,
        engine_version=None if profile.container else engine(profile.engine).installed_version(),
        model=profile.target.model,
        model_identity=model_identity(asked[0]),  # the target's: of its folder or of another file, as the engine wants
        precision=what.precision or profile.target.quantization or profile.target.dtype,
        method=speculation.method if speculation else "none",
        num_speculative_tokens=speculation.num_speculative_tokens if speculation else None,
        draft=speculation.draft if speculation else None,
        argv=list(what.argv),
        env=what.env,
        container=what.container.reference if what.container else None,
        speculates=speculation is not None,
        scheduling=engine(profile.engine).scheduling(profile),
        facts={"schedule": json.dumps(speculation.schedule)} if speculation and speculation.schedule else {},
    )


def key_part(arm: Arm, info: ArmInfo) -> dict[str, Any]:
    """What of an arm can change a number: not its port, its paths, its label."""
    if arm.profile is None:
        return {"url": info.base_url, "model": info.model, "version": info.engine_version, "facts": info.facts}
    target = arm.profile.target.model_copy(update={"served_name": "a label"})  # else the model's path
    bare = arm.profile.model_copy(update={"server": type(arm.profile.server)(), "target": target})
    what = engine(bare.engine).command(bare, model_identity)
    env = {name: value for name, value in what.env.items() if name != "LD_PRELOAD"}
    preload = [path.rsplit("/", 1)[-1] for path in what.env.get("LD_PRELOAD", "").split(":") if path]
    return {
        "argv": list(what.argv[1:]),
        "env": env,
        "preload": preload,
        "container": what.container.reference if what.container else None,
        "version": info.engine_version,
    }


def can_stay_resident(arms: Sequence[Arm]) -> bool:
    """Whether all engines fit into the memory at once. Running servers already do."""
    profiles = [arm.profile for arm in arms if arm.profile is not None]
    cpu = [profile for profile in profiles if profile.device == "cpu"]
    needed = sum((profile.limits.kv_cache_gib or 4.0) + OVERHEAD_GIB for profile in cpu) * 2**30
    on_gpu = [profile.limits.memory_fraction or 0.92 for profile in profiles if profile.device == "gpu"]
    return sum(on_gpu) <= 0.95 and needed <= psutil.virtual_memory().available


@dataclass(slots=True)
class Live:
    """Which arms are up. Use as a context: on the way out every engine that was launched here is ended.

    `on_up` is called whenever endpoints came up; `counters`, `versions` and `images` then hold what they said, by arm.
    """

    arms: Sequence[Arm]
    resident: bool
    on_up: Callable[[], None] = lambda: None
    counters: dict[str, Counters] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=dict)
    _servers: dict[str, Server] = field(default_factory=dict)
    _endpoints: dict[str, Endpoint] = field(default_factory=dict)
    _levels_seen: set[tuple[str, int]] = field(default_factory=set)

    def endpoint(self, arm: Arm, progress: Callable[[str], None]) -> Endpoint:
        """The endpoint of `arm`, its engine started if need be. Raises EngineError, InputError."""
        if arm.name not in self._endpoints:
            self._bring_up(self.arms if self.resident else [arm], progress)
        return self._endpoints[arm.name]

    def first_time(self, arm: Arm, level: int) -> bool:
        """Whether this engine meets this concurrency for the first time; asking counts."""
        first = (arm.name, level) not in self._levels_seen
        self._levels_seen.add((arm.name, level))
        return first

    def speculates(self, arm: Arm) -> bool | None:
        """Whether the arm drafts; None when its server does not tell."""
        if arm.profile is not None:
            return arm.profile.speculation is not None
        counters = self.counters.get(arm.name)
        return counters.speculates if counters is not None else None

    def check(self, arm: Arm) -> None:
        """Raises EngineError when the arm's engine, launched here, has died."""
        if arm.name in self._servers:
            self._servers[arm.name].check()

    def __enter__(self) -> "Live":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._take_down()

    def _take_down(self) -> None:
        servers, self._servers = self._servers, {}
        for name in servers:
            self._endpoints.pop(name, None)
        self._levels_seen = {(name, level) for name, level in self._levels_seen if name not in servers}
        with closing_all(servers.values()):
            pass

    def _bring_up(self, arms: Sequence[Arm], progress: Callable[[str], None]) -> None:
        if not self.resident:
            self._take_down()
        for arm in arms:
            if arm.profile is not None and arm.name not in self._servers:
                serving = arm.profile.server.model_copy(update={"port": free_port()})
                self._servers[arm.name] = begin(arm.profile.model_copy(update={"server": serving}), purpose="sweep")
        for arm in arms:
            server, url = self._servers.get(arm.name), arm.url
            if server is not None and arm.name not in self._endpoints:
                wait_ready(server, lambda line, name=arm.name: progress(f"{name} boots: {line}"))  # type: ignore[misc]
                url = server.base_url
            if url is not None and arm.name not in self._endpoints:
                model = arm.profile.served_model if arm.profile else arm.model
                self._endpoints[arm.name] = find_endpoint(arm.name, url, model, arm.key_env, key_file=arm.key_file)
                found = counters_now(self._endpoints[arm.name])
                if found is not None:
                    self.counters[arm.name] = found
                if version := self._endpoints[arm.name].version:
                    self.versions[arm.name] = version
                if server is not None and server.entry.container and arm.profile and arm.profile.container:
                    digest = image_digest(server.entry.container[0], arm.profile.container.reference)
                    self.images |= {arm.name: digest} if digest else {}
        self.on_up()


def counters_now(endpoint: Endpoint) -> Counters | None:
    """One reading of the endpoint's counters; None when it shows none that we can read."""
    try:
        answer = httpx.get(endpoint.metrics_url, headers=endpoint.headers, timeout=10, trust_env=False)
        return endpoint.counters(answer.text) if answer.status_code == 200 else None
    except httpx.HTTPError:
        return None
