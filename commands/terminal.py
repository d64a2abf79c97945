"""Progress in the terminal."""
import sys

import numpy as np
from tqdm import tqdm


class TerminalProgress:
    """A `lipsync.progress.Progress` that draws one bar per stage on stderr. Where that is no terminal, a bar would be a line for each of its
    states: there, a stage that is done is one line, or none without `lines`."""

    def __init__(self, lines: bool = True):
        self._lines, self._drawn = lines, sys.stderr.isatty()
        self._bar: tqdm | None = None
        self._stage: str | None = None

    def __call__(self, done: int, total: int, *, stage: str = "", preview: np.ndarray | None = None) -> None:
        if not self._drawn:
            self._tell(done, total, stage)
            return
        if stage != self._stage:
            self.close()
            self._stage, self._bar = stage, tqdm(total=total, desc=stage, file=sys.stderr, dynamic_ncols=True)
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def _tell(self, done: int, total: int, stage: str) -> None:
        if done < total:
            self._stage = None
        elif self._lines and stage != self._stage:
            self._stage = stage
            sys.stderr.write(f"{stage or 'work'}: {done} of {total}\n")
            sys.stderr.flush()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar, self._stage = None, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
