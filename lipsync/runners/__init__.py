"""What evaluates the network: the protocol, and the back end that is always there."""
from .base import Runner, RunnerSpec, Session
from .torch import TorchRunner

__all__ = ["Runner", "RunnerSpec", "Session", "TorchRunner"]
