"""Entry point of the command ``fedbr``: it ends without a traceback at any time, whatever the current folder holds.

It imports little itself, so that a Ctrl-C in the first moment is handled, and loads the package ``scenarios`` that is
installed beside it, even where a user's folder with a module of that name is searched before. Nothing else is done
here.
"""

from __future__ import annotations

import sys
from pathlib import Path

STOPPED = 4
"""Exit code of a command that its user stops, as in `scenarios.cli.options`."""


def main() -> None:
    """Run a command line; exit codes as of `scenarios.cli.main`."""
    try:
        _load_packages()
        from scenarios.cli.main import main as run

        run()
    except KeyboardInterrupt:
        print("fedbr: stopped", file=sys.stderr)
        sys.exit(STOPPED)


def _load_packages() -> None:
    """Import ``scenarios`` from this folder; `scenarios.search_path` then orders the path for all else."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    try:
        import scenarios  # noqa: F401 - for its effect: modules of the package are found by it from now on
    finally:
        del sys.path[0]


if __name__ == "__main__":
    main()
