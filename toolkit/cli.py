"""The command line: parses, calls one function, prints. Exit codes: 0 done, 1 a fault found, 2 bad input, 3 engine."""

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from toolkit import __version__
from toolkit.errors import InputError, ToolkitError
from toolkit.terminal import SweepProgress, crossover_table, err, out, say, sentences

if TYPE_CHECKING:
    from toolkit.analysis.crossover import Crossover

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Does speculative decoding pay here, with this draft, at this load, and is it still the same model answering?",
)
profiles_app = typer.Typer(no_args_is_help=True, help="What can I launch, and would the engine accept it?")
scoreboard_app = typer.Typer(no_args_is_help=True, help="Keep the result.")
app.add_typer(profiles_app, name="profiles")
app.add_typer(scoreboard_app, name="scoreboard")

AsJson = Annotated[bool, typer.Option("--json", help="Stable keys, numbers as numbers, nothing else on stdout.")]
ProfileName = Annotated[str, typer.Option("--profile", "-p", help="A shipped name or a path to a YAML file.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, like limits.max_num_seqs=32.")
]
RunFolder = Annotated[Path, typer.Argument(help="A Run directory, as `toolkit sweep` names it.")]
Board = Annotated[Path, typer.Option("--file", help="The scoreboard's Markdown file; its data lies beside it.")]


def main() -> None:
    """Run the command line; every expected error is one message on stderr and its exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _terminated)
    try:
        code = app(standalone_mode=False)
    except ToolkitError as error:
        say(f"toolkit: {error}", err)
        code = error.exit_code
    except KeyboardInterrupt:
        err.print("stopped.")
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read it went away
        code = 0
    except OSError as error:
        say(f"toolkit: {error.filename or 'the output'}: {error.strerror or error}.", err)
        code = 2
    except (typer.Abort, typer.Exit) as error:
        code = getattr(error, "exit_code", 1)
    except Exception as error:
        show: Callable[[], None] | None = getattr(error, "show", None)  # a usage error of the command line parser
        if show is None:
            raise
        show()
        code = 2
    sys.exit(code if isinstance(code, int) else 0)


def _terminated(number: int, _: object) -> None:
    raise KeyboardInterrupt


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit


@app.command()
def demo(
    run: Annotated[Path | None, typer.Option("--run", help="Where the Run directory goes.")] = None,
    minutes: Annotated[float, typer.Option(help="Budget of the measurement.")] = 8.0,
) -> None:
    """Does it work here? A small real model on the real vLLM, with and without speculation, on any CPU."""
    from toolkit.lab.demo import ask_of, show_results

    with SweepProgress() as progress:
        folder = _sweep(ask_of(minutes, run), progress)
    _print_crossover(folder, as_json=False)
    for line in show_results(folder):
        say(line)


@profiles_app.command("list")
def profiles_list(as_json: AsJson = False) -> None:
    """The shipped profiles."""
    from toolkit.launch.profile import load_profile, shipped_profiles

    found = [load_profile(name) for name in shipped_profiles()]
    if as_json:
        _print_json([{"name": p.name, "engine": p.engine, "description": p.description} for p in found])
        return
    table = Table("profile", "engine", "method", "K", "description")
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
        _print_json(values)
    else:
        print(yaml.safe_dump(values, sort_keys=False, width=110), end="")


@profiles_app.command("check")
def profiles_check(
    names: Annotated[list[str] | None, typer.Argument(help="All shipped ones when none is named.")] = None,
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Would the installed engine accept it? Its own parser and validators, no GPU, no weights, no network."""
    from toolkit.launch.check import check_profile
    from toolkit.launch.profile import shipped_profiles

    found = {name: check_profile(name, changes or ()) for name in names or shipped_profiles()}
    if as_json:
        _print_json([{"profile": name, "ok": not problems, "problems": problems} for name, problems in found.items()])
    else:
        for name, problems in found.items():
            out.print(f"{'ok ' if not problems else 'BAD'} {escape(name)}")
            for problem in problems:
                say(f"    {problem}")
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
    if dry_run:
        what = command(loaded, dry=True)
        container = what.container.model_dump() if what.container else None
        if as_json:
            _print_json({"argv": list(what.argv), "env": what.env, "container": container})
        else:
            print(shlex.join(shell_argv(loaded, what)))
        return
    begun = time.monotonic()
    with err.status("starting") as status:
        server = start(loaded, lambda line: status.update(escape(f"{time.monotonic() - begun:.0f} s: {line}")))
    ready = {"base_url": server.base_url, "pid": server.process.pid, "log": str(server.entry.log)}
    if as_json:
        _print_json({**ready, "model": loaded.served_model})
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


@app.command()
def sweep(
    profile: Annotated[list[str] | None, typer.Option("--profile", "-p", help="An arm to launch; repeatable.")] = None,
    baseline: Annotated[str | None, typer.Option(help="The profile to compare with.")] = None,
    base_url: Annotated[str | None, typer.Option(help="A running server, like http://localhost:8000/v1.")] = None,
    baseline_url: Annotated[str | None, typer.Option(help="A running server without speculation.")] = None,
    model: Annotated[str | None, typer.Option(help="The model's name on the running server.")] = None,
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable that holds the key.")] = None,
    workload: Annotated[
        str | None, typer.Option("--workload", "--prompts", help="copy-code, extract, chat, creative, or FILE.jsonl.")
    ] = None,
    concurrency: Annotated[str | None, typer.Option(help="Levels, like 1,4,16,64 (the default).")] = None,
    rounds: Annotated[int | None, typer.Option(help="Pairs per level; 6, or 1 without a baseline.")] = None,
    requests: Annotated[int | None, typer.Option("--requests", "--n", help="Requests per cell; 4 x level.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer, tokens; 128.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy, the default.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Every answer has --max-tokens tokens.")] = False,
    seed: Annotated[int | None, typer.Option(help="Chooses the prompts of a generated workload.")] = None,
    target: Annotated[str | None, typer.Option(help="The row's label on the scoreboard.")] = None,
    precision: Annotated[str | None, typer.Option(help="For the scoreboard, like bf16.")] = None,
    change: Annotated[str | None, typer.Option(help="What was changed, for the scoreboard.")] = None,
    changes: Changes = None,
    budget: Annotated[float | None, typer.Option(help="Minutes to allocate pairs in, instead of --rounds.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Longest wait for a byte, seconds; 300.")] = None,
    run: Annotated[Path | None, typer.Option(help="The Run directory; runs/<time>-<profile> when absent.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure it: constant concurrency, arm and baseline in turn, into a Run directory. Killed, it resumes by cell."""
    from toolkit.analysis.ask import Ask

    ask = Ask(
        profiles=profile or (),
        baseline=baseline,
        base_url=base_url,
        baseline_url=baseline_url,
        model=model,
        api_key_env=api_key_env,
        workload=workload,
        concurrency=concurrency,
        rounds=rounds,
        requests=requests,
        max_tokens=max_tokens,
        temperature=temperature,
        ignore_eos=ignore_eos,
        seed=seed,
        budget=budget * 60 if budget is not None else None,
        timeout=timeout,
        target=target,
        precision=precision,
        change=change,
        changes=changes or (),
        run=run,
    )
    with SweepProgress() as progress:
        folder = _sweep(ask, progress)
    _print_crossover(folder, as_json)
    say(f"Run directory: {folder}", err if as_json else out)


@app.command()
def crossover(
    run: RunFolder,
    as_json: AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="Where the plot goes; RUN/crossover.png when absent.")] = None,
) -> None:
    """Where does it stop paying? Per concurrency the speedup with its interval and a verdict; and a plot."""
    from toolkit.analysis.plots import plot_crossover

    path = plot or run / "crossover.png"
    plot_crossover(_print_crossover(run, as_json), path)
    say(f"plot: {path}", err)


@scoreboard_app.command("add")
def scoreboard_add(
    run: RunFolder,
    change: Annotated[str | None, typer.Option(help="What was changed; the sweep's own --change when absent.")] = None,
    board: Board = Path("SCOREBOARD.md"),
) -> None:
    """Append a Run's rows. Adding the same run twice changes nothing."""
    from toolkit.analysis.run import Run
    from toolkit.analysis.scoreboard import add

    added = add(Run(run), change, board)
    say(f"{board}: {added} rows added")


@scoreboard_app.command("export")
def scoreboard_export(
    form: Annotated[str, typer.Option("--format", help="md, csv or json.")] = "md",
    board: Board = Path("SCOREBOARD.md"),
) -> None:
    """The whole scoreboard on stdout."""
    from toolkit.analysis.scoreboard import export

    if form not in ("md", "csv", "json"):
        raise InputError(f"--format {form}: md, csv or json.")
    sys.stdout.write(export(board, form))  # type: ignore[arg-type]


def _sweep(ask: Any, progress: SweepProgress) -> Path:
    from toolkit.analysis.prepare import sweep as measure

    try:
        return measure(ask, progress)
    except KeyboardInterrupt:
        err.print("stopped; finished cells stand, the same command goes on from there.")
        raise


def _print_crossover(folder: Path, as_json: bool) -> "Crossover":
    from toolkit.analysis.crossover import crossover as analyse
    from toolkit.analysis.levels import cross_check, level_stats
    from toolkit.analysis.run import Run

    run = Run(folder)
    result = analyse(run)
    if as_json:
        _print_json(result.as_json())
        return result
    stats = level_stats(run)
    for table in crossover_table(result, stats):
        out.print(table)
    for line in [*sentences(run, result, stats), *cross_check(run)]:
        say(line)
    return result


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, allow_nan=False))
