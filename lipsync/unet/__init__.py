"""The network: `LatentSyncUNet(UNetConfig())`."""
from .config import UNetConfig
from .flow import Heard
from .network import LatentSyncUNet

__all__ = ["Heard", "LatentSyncUNet", "UNetConfig"]
