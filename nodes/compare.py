"""LatentSyncCompare: two clips -> how near they are, and whether their mouths are in time."""
import json

import torch
from comfy.model_management import get_torch_device
from comfy_api.latest import InputImpl, io

from ..lipsync import compare
from . import sockets
from .media import WORK_RATES, clip_from
from .progress import NodeProgress

KEEP = next(name for name, rate in WORK_RATES.items() if rate is None)


class LatentSyncCompare(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        kinds = [io.Video, io.Image]
        return io.Schema(
            node_id="LatentSyncCompare",
            display_name="LatentSync Compare",
            category=sockets.CATEGORY,
            description="Compares two clips in time: SSIM and PSNR of frames and mouths, landmark drift, how far mouths open and how far they are "
            "behind the speech.",
            is_output_node=True,
            **sockets.search_aliases("validate", "ssim", "psnr", "lpips", "sync", "quality"),
            inputs=[
                io.MultiType.Input("a", kinds, tooltip="The clip to compare with: the original, or an exact run. A VIDEO is streamed."),
                io.MultiType.Input("b", kinds, tooltip="The clip to judge. At each moment of A, what B shows then is compared."),
                io.Float.Input("image_rate", default=25.0, min=1.0, max=240.0, step=0.001, tooltip="Frame rate of IMAGE batches. A VIDEO has its own."),
                io.Combo.Input(
                    "detector",
                    options=list(compare.DETECTORS),
                    default=compare.DETECTORS[0],
                    tooltip="'mediapipe' measures mouths. 'insightface' (non-commercial licence) tells how far faces drift, but not mouths. "
                    "'none' compares whole pictures only.",
                ),
                io.Boolean.Input("resize", default=False, tooltip="Scale B to A's size where they differ. Off: that is an error which tells both sizes."),
                io.Int.Input("max_frames", default=0, min=0, max=1_000_000, tooltip="Compare the first so many frames only. 0: all that both have."),
                io.Audio.Input("audio", optional=True, tooltip="The speech that both mouths should follow. Without it, each clip's own sound."),
                sockets.Engine.Input("engine", optional=True, tooltip="A built engine: how near it is to PyTorch is told, too."),
            ],
            outputs=[
                io.Image.Output(display_name="plot", tooltip="Mouths and speech, likeness and drift over time. One picture."),
                io.Image.Output(display_name="strip", tooltip="Both clips and their mouths side by side at eight moments. One picture."),
                io.String.Output(display_name="json", tooltip="Every number, for machines. docs/validate.md tells what each means."),
            ],
        )

    @classmethod
    def validate_inputs(cls, detector=None):
        return sockets.known_choices(cls, detector=detector)

    @classmethod
    def execute(cls, a, b, image_rate, detector, resize, max_frames, audio=None, engine=None) -> io.NodeOutput:
        clips = [clip_from(media, KEEP, image_rate) for media in (a, b)]
        speeches = [audio or _sound(media, clip) for media, clip in zip((a, b), clips, strict=True)]
        found = compare.compare_clips(
            *clips,
            detector=compare.detector_for(detector),
            speech_a=speeches[0],
            speech_b=speeches[1],
            resize=resize,
            max_frames=max_frames or None,
            engine=engine,
            device=get_torch_device(),
            progress=NodeProgress(),
        )
        pictures = [torch.from_numpy(picture)[None] / 255 for picture in (found.plot(), found.strip())]
        return io.NodeOutput(*pictures, json.dumps(found.json(), indent=1, allow_nan=False), ui={"text": [found.summary()]})


def _sound(media, clip):
    """A VIDEO's own sound as AUDIO, None when it has none."""
    return media.get_components().audio if isinstance(media, InputImpl.VideoFromComponents) else compare.sound_of(clip)


NODES = [LatentSyncCompare]
