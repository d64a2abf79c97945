"""What runs the network, told to people in a few lines."""
import torch

from . import engines
from .choice import RTX, gpu_of
from .pool import POOL, PooledRunner

NONE = "none"


def describe(runner: PooledRunner) -> dict[str, str]:
    """{what: in words} of a chosen runner, in the order to show: back end, GPU, engine, parity, memory and, where PyTorch stands in, why.

    Loads nothing.
    """
    gpu, failed = gpu_of(runner.device), POOL.failure(runner.recipe)
    recipe = runner.fallback if failed else runner.recipe
    lines = {"back end": _back_end(recipe), "GPU": f"{gpu.name}, compute capability {gpu.capability}" if gpu else NONE}
    if recipe.key[0] == RTX:
        engine = engines.read(recipe.plan)
        lines |= {"engine": engine.label, "parity": _parity(engine.manifest, gpu)}
    else:
        lines["engine"] = NONE
    lines["memory"] = _memory(runner, recipe)
    if failed or (recipe.key[0] != RTX and runner.reason):
        lines["why not TensorRT-RTX"] = (failed or runner.reason).rstrip(".")
    return lines


def _back_end(recipe) -> str:
    if recipe.key[0] == RTX:
        return f"TensorRT-RTX {engines.installed_version() or ''}".strip()
    device = torch.device(recipe.device)
    precision = recipe.dtype or (torch.float16 if device.type == "cuda" else torch.float32)
    return f"PyTorch, {str(precision).removeprefix('torch.')} on {device.type}"


def _parity(manifest, gpu) -> str:
    verdict = manifest.get("parity", {}).get(gpu.key) if gpu else None
    if verdict is None:
        return "compared with PyTorch when it is first loaded"
    return f"{'as PyTorch' if verdict['passed'] else 'FAILED'} (cosine {verdict['cosine']:.6f})"


def _memory(runner, recipe) -> str:
    need = f"needs {_size(runner.size_bytes or recipe.needed_bytes)}"
    if runner.device.type != "cuda" or not torch.cuda.is_available():
        return f"{need} of system memory"
    free, total = torch.cuda.mem_get_info(runner.device)
    return f"{need}; {_size(free)} of {_size(total)} VRAM free"


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"
