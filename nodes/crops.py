"""Crops to IMAGE and back, so that a face restorer fits between decode and restore."""
from comfy_api.latest import io

from ..lipsync import folders
from ..lipsync.crops import Crops
from . import sockets
from .progress import NodeProgress


class LatentSyncCropsToImages(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentSyncCropsToImages",
            display_name="LatentSync Crops to Images",
            category=sockets.CATEGORY,
            description="The redrawn face crops as an IMAGE batch, for a face restorer or an upscaler.",
            **sockets.search_aliases("face restore", "codeformer", "gfpgan", "upscale face"),
            inputs=[sockets.Crops.Input("crops", tooltip="From LatentSync VAE Decode.")],
            outputs=[io.Image.Output(display_name="images", tooltip="One picture for each redrawn frame. Keep their number and order.")],
        )

    @classmethod
    def execute(cls, crops) -> io.NodeOutput:
        return io.NodeOutput(crops.to_images(folders.temp_dir(), NodeProgress()))


class LatentSyncImagesToCrops(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentSyncImagesToCrops",
            display_name="LatentSync Images to Crops",
            category=sockets.CATEGORY,
            description="Worked-on face crops back on their way to LatentSync Restore. Another size is resized to the crops' own.",
            **sockets.search_aliases("face restore", "codeformer", "gfpgan"),
            inputs=[
                io.Image.Input("images", tooltip="The worked-on pictures: as many as there were crops, in the same order; any size."),
                sockets.Crops.Input("crops", tooltip="The crops that the images were made from: they say where each one belongs."),
            ],
            outputs=[sockets.Crops.Output(display_name="crops", tooltip="The pictures in the crops' place: for LatentSync Restore.")],
        )

    @classmethod
    def execute(cls, images, crops) -> io.NodeOutput:
        return io.NodeOutput(Crops.from_images(images, like=crops, spool_folder=folders.temp_dir(), progress=NodeProgress()))


NODES = [LatentSyncCropsToImages, LatentSyncImagesToCrops]
