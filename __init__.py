"""latentsync-rtx: lip-sync a video in ComfyUI. Safe to import anywhere: nodes are loaded by ComfyUI's call of `comfy_entrypoint` only."""
WEB_DIRECTORY = "./web"


async def comfy_entrypoint():
    from .nodes import LatentSyncExtension

    return LatentSyncExtension()
