"""LatentSyncEngineBuild: the network as a TensorRT-RTX engine, built ahead of time."""
from comfy_api.latest import io, ui

from .. import engine_builder
from ..lipsync.runners import engines
from . import sockets
from .progress import NodeProgress

TARGETS = ("portable", "this GPU", "chosen")


class LatentSyncEngineBuild(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentSyncEngineBuild",
            display_name="LatentSync Build Engine",
            category=sockets.CATEGORY,
            description="Builds a TensorRT-RTX engine of the model into models/latentsync/engines, once: asked again, it gives the engine that is there.",
            **sockets.search_aliases("tensorrt", "trt", "rtx", "compile", "export engine"),
            inputs=[
                sockets.Model.Input("model", tooltip="From LatentSync Load Model: the network to build the engine of."),
                io.Combo.Input("resolution", options=["512", "256"], default="512", tooltip="Of the face crops: 512 for LatentSync 1.6, 256 for 1.5."),
                sockets.advanced(
                    io.Int.Input(
                        "frames",
                        default=16,
                        min=1,
                        max=24,
                        tooltip="Frames per block. The model was trained on 16; engines of 22 and 24 were measured slower.",
                    )
                ),
                sockets.advanced(
                    io.Boolean.Input("guided", default=True, tooltip="For guidance above 1. It also runs guidance 1, two blocks at a time.")
                ),
                io.Combo.Input(
                    "targets",
                    options=list(TARGETS),
                    default=TARGETS[0],
                    tooltip="'portable' runs on RTX 30 and newer; 'this GPU' may run faster and needs the card in this machine.",
                ),
                io.String.Input(
                    "compute_capabilities", default="8.9, 12.0", tooltip="For 'chosen': of the cards to build for. 8.6 is RTX 30, 8.9 RTX 40, 12.0 RTX 50."
                ),
                sockets.advanced(
                    io.Boolean.Input("weight_streaming", default=False, tooltip="Lets weights stay in system memory: for small cards, slower.")
                ),
                sockets.advanced(
                    io.Boolean.Input(
                        "caching", default=False, optional=True, tooltip="Builds a pair of engines, which can also run the profiles with block caching."
                    )
                ),
            ],
            is_output_node=True,  # so that it can be run alone
            outputs=[sockets.Engine.Output(display_name="engine", tooltip="The engine: for LatentSync Load Engine, which also finds it by itself.")],
        )

    @classmethod
    def validate_inputs(cls, resolution=None, targets=None):
        return sockets.known_choices(cls, resolution=resolution, targets=targets)

    @classmethod
    def execute(cls, model, resolution, frames, guided, targets, compute_capabilities, weight_streaming, caching=False) -> io.NodeOutput:
        wanted = {
            TARGETS[0]: engine_builder.PORTABLE,
            TARGETS[1]: engine_builder.THIS_GPU,
            TARGETS[2]: [target.strip() for target in compute_capabilities.split(",") if target.strip()],
        }[targets]
        manifest = engine_builder.build(
            model,
            resolution=int(resolution),
            frames=frames,
            guided=guided,
            targets=wanted,
            weight_streaming=weight_streaming,
            caching=caching,
            progress=NodeProgress(),
        )
        engine = engines.read(manifest["path"])
        return io.NodeOutput(engine, ui=ui.PreviewText(f"{engine.label}\n{engine_builder.summary(manifest)}"))


NODES = [LatentSyncEngineBuild]
