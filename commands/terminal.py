"""Progress in the terminal."""
import sys

import numpy as np
from tqdm import tqdm


class TerminalProgress:
    """A `lipsync.progress.Progress` that draws one bar per stage on stderr."""

    def __init__(self):
        self._bar: tqdm | None = None
        self._stage: str | None = None

    def __call__(self, done: int, total: int, *, stage: str = "", preview: np.ndarray | None = None) -> None:
        if stage != self._stage:
            self.close()
            self._stage, self._bar = stage, tqdm(total=total, desc=stage, file=sys.stderr, dynamic_ncols=True)
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar, self._stage = None, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
