"""One step of a build in a process of its own: `python child.py job.json`. Started by `process.py`.

It says what it does in JSON lines on standard output ({"progress": fraction}, {"log": text}, {"result": {...}}, {"error": text}), and stops
when standard input closes: when whoever started it is gone. The pack may be imported there under any name; here it always is `PACKAGE`.
"""
import importlib
import importlib.util
import json
import os
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "latentsync_rtx"


def main() -> int:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    say = _voice()
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    sys.path[:] = [entry for entry in job["sys_path"] if Path(entry or ".").resolve() != ROOT]
    started = time.monotonic()
    try:
        result = STEPS[job["step"]](job, lambda fraction: say(progress=fraction), lambda text: say(log=text)) or {}
    except Exception as error:
        if not type(error).__module__.startswith(PACKAGE):  # not one of ours: where it came from belongs into the log
            import traceback

            traceback.print_exc()
        say(error=f"{error}" or type(error).__name__, kind=type(error).__name__)
        return 1
    say(result={**result, "seconds": round(time.monotonic() - started, 1), "peak_host_bytes": _peak()})
    return 0


def export(job: dict, report, say) -> dict:
    import torch

    graph = _module("engine_builder.graph")
    config = _module("lipsync.unet").UNetConfig(**job["network"])
    folder = Path(job["folder"])
    path = graph.export(
        config,
        folder,
        resolution=job["resolution"],
        frames=job["frames"],
        batch=2 if job["guided"] else 1,
        dtype=torch.float16,
        role=job["role"],
        report=report,
    )
    return {"torch": torch.__version__, "opset": graph.OPSET, "weights": graph.weights_of(path)}


def plan(job: dict, report, say) -> dict:
    folder = Path(job["folder"])
    return _module("engine_builder.plan").build(
        folder / "graph.onnx",
        folder / job["weights"],
        {name: tuple(place) for name, place in job["places"].items()},
        folder / "engine.plan",
        targets=job["targets"],
        weight_streaming=job["weight_streaming"],
        report=report,
        say=say,
    )


STEPS = {"export": export, "plan": plan}


def _module(name: str):
    if PACKAGE not in sys.modules:
        spec = importlib.util.spec_from_file_location(PACKAGE, ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
        package = importlib.util.module_from_spec(spec)
        sys.modules[PACKAGE] = package
        spec.loader.exec_module(package)
    return importlib.import_module(f"{PACKAGE}.{name}")


def _voice():
    """Standard output for our messages alone: whatever libraries print goes to standard error."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lock = threading.Lock()

    def say(**message) -> None:
        with lock:
            lines.write(json.dumps(message) + "\n")
            lines.flush()

    return say


def _stop_with_parent() -> None:
    while os.read(0, 1):  # not sys.stdin: a thread that waits there keeps the interpreter from ending
        pass
    os._exit(3)


def _peak() -> int | None:
    """The most memory that this process held, in bytes."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # nothing to tidy up, and PyTorch takes seconds to
