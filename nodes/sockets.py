"""The pack's own socket types; `design.md` says what each carries."""
from comfy_api.latest import io

Model = io.Custom("LATENTSYNC_MODEL")
Engine = io.Custom("LATENTSYNC_ENGINE")
Runner = io.Custom("LATENTSYNC_RUNNER")
Faces = io.Custom("LATENTSYNC_FACES")
Audio = io.Custom("LATENTSYNC_AUDIO")
Crops = io.Custom("LATENTSYNC_CROPS")

CATEGORY = "LatentSync"
