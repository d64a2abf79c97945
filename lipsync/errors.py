"""Every error the stages raise on purpose. Each message says what was wrong, with which value, and what to do about it."""


class LatentSyncError(RuntimeError):
    """Base of all errors of this pack: catch this one to catch them all."""


class MediaError(LatentSyncError):
    """A clip or sound cannot be opened, decoded, encoded or written."""


class AudioError(LatentSyncError):
    """The speech is missing, empty or of a shape that is not audio."""


class FaceError(LatentSyncError):
    """No usable face, or no face detector."""


class ModelFileError(LatentSyncError):
    """A model file is missing, truncated, of another kind, or of other shapes than the network needs."""


class ShapeError(LatentSyncError, ValueError):
    """A tensor has the wrong shape, channel count or frame count for the network or the engine."""


class NumericError(LatentSyncError):
    """A stage made NaN, infinity or a flat picture out of good input."""


class EngineError(LatentSyncError):
    """A TensorRT-RTX engine cannot be built, trusted, loaded or run."""


class DiskSpaceError(LatentSyncError):
    """Not enough free space for what a job must keep on disk."""


class DependencyError(LatentSyncError):
    """An optional Python package that this step needs is not installed."""


class JobsFileError(LatentSyncError):
    """A line of a jobs file is no job, or two of them cannot be in one batch."""
