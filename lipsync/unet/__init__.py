"""The network: `LatentSyncUNet(UNetConfig())`."""
from .config import UNetConfig
from .flow import Heard
from .network import LatentSyncUNet, deep_shape

__all__ = ["Heard", "LatentSyncUNet", "UNetConfig", "deep_shape"]
