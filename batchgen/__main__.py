"""The program `batchgen`. It imports nothing before it is ready for Ctrl-C, for the imports take a second or two."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C where nothing else hears it ends with 130 and no traceback."""
    try:
        from batchgen.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
