"""The servers that the toolkit started on this machine, one small file each, so that any later command can end them."""

import os
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from toolkit.errors import InputError
from toolkit.launch.container import remove
from toolkit.launch.process import Identity, Tree, is_running


class ServerEntry(BaseModel):
    """One started server, as written down for later commands."""

    model_config = ConfigDict(frozen=True)

    name: str
    base_url: str
    log: Path
    tree: Tree
    owner: Identity
    purpose: Literal["serve", "sweep"] = "serve"
    container: tuple[str, str] | None = None  # runtime and name

    @property
    def orphaned(self) -> bool:
        """The sweep that started it was killed before it could end it. A served engine is nobody else's to end."""
        return self.purpose == "sweep" and not is_running(self.owner)

    @property
    def names(self) -> set[str]:
        """What a person may call it: profile, port, pid."""
        return {self.name, str(urlsplit(self.base_url).port), str(self.tree.session)}

    @property
    def path(self) -> Path:
        return state_folder() / f"{self.tree.session}.json"

    def save(self) -> None:
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(self.model_dump_json(), encoding="utf-8")
        temporary.replace(self.path)

    def end(self) -> int:
        """End the whole process tree, and the container if there is one. Returns how many processes were ended."""
        ended = self.tree.stop()
        if self.container is not None:
            remove(*self.container)
        self.forget()
        return ended

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)


def state_folder() -> Path:
    """Where entries and logs live, readable by their owner only: $XDG_STATE_HOME/toolkit/servers."""
    root = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    folder = root / "toolkit" / "servers"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be made: {error.strerror}. Set XDG_STATE_HOME to a place of yours."
        ) from None
    return folder


def servers() -> list[ServerEntry]:
    """The servers that still run. Entries of servers that have ended are removed."""
    running = []
    for path in sorted(state_folder().glob("*.json")):
        try:
            entry = ServerEntry.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            continue
        if entry.tree.members():
            running.append(entry)
        else:
            entry.end()  # a container outlives its killed client
    return running


def choose(name: str | None, everything: bool = False) -> list[ServerEntry]:
    """The servers that `name` (profile, port or pid) means; with no name the only one that runs.

    Raises InputError when nothing runs, nothing matches, or it is not clear which is meant.
    """
    running = servers()
    if not running:
        raise InputError("no server that the toolkit started is running.")
    if everything:
        return running
    shown = "; ".join(f"{entry.name} at {entry.base_url}, pid {entry.tree.session}" for entry in running)
    matching = [entry for entry in running if name is None or name in entry.names]
    if len(matching) == 1:
        return matching
    what = "more than one server runs" if name is None else f"{name!r} means {len(matching)} of the running servers"
    raise InputError(f"{what}: {shown}. Name a port or a pid, or use --all.")


def stop_orphans() -> list[ServerEntry]:
    """End the engines of sweeps that were killed. Returns those that were ended."""
    orphans = [entry for entry in servers() if entry.orphaned]
    for entry in orphans:
        entry.end()
    return orphans
