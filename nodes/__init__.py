"""What ComfyUI sees: one file per stage, each a schema and a call into `lipsync/`."""
from comfy_api.latest import ComfyExtension, io

from ..lipsync import folders
from . import audio_features, compare, crops, denoise, engine_build, engine_load, face_align, model_load, restore, routes, vae_decode
from .progress import page_server

STAGES = (model_load, engine_build, engine_load, face_align, audio_features, denoise, vae_decode, restore, crops, compare)


class LatentSyncExtension(ComfyExtension):
    async def on_load(self) -> None:
        folders.register()

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        server = page_server()
        if server is not None:  # here, since 0.3.75 does not call `on_load`
            routes.register(server.routes)
        return [node for stage in STAGES for node in stage.NODES]
