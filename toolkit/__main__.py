"""`toolkit` and `python -m toolkit`: a Ctrl-C while the command line is still being loaded ends quietly too."""

import sys


def run() -> None:
    """The command's entry point."""
    try:
        from toolkit.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run()
