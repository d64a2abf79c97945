"""The command line: one module per command, each with HELP, `add_arguments(parser)` and `main(arguments) -> exit status`."""
import argparse
import importlib
import logging
import sys
from collections.abc import Callable

from ..lipsync.errors import LatentSyncError

COMMANDS = ("run", "batch", "build-engine", "bench", "validate", "doctor")
STOPPED = "stopped; nothing was left behind\n"


def main(argv: list[str] | None = None, begin: Callable[[], None] = lambda: None) -> int:
    """Run one command; a typed error becomes one line on stderr and exit status 1, Ctrl-C becomes 130. begin: called once the command's
    modules are imported, before it does anything."""
    parser = argparse.ArgumentParser(prog="python <latentsync-rtx>", description="Lip-sync a video with LatentSync, without ComfyUI.")
    parser.add_argument("-v", "--verbose", action="store_true", help="log what each stage decides")
    subparsers = parser.add_subparsers(dest="command", required=True)
    modules, chosen = {}, next((word for word in (sys.argv[1:] if argv is None else argv) if word in COMMANDS), None)
    for name in [chosen] if chosen else COMMANDS:  # one alone: `doctor` runs where what the others import is missing
        modules[name] = importlib.import_module(f".{name.replace('-', '_')}", __name__)
        command = subparsers.add_parser(name, help=modules[name].HELP, description=modules[name].HELP)
        modules[name].add_arguments(command)
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO if arguments.verbose else logging.WARNING, format="%(levelname)s %(message)s")
    try:
        begin()
        return modules[arguments.command].main(arguments)
    except LatentSyncError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(STOPPED)
        return 130
