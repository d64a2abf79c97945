"""The same batch on Ray: an actor for each GPU (or for some processor cores) that holds a `Worker`, and this process, which shares out."""
import contextlib
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from ..errors import DependencyError, EngineError
from ..folders import PACK
from .driver import Driver, Event
from .jobs import Entry
from .queue import Told
from .results import Results

log = logging.getLogger(__name__)

INSTALL = 'Ray is not installed here: pip install "ray[default]", on every machine of the cluster'
CPUS, CPUS_BESIDE_GPU = 2, 8  # cores of a worker by default
OBJECTS, OBJECTS_SPLIT = 200 << 20, 1 << 30  # bytes of Ray's own memory on one machine; what is more goes to disk
CONNECT_SECONDS = 5.0  # for each machine that the name of a cluster's address leads to; Ray itself tries for minutes
CALLS = 16  # at once at a worker: most only wait for their turn
SHORT = 40  # characters of a temporary folder: names of Ray's sockets below it must stay under 100
VARIABLES = ("LATENTSYNC_JOBS", "LATENTSYNC_FACE_MODELS", "COMFYUI_PATH")  # that workers get from here


def run_on_ray(
    jobs: Sequence[tuple[Entry, str]],
    results: Results,
    *,
    address: str | None = None,
    workers: int | None = None,
    cpus: int | None = None,
    split_seconds: float | None = None,
    parts: str | None = None,
    told: Told = lambda line: None,
    event: Event = lambda what, kind, pid: None,
) -> int:
    """As `queue.run_batch`, on the cluster at `address` ("auto": the one that this machine belongs to), or on one that is started by this
    process for this batch (None), or on the one that this process uses already.

    workers, cpus: see `resources`. split_seconds: share out longer jobs, in parts of about so much; None: nothing. parts: see `Worker`.
    event("begun" or "ended", kind of task, pid): for tests. All machines must see the media, the model files and this pack under the same
    paths. Lost workers are replaced, and what they had is done again: jobs from their last finished block, parts of a shared job alone.
    Raises DependencyError without Ray, EngineError when there is no such cluster (within CONNECT_SECONDS when nobody listens at the address)
    or no worker starts.
    """
    ray = _ray()
    if not jobs:
        return 0
    with _session(ray, address, (workers or 0) * (cpus or CPUS), OBJECTS if split_seconds is None else OBJECTS_SPLIT):
        count, share = resources(ray.cluster_resources(), workers, cpus)
        log.info("%d workers with %s", count, share)
        actor = _actor(ray, share)
        driver = Driver(ray, lambda: actor.remote(str(PACK), {"parts": parts, "split_seconds": split_seconds}), results, told, event)
        try:
            return driver.run(jobs, count)
        finally:
            driver.close()


def resources(cluster: dict, workers: int | None = None, cpus: int | None = None) -> tuple[int, dict]:
    """How many workers a cluster with so many "GPU"s and "CPU"s gets, and what Ray reserves for each.

    One for each GPU by default, more share the GPUs; without GPUs one for every two cores. cpus: cores of each.
    """
    gpus, cores = int(cluster.get("GPU", 0)), int(cluster.get("CPU", 1))
    if gpus:
        count = workers or gpus
        return count, {"num_gpus": min(1, gpus / count), "num_cpus": cpus or max(1, min(CPUS_BESIDE_GPU, cores // count))}
    cpus = cpus or max(1, min(CPUS, cores // (workers or 1)))
    return workers or max(1, cores // cpus), {"num_gpus": 0, "num_cpus": cpus}


def _ray():
    try:
        import ray
    except ImportError as error:
        raise DependencyError(f"{INSTALL} ({error}).") from error
    return ray


def require_listener(address: str) -> None:
    """Raises EngineError unless a TCP connection opens to the HOST:PORT or ray://HOST:PORT that is given; of other addresses Ray knows more."""
    try:
        place = urlsplit(address if "://" in address else f"//{address}")
        if place.scheme not in ("", "ray") or not (place.hostname and place.port):
            return
        socket.create_connection((place.hostname, place.port), CONNECT_SECONDS).close()
    except ValueError as error:
        raise EngineError(f"cannot use the Ray cluster at {address}: {error}. Give HOST:PORT, ray://HOST:PORT or auto.") from error
    except OSError as error:
        why = f"no answer within {CONNECT_SECONDS:g} s" if isinstance(error, TimeoutError) else error.strerror or error
        raise EngineError(
            f"cannot use the Ray cluster at {address}: no connection to port {place.port} of {place.hostname} ({why}). Look there whether `ray status` "
            "finds it and a firewall lets it through; `ray start --head` starts one and says its address."
        ) from error


@contextlib.contextmanager
def _session(ray, address: str | None, cores: int, objects: int) -> Iterator[None]:
    if ray.is_initialized():
        yield
        return
    if address is not None:
        require_listener(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    folder = None
    options = {"address": address, "logging_level": logging.WARNING}
    if address is None:
        folder = tempfile.mkdtemp(prefix="ls-ray-") if len(tempfile.gettempdir()) < SHORT else None
        options |= {"address": "local", "num_cpus": max(os.cpu_count() or 1, cores), "include_dashboard": False}
        options |= {"object_store_memory": objects, "_temp_dir": folder}
    ours = threading.current_thread() is threading.main_thread()
    on_stop = signal.getsignal(signal.SIGTERM) if ours else None
    try:
        try:
            ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = f"the Ray cluster at {address}" if address else "Ray on this machine"
            raise EngineError(f"cannot use {where}: {str(error).strip().rstrip('.')}. `ray start --head` starts one.") from error
        if ours:
            signal.signal(signal.SIGTERM, on_stop)  # Ray's own would exit at once
        yield
    finally:
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _actor(ray, share: dict):
    """The class of the actors. It is sent by value: the pack becomes a package only in its constructor, as in `__main__`."""

    class BatchWorker:
        def __init__(self, root: str, setup: dict):
            import importlib.util
            import sys

            name = "latentsync_rtx"
            if name not in sys.modules:
                spec = importlib.util.spec_from_file_location(name, f"{root}/__init__.py", submodule_search_locations=[root])
                sys.modules[name] = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(sys.modules[name])
            self.worker = importlib.import_module(f"{name}.lipsync.batch.worker").Worker(**setup)

        def call(self, name: str, *given):
            return getattr(self.worker, name)(*given)

    variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    return ray.remote(BatchWorker).options(**share, max_concurrency=CALLS, max_restarts=0, runtime_env={"env_vars": variables})
