"""Commands that show, check, start and stop what is served."""

import shlex
import time
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from toolkit.cli.options import AsJson, Changes, ProfileName, print_json
from toolkit.terminal import err, out, say

app = typer.Typer()
profiles_app = typer.Typer(no_args_is_help=True, help="What can I launch, and would the engine accept it?")
app.add_typer(profiles_app, name="profiles")


@profiles_app.command("list")
def profiles_list(as_json: AsJson = False) -> None:
    """The shipped profiles."""
    from toolkit.launch.profile import load_profile, shipped_profiles

    found = [load_profile(name) for name in shipped_profiles()]
    if as_json:
        print_json([{"name": p.name, "engine": p.engine, "description": p.description} for p in found])
        return
    # Whole names, however narrow the terminal: they are there to be copied.
    table = Table(Column("profile", min_width=max(len(p.name) for p in found)), "engine", "method", "K", "description")
    for p in found:
        method, k = (p.speculation.method, p.speculation.num_speculative_tokens) if p.speculation else ("none", "")
        table.add_row(p.name, p.engine, method, str(k), p.description)
    out.print(table)


@profiles_app.command("show")
def profiles_show(name: str, changes: Changes = None, as_json: AsJson = False) -> None:
    """One profile, `extends` resolved."""
    import yaml

    from toolkit.launch.profile import load_profile

    values = load_profile(name, changes or ()).model_dump(mode="json", exclude_none=True)
    if as_json:
        print_json(values)
    else:
        print(yaml.safe_dump(values, sort_keys=False, width=110), end="")


@profiles_app.command("check")
def profiles_check(
    names: Annotated[list[str] | None, typer.Argument(help="All shipped ones when none is named.")] = None,
    engine: Annotated[str | None, typer.Option(help="Ask another engine than the profile's.")] = None,
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Would the engine accept it? Its own parser and validators, no GPU, no weights, no network.

    When none is named, profiles of an engine that is not installed here are passed over, and said to be.
    """
    from toolkit.engines import engine as adapter
    from toolkit.errors import EngineError, InputError
    from toolkit.launch.check import check_profile, remarks
    from toolkit.launch.profile import shipped_profiles

    if engine is not None:
        adapter(engine)
    found: dict[str, list[str]] = {}
    passed_over: dict[str, EngineError] = {}
    for name in names or shipped_profiles():
        try:
            found[name] = check_profile(name, changes or (), engine)
        except EngineError as error:
            if names:
                raise
            passed_over[name] = error
        except InputError as error:  # a shipped profile is sound, so it is one that the other engine cannot take
            if names or engine is None:
                raise
            found[name] = [str(error)]
    if not found and passed_over:
        raise next(iter(passed_over.values()))
    told = {name: [] if found[name] else remarks(name, changes or (), engine) for name in found}
    if as_json:
        checked = [
            {
                "profile": name,
                "ok": not problems,
                "problems": problems,
                **({"remarks": told[name]} if told[name] else {}),
            }
            for name, problems in found.items()
        ]
        print_json([*checked, *({"profile": name, "ok": None, "problems": []} for name in passed_over)])
    else:
        for name, problems in found.items():
            out.print(f"{'ok ' if not problems else 'BAD'} {escape(name)}")
            for problem in problems:
                say(f"    {problem}")
            for remark in told[name]:
                say(f"    {remark}")
        for name in passed_over:
            out.print(f"--  {escape(name)}")
    for reason in dict.fromkeys(str(error) for error in passed_over.values()):
        say(f"not checked: {reason}", err)
    raise typer.Exit(1 if any(found.values()) else 0)


@app.command()
def launch(
    profile: ProfileName,
    engine: Annotated[str | None, typer.Option(help="Serve it with another engine than the profile's.")] = None,
    changes: Changes = None,
    port: Annotated[int | None, typer.Option(help="Short for --set server.port=N.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Leave it running; `toolkit stop` ends it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Serve a profile: start the engine, wait until it really answers, watch it, stop all of it on Ctrl-C."""
    from toolkit.launch.profile import load_profile
    from toolkit.launch.server import command, shell_argv
    from toolkit.launch.server import launch as start

    loaded = load_profile(profile, [*(changes or ()), *([f"server.port={port}"] if port is not None else [])], engine)
    what = command(loaded, dry=True)
    for filled in what.filled_in:
        say(f"the profile leaves open, so this is used: {filled}", err)
    if dry_run:
        container = what.container.model_dump() if what.container else None
        if as_json:
            print_json({"argv": list(what.argv), "env": what.env, "container": container})
        else:
            print(shlex.join(shell_argv(loaded, what)))
        return
    begun = time.monotonic()
    with err.status("starting") as status:
        server = start(loaded, lambda line: status.update(escape(f"{time.monotonic() - begun:.0f} s: {line}")))
    ready = {"base_url": server.base_url, "pid": server.process.pid, "log": str(server.entry.log)}
    if as_json:
        print_json({**ready, "model": loaded.served_model})
    else:
        say(f"ready after {time.monotonic() - begun:.0f} s")
        for name, value in {**ready, "model": loaded.served_model}.items():
            say(f"  {name:<9}{value}")
    if detach:
        return
    err.print("Ctrl-C stops it.")
    try:
        server.process.wait()
        if server.entry.path.exists():  # else `toolkit stop` ended it
            server.check()
    finally:
        server.close()


@app.command()
def stop(
    name: Annotated[str | None, typer.Argument(help="Profile name, port or pid; not needed when one runs.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Stop every server that the toolkit started.")] = False,
) -> None:
    """End a served profile with its whole process tree, also when the toolkit that started it was killed."""
    from toolkit.launch.registry import choose

    for entry in choose(name, everything):
        ended = entry.end()
        say(f"stopped {entry.name} at {entry.base_url} ({ended} processes)")
