"""LatentSyncAudioFeatures: speech -> audio tokens."""
import comfy.model_management
from comfy_api.latest import io

from ..lipsync import audio as audio_stage
from ..lipsync import folders
from . import sockets
from .progress import NodeProgress


class LatentSyncAudioFeatures(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentSyncAudioFeatures",
            display_name="LatentSync Audio Features",
            category=sockets.CATEGORY,
            description="Runs the Whisper encoder over the speech. The original sound is kept beside the features for the finished clip.",
            **sockets.search_aliases("speech to lips", "whisper", "voice", "audio encoder"),
            inputs=[
                sockets.Model.Input("model", tooltip="From LatentSync Load Model, which found the Whisper encoder that goes with it."),
                io.Audio.Input("audio", tooltip="The new speech: any sample rate and channel count."),
                sockets.advanced(
                    io.Combo.Input(
                        "windows",
                        options=list(audio_stage.WINDOWS),
                        default=audio_stage.WINDOWS[0],
                        tooltip="'overlapped' has no break in context every 30 s; 'reference' cuts 30 s windows as the reference does. Same up to 30 s.",
                    )
                ),
            ],
            outputs=[sockets.Audio.Output(display_name="audio", tooltip="What the mouth will follow, with the speech itself: for Denoise and Restore.")],
        )

    @classmethod
    def validate_inputs(cls, windows=None):
        return sockets.known_choices(cls, windows=windows)

    @classmethod
    def execute(cls, model, audio, windows) -> io.NodeOutput:
        device = comfy.model_management.get_torch_device()
        features = audio_stage.extract(
            audio, model.load_whisper(), windows=windows, device=device, spool_folder=folders.temp_dir(), progress=NodeProgress()
        )
        return io.NodeOutput(features)


NODES = [LatentSyncAudioFeatures]
