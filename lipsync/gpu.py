"""What is left of a GPU's memory."""
import torch


def free_memory(device: torch.device) -> int:
    """Bytes that PyTorch could still hand out on a CUDA device, within what the process may use; what it holds without need is among them."""
    index = torch.cuda.current_device() if device.index is None else device.index
    held = torch.cuda.memory_reserved(index)
    free, total = torch.cuda.mem_get_info(index)
    share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda index: 1.0)(index)  # since PyTorch 2.8
    return held - torch.cuda.memory_allocated(index) + min(free, int(share * total) - held)
