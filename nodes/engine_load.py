"""LatentSyncEngineLoad: chooses what evaluates the network."""
import comfy.model_management
from comfy_api.latest import io

from ..lipsync.runners import TorchRunner
from . import sockets


class LatentSyncEngineLoad(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentSyncEngineLoad",
            display_name="LatentSync Load Engine",
            category=sockets.CATEGORY,
            description="Chooses the back end that runs the network. The weights are loaded when the first block is denoised.",
            inputs=[
                sockets.Model.Input("model"),
                io.Combo.Input("back_end", options=["auto", "torch"], default="auto", tooltip="'auto' takes the fastest that runs here."),
            ],
            outputs=[sockets.Runner.Output(display_name="runner")],
        )

    @classmethod
    def execute(cls, model, back_end) -> io.NodeOutput:
        device = comfy.model_management.get_torch_device()
        return io.NodeOutput(TorchRunner(lambda: model.load_unet(device=device), device))


NODES = [LatentSyncEngineLoad]
