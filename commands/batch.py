"""`batch`: many jobs from a file, models loaded once."""
import argparse
import sys
from dataclasses import replace

from ..lipsync.batch import DONE, Results, open_jobs, read_jobs, results_path, run_batch
from ..lipsync.errors import LatentSyncError
from .models import add_download, download_models, model_name
from .terminal import TerminalProgress

CLUSTER = "address", "workers", "cpus", "split_seconds"  # options of Ray
HELP = "lip-sync many videos: one JSON object a line, with the fields that `run` has as options"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("jobs", help='file of lines such as {"video": "a.mp4", "audio": "a.wav", "out": "b.mp4", "seed": 7}; - reads standard input')
    parser.add_argument("--results", help="file to append a line to for each job; jobs that it says are done are passed over (default: JOBS.results.jsonl)")
    add_download(parser)
    cluster = parser.add_argument_group("on Ray", 'several GPUs or machines; needs `pip install "ray[default]"`, and files that all machines see')
    cluster.add_argument("--ray", action="store_true", help="one worker for each GPU of the cluster, or of this machine")
    cluster.add_argument("--address", help="of a running cluster, or auto (default: start Ray on this machine, for this batch)")
    cluster.add_argument("--workers", type=int, help="how many (default: one for each GPU; without GPUs, one for each --cpus)")
    cluster.add_argument("--cpus", type=int, help="processor cores for each worker (default: 8 beside a GPU, else 2)")
    cluster.add_argument("--split-seconds", type=float, help="share a longer clip out in parts of about so much (default: never)")


def main(arguments: argparse.Namespace) -> int:
    check_cluster(arguments)
    entries = [named(entry) for entry in read_jobs(arguments.jobs)]
    results = Results(arguments.results or results_path(arguments.jobs))
    with TerminalProgress() as progress:
        download_models(arguments, (entry.job.model for entry in entries), progress)
    jobs = open_jobs(entries, results)  # after the download: what is done is told by the weights, too
    if before := len(entries) - len(jobs):
        sys.stdout.write(f"{before} of {len(entries)} jobs were done before, see {results.path}\n")
    with TerminalProgress() as progress:

        def tell(line: dict) -> None:
            progress.close()
            text = f"{line['out']}, {line['seconds']:.1f} s" if line["status"] == DONE else f"{line['error']['type']}: {line['error']['message']}"
            sys.stdout.write(f"line {line['line']} {line['status']}: {text}\n")
            sys.stdout.flush()

        try:
            failed = _on_ray(arguments, jobs, results, tell) if arguments.ray else run_batch(jobs, results, progress=progress, told=tell)
        except KeyboardInterrupt:
            progress.close()
            sys.stderr.write("stopped; the same command goes on from the last finished block\n")
            return 130
    sys.stdout.write(f"{len(entries) - failed} of {len(entries)} jobs are done, {failed} failed: {results.path}\n")
    return 1 if failed else 0


def named(entry):
    """A line of the file with its model's whole name."""
    name = entry.job.model and model_name(entry.job.model)
    return entry if name == entry.job.model else replace(entry, job=replace(entry.job, model=name), given={**entry.given, "model": name})


def check_cluster(arguments: argparse.Namespace) -> None:
    """Raises LatentSyncError for options of --ray without it, and for numbers that are none of workers, cores or seconds."""
    for name in CLUSTER:
        value, option = getattr(arguments, name), f"--{name.replace('_', '-')}"
        if value is not None and not arguments.ray:
            raise LatentSyncError(f"{option} is for Ray: add --ray, or leave it out.")
        if not isinstance(value, str | None) and not value > 0:
            raise LatentSyncError(f"{option} is {value:g}, but must be more than 0.")


def _on_ray(arguments: argparse.Namespace, jobs, results, tell) -> int:
    from ..lipsync.batch.cluster import run_on_ray

    options = {name: getattr(arguments, name) for name in CLUSTER}
    return run_on_ray(jobs, results, told=tell, **options)
