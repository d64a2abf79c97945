"""A lane for work beside PyTorch's own: ordered after what was queued before, and before what is queued next."""
import torch


class Lane:
    """`with lane as handle:` queues work on a stream of its own (TensorRT synchronises the whole device on the default one). It begins when
    what PyTorch has queued is done, and PyTorch's next work waits for it. `handle` is the CUDA stream's; on other devices, 0."""

    def __init__(self, device: torch.device):
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __enter__(self) -> int:
        if self.stream is None:
            return 0
        self.outer = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(self.outer)
        self.context = torch.cuda.stream(self.stream)
        self.context.__enter__()
        return self.stream.cuda_stream

    def __exit__(self, *error) -> None:
        if self.stream is not None:
            self.context.__exit__(*error)
            self.outer.wait_stream(self.stream)

    @property
    def capturing(self) -> bool:
        """Whether what is queued now is recorded into a CUDA graph instead of run."""
        return self.stream is not None and torch.cuda.is_current_stream_capturing()

    def synchronize(self) -> None:
        """Wait until nothing runs on the device: a captured graph with this lane's work runs wherever it is replayed."""
        if self.stream is not None:
            torch.cuda.synchronize(self.device)
