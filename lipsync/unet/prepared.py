"""Modules that keep something derived from their parameters."""
from torch import nn


class Prepared(nn.Module):
    """`prepared` is None until `prepare` sets it, and again after the parameters have been moved or loaded."""

    def __init__(self):
        super().__init__()
        self.prepared = None
        self.register_load_state_dict_post_hook(_forget)

    def _apply(self, fn, recurse=True):
        self.prepared = None
        return super()._apply(fn, recurse)


def _forget(module: Prepared, _) -> None:
    module.prepared = None
