"""What is left of a GPU's memory."""
import torch


def free_memory(device: torch.device) -> int:
    """Bytes that PyTorch could still hand out on a CUDA device, within what the process may use; what it holds without need is among them."""
    held = torch.cuda.memory_reserved(device)
    free, total = torch.cuda.mem_get_info(device)
    share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0)(device)  # since PyTorch 2.8
    return held - torch.cuda.memory_allocated(device) + min(free, int(share * total) - held)
