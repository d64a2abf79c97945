"""LatentSyncFaceAlign: clip -> face track and aligned crops."""
from comfy_api.latest import io

from ..lipsync import face, folders
from . import sockets
from .media import WORK_RATES, clip_from
from .progress import NodeProgress


class LatentSyncFaceAlign(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentSyncFaceAlign",
            display_name="LatentSync Align Face",
            category=sockets.CATEGORY,
            description="Follows one face through the clip and cuts it out, aligned. Frames without a reliable face pass through untouched.",
            inputs=[
                io.MultiType.Input("clip", [io.Video, io.Image], tooltip="The clip: a VIDEO is streamed, an IMAGE batch is used in place."),
                io.Combo.Input("resolution", options=["512", "256"], default="512", tooltip="512 for LatentSync 1.6, 256 for 1.5 and the demo."),
                io.Combo.Input(
                    "work_rate",
                    options=list(WORK_RATES),
                    tooltip="The frame rate of the work and of the result. 'source' keeps the clip's own rate, frame for frame.",
                ),
                io.Combo.Input("face", options=list(face.CHOICES), default=face.CHOICES[0], tooltip="Which face to follow when there are several."),
                io.Combo.Input(
                    "detector",
                    options=list(face.DETECTORS),
                    default=face.DETECTORS[0],
                    tooltip="'auto' takes InsightFace's files if you have them (non-commercial licence), else MediaPipe's (Apache-2.0).",
                ),
                io.Float.Input("min_score", default=0.5, min=0.05, max=1.0, step=0.05, tooltip="Faces the detector is less sure of are passed over."),
                io.Int.Input("min_size", default=40, min=8, max=4096, tooltip="Faces narrower than this many pixels are passed over."),
                io.Boolean.Input("smooth", default=True, tooltip="The reference's smoothing of the alignment over time."),
                io.Float.Input("image_rate", default=25.0, min=1.0, max=240.0, step=0.001, tooltip="Frame rate of an IMAGE batch. A VIDEO has its own."),
            ],
            outputs=[sockets.Faces.Output(display_name="faces")],
        )

    @classmethod
    def execute(cls, clip, resolution, work_rate, face, detector, min_score, min_size, smooth, image_rate) -> io.NodeOutput:
        track = _align(
            clip_from(clip, work_rate, image_rate),
            detector,
            int(resolution),
            choice=face,
            min_score=min_score,
            min_size=min_size,
            smooth=smooth,
            spool_folder=folders.temp_dir(),
            progress=NodeProgress(),
        )
        return io.NodeOutput(track)


def _align(clip, detector, resolution, **options):
    return face.align_clip(clip, face.load_detector(detector), resolution, **options)


NODES = [LatentSyncFaceAlign]
