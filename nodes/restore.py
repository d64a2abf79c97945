"""LatentSyncRestore: crops back into the clip, with the sound."""
from pathlib import Path
from uuid import uuid4

from comfy.model_management import get_torch_device
from comfy_api.latest import InputImpl, io, ui
from comfy_execution.graph_utils import ExecutionBlocker

from ..lipsync import budget, folders, restore
from ..lipsync.clip import ENCODERS
from . import sockets
from .progress import NodeProgress

OUTPUTS = ("video", "images", "video and images")


class LatentSyncRestore(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentSyncRestore",
            display_name="LatentSync Restore",
            category=sockets.CATEGORY,
            description="Puts the redrawn mouth back into every frame and adds the speech. Pixels outside the face patch are the clip's own.",
            **sockets.search_aliases("paste face", "composite", "save lip sync video", "mux"),
            inputs=[
                sockets.Faces.Input("faces", tooltip="From LatentSync Align Face: the clip, and where its face is."),
                sockets.Crops.Input("crops", tooltip="From LatentSync VAE Decode, or from Images to Crops behind a face restorer."),
                sockets.Audio.Input("audio", tooltip="From LatentSync Audio Features: the speech becomes the sound of the clip."),
                io.Combo.Input(
                    "output",
                    options=list(OUTPUTS),
                    default=OUTPUTS[0],
                    tooltip="A video is streamed to disk, encoded once. Images hold the whole clip in memory (25 MB a 1080p frame).",
                ),
                io.Int.Input("crf", default=18, min=0, max=51, tooltip="H.264 quality: lower is better and larger. 18 looks lossless, 0 is."),
                sockets.advanced(
                    io.Boolean.Input(
                        "lossless_sound", default=False, optional=True, tooltip="The speech as FLAC, exact up to 24 bits, instead of AAC."
                    )
                ),
                sockets.advanced(
                    io.Combo.Input(
                        "encoder",
                        options=["auto", *ENCODERS],
                        default="auto",
                        optional=True,
                        tooltip="'auto' is libx264, the best picture for its size. 'h264_nvenc' leaves it to the graphics card; "
                        "what is not there is passed over.",
                    )
                ),
            ],
            is_output_node=True,  # so that the video is shown again when nothing had to be done anew
            outputs=[
                io.Video.Output(display_name="video", tooltip="The finished clip with the speech: for Save Video. Only if 'output' asks for it."),
                io.Image.Output(display_name="images", tooltip="Its frames without loss. Only if 'output' asks for them."),
            ],
        )

    @classmethod
    def validate_inputs(cls, output=None, encoder=None):
        return sockets.known_choices(cls, output=output, encoder=encoder)

    @classmethod
    def execute(cls, faces, crops, audio, output, crf, lossless_sound=False, encoder="auto") -> io.NodeOutput:
        progress, device = NodeProgress(), get_torch_device()
        video = ExecutionBlocker(f"LatentSync Restore: set 'output' to {OUTPUTS[0]!r} or {OUTPUTS[2]!r} to get a video.")
        shown, images = None, ExecutionBlocker(f"LatentSync Restore: set 'output' to {OUTPUTS[1]!r} or {OUTPUTS[2]!r} to get images.")
        if output != OUTPUTS[1]:
            path = Path(folders.temp_dir()) / f"latentsync-{uuid4().hex}.mp4"
            frames, clip = len(crops.timeline), faces.clip
            size = budget.film(frames, clip.width, clip.height, float(crops.timeline.seconds), crf)
            budget.require(temp=path.parent, side=faces.resolution, out={path.parent: size})
            encoding = {"crf": crf, "encoder": encoder, "lossless": lossless_sound}
            restore.restore_clip(faces, crops, audio.audio, path, device=device, progress=progress, **encoding)
            video = InputImpl.VideoFromFile(str(path))
            shown = ui.PreviewVideo([ui.SavedResult(path.name, "", io.FolderType.temp)])
        if output != OUTPUTS[0]:
            images = restore.restore_images(faces, crops, device=device, progress=progress)
        if crops.journal is not None:
            crops.journal.discard()  # the job is done
        return io.NodeOutput(video, images, ui=shown)


NODES = [LatentSyncRestore]
