"""The pack's own socket types; `design.md` says what each carries."""
from comfy_api.latest import io

Model = io.Custom("LATENTSYNC_MODEL")
Engine = io.Custom("LATENTSYNC_ENGINE")
Runner = io.Custom("LATENTSYNC_RUNNER")
Faces = io.Custom("LATENTSYNC_FACES")
Audio = io.Custom("LATENTSYNC_AUDIO")
Crops = io.Custom("LATENTSYNC_CROPS")

CATEGORY = "LatentSync"


def search_aliases(*names: str) -> dict:
    """Further words that a node is found by, as an argument of `io.Schema` where ComfyUI knows it (0.3.75 does not)."""
    return {"search_aliases": list(names)} if "search_aliases" in io.Schema.__dataclass_fields__ else {}
