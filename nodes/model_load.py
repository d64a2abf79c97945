"""LatentSyncModelLoad: names the weights of a job."""
import comfy.sd
import folder_paths
from comfy_api.latest import io

from ..lipsync import folders, weights
from ..lipsync.checkpoint import read_checkpoint
from ..lipsync.demo import BUNDLED
from ..lipsync.errors import ModelFileError
from ..lipsync.vae_diffusers import SOURCE as VAE_SOURCE
from . import sockets
from .progress import NodeProgress

AUTO = "auto"


class LatentSyncModelLoad(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentSyncModelLoad",
            display_name="LatentSync Load Model",
            category=sockets.CATEGORY,
            description="Chooses the LatentSync checkpoint, its Whisper encoder and its VAE. Nothing heavy is loaded until a stage needs it.",
            **sockets.search_aliases("lip sync", "lipsync", "latentsync loader"),
            inputs=[
                io.Combo.Input("checkpoint", options=weights.list_models(), tooltip="A checkpoint in models/latentsync, or the bundled demo model."),
                io.Combo.Input(
                    "vae",
                    options=[AUTO, *folder_paths.get_filename_list("vae")],
                    default=AUTO,
                    tooltip="The SD 1.5 VAE, best vae-ft-mse-840000-ema-pruned. 'auto' looks for it in models/vae. The demo model brings its own.",
                ),
                io.Boolean.Input(
                    "download",
                    default=False,
                    tooltip="Fetch missing LatentSync 1.6 files (about 5.4 GB) from Hugging Face into models/. Nothing is downloaded while this is off.",
                ),
            ],
            outputs=[
                sockets.Model.Output(display_name="model", tooltip="The network and its Whisper encoder, not loaded yet."),
                io.Vae.Output(display_name="vae", tooltip="For LatentSync Denoise and LatentSync VAE Decode."),
            ],
        )

    @classmethod
    def validate_inputs(cls, checkpoint=None, vae=None):
        for name, known in ((checkpoint, weights.list_models()), (vae, [AUTO, *folder_paths.get_filename_list("vae")])):
            if name is not None and name not in known:
                return f"{name!r} is not there; these are: {', '.join(known)}"
        return True

    @classmethod
    def fingerprint_inputs(cls, checkpoint, vae, download):
        return _stamp(checkpoint)

    @classmethod
    def execute(cls, checkpoint, vae, download) -> io.NodeOutput:
        if download:
            weights.download(checkpoint, progress=NodeProgress())
        model = weights.find_model(checkpoint)
        weights.require_files(checkpoint, vae=vae == AUTO)
        return io.NodeOutput(model, _load_vae(model, vae))


def _stamp(checkpoint: str) -> str:
    """Changes when the file does, so that a replaced checkpoint is loaded anew."""
    path = None if checkpoint in BUNDLED else folders.find(checkpoint)
    return f"{path}:{path.stat().st_size}:{path.stat().st_mtime_ns}" if path else checkpoint


def _load_vae(model, name: str):
    if model.is_demo:
        return model.load_vae()
    path = weights.find_vae(None if name == AUTO else name)
    state = read_checkpoint(path, what="the VAE", source=VAE_SOURCE)
    vae = comfy.sd.VAE(sd=state.get("state_dict", state))
    if getattr(vae, "first_stage_model", None) is None:  # ComfyUI only logs it
        raise ModelFileError(f"{path} is no VAE that ComfyUI knows: {VAE_SOURCE}.")
    return vae


NODES = [LatentSyncModelLoad]
