"""LatentSyncVAEDecode: latents -> crops with the kept pixels put back."""
from comfy_api.latest import io

from ..lipsync import budget, folders
from ..lipsync import vae as vae_stage
from ..lipsync.errors import ShapeError
from . import sockets
from .progress import NodeProgress


class LatentSyncVAEDecode(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentSyncVAEDecode",
            display_name="LatentSync VAE Decode",
            category=sockets.CATEGORY,
            description="Decodes the latents and puts everything outside the redrawn mouth back from the aligned crop.",
            **sockets.search_aliases("latent to face", "decode crops"),
            inputs=[
                io.Latent.Input("latent", tooltip="From LatentSync Denoise, directly: it says which frame each picture belongs to."),
                io.Vae.Input("vae", tooltip="The same VAE as in LatentSync Denoise."),
                sockets.Faces.Input("faces", tooltip="The same faces as in LatentSync Denoise."),
            ],
            outputs=[sockets.Crops.Output(display_name="crops", tooltip="The redrawn faces: for LatentSync Restore, or through a face restorer first.")],
        )

    @classmethod
    def execute(cls, latent, vae, faces) -> io.NodeOutput:
        plan = latent.get("latentsync_timeline")
        if plan is None:
            raise ShapeError("This LATENT does not come from LatentSync Denoise (it carries no timeline): wire that node's output here directly.")
        budget.require(temp=folders.temp_dir(), side=faces.resolution, redrawn=len(plan.redrawn(faces.found)))
        crops = vae_stage.decode_crops(
            vae, latent["samples"], faces, plan, spool_folder=folders.temp_dir(), progress=NodeProgress()
        )
        crops.journal = latent.get("latentsync_journal")
        return io.NodeOutput(crops)


NODES = [LatentSyncVAEDecode]
