"""Many jobs: read from a file, done one behind the other on this machine or side by side on a Ray cluster, told line by line."""
from .jobs import Entry, read_jobs
from .queue import open_jobs, run_batch
from .results import DONE, FAILED, Results, results_path

__all__ = ["DONE", "FAILED", "Entry", "Results", "open_jobs", "read_jobs", "results_path", "run_batch"]
