"""The command line: parses, calls one function, prints. Exit codes: 0 done, 1 a fault found, 2 bad input, 3 engine."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from toolkit import __version__
from toolkit.cli import auditing, comparing, forecasting, lab, layers, measuring, reading, replaying, serving
from toolkit.errors import ToolkitError
from toolkit.terminal import err, out, say

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Does speculative decoding pay here, with this draft, at this load, and is it still the same model answering?",
)
for room in (measuring, forecasting, auditing, reading, comparing, replaying, layers, serving, lab):
    app.add_typer(room.app)


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
