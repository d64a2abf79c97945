"""`python <this folder> run|build-engine|...`: the stages without ComfyUI."""
import importlib.util
import os
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PACKAGE = "latentsync_rtx"


def load_pack():
    """The folder as a package under a fixed name: its own name may be no Python identifier, and `nodes/` must not become top-level."""
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
    spec = importlib.util.spec_from_file_location(PACKAGE, ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)


def stop(*_):
    """While modules are imported, for seconds: nothing has to be cleaned up yet, and libraries swallow exceptions then."""
    os.write(2, b"stopped; nothing was left behind\n")
    os._exit(130)


def listen(handler):
    """Ctrl-C goes to `handler`, unless whoever started this has turned it off; a scheduler's stop does the same."""
    signal.signal(signal.SIGTERM, handler)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)


if __name__ == "__main__":
    listen(stop)
    if sys.version_info < (3, 10):  # noqa: UP036 - whatever Python is at hand may be tried
        sys.exit("Python 3.10 or newer is needed, and this is {}.{}: use ComfyUI's own Python.".format(*sys.version_info))
    load_pack()
    from latentsync_rtx.commands import main

    sys.exit(main(begin=lambda: listen(signal.default_int_handler)))
