"""LatentSyncEngineLoad: chooses what evaluates the network."""
import comfy.model_management
import torch
from comfy_api.latest import io, ui

from ..lipsync.runners.choice import BACKENDS
from ..lipsync.runners.engines import find_engine, list_engines
from ..lipsync.runners.pool import runner_for
from ..lipsync.runners.status import describe
from . import sockets

BEST = "best match"
PRECISIONS = {"auto": None, "fp16": torch.float16, "fp32": torch.float32}


class LatentSyncEngineLoad(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentSyncEngineLoad",
            display_name="LatentSync Load Engine",
            category=sockets.CATEGORY,
            description="Chooses what runs the network. It is loaded when the first block is denoised, once for all queue runs.",
            **sockets.search_aliases("tensorrt", "trt", "rtx", "runner", "back end"),
            inputs=[
                sockets.Model.Input("model", tooltip="From LatentSync Load Model: the network to run."),
                io.Combo.Input(
                    "back_end",
                    options=list(BACKENDS),
                    default=BACKENDS[0],
                    tooltip="'auto' takes a valid engine for this GPU, else PyTorch; the node and the log say why.",
                ),
                io.Combo.Input(
                    "engine_file",
                    options=[BEST, *(engine.label for engine in list_engines())],
                    default=BEST,
                    tooltip="An engine in models/latentsync/engines. 'best match' takes the one that fits the model.",
                ),
                sockets.advanced(
                    io.Combo.Input(
                        "precision", options=list(PRECISIONS), default="auto", tooltip="Of the PyTorch back end: 'auto' is fp16 on a GPU, fp32 on a CPU."
                    )
                ),
                sockets.Engine.Input("engine", optional=True, tooltip="A freshly built engine, from LatentSync Build Engine; instead of 'engine_file'."),
            ],
            outputs=[sockets.Runner.Output(display_name="runner", tooltip="What runs the network: for LatentSync Denoise.")],
        )

    @classmethod
    def validate_inputs(cls, back_end=None, engine_file=None, precision=None):
        # not `engine_file`: the list on the page may be older than the folder, and `find_engine` says what is wrong
        return sockets.known_choices(cls, back_end=back_end, precision=precision)

    @classmethod
    def fingerprint_inputs(cls, model, back_end, engine_file, precision, engine=None):
        # 'auto' chooses anew when engines come and go, or are built again.
        return [f"{one.path}:{one.identity}:{one.manifest.get('sha256')}" for one in list_engines()]

    @classmethod
    def execute(cls, model, back_end, engine_file, precision, engine=None) -> io.NodeOutput:
        if engine is None and engine_file != BEST:
            engine = find_engine(engine_file)
        device = comfy.model_management.get_torch_device()
        runner = runner_for(model, back_end, engine=engine, device=device, dtype=PRECISIONS[precision])
        return io.NodeOutput(runner, ui=ui.PreviewText("\n".join(f"{what}: {words}" for what, words in describe(runner).items())))


NODES = [LatentSyncEngineLoad]
