"""LatentSyncFaceAlign: clip -> face track and aligned crops."""
import torch
from comfy.model_management import get_torch_device
from comfy_api.latest import io, ui

from ..lipsync import face, folders
from ..lipsync.face.outline import outline
from . import sockets
from .media import WORK_RATES, clip_from
from .progress import NodeProgress

BY_INDEX = "index"


class LatentSyncFaceAlign(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentSyncFaceAlign",
            display_name="LatentSync Align Face",
            category=sockets.CATEGORY,
            description="Follows one face through the clip and cuts it out, aligned. Frames without a reliable face stay untouched.",
            **sockets.search_aliases("face detection", "face crop", "face tracking", "insightface", "mediapipe"),
            inputs=[
                io.MultiType.Input("clip", [io.Video, io.Image], tooltip="The clip: a VIDEO is streamed, an IMAGE batch is used in place."),
                io.Combo.Input("resolution", options=["512", "256"], tooltip="512 for LatentSync 1.6, 256 for 1.5 and the demo."),
                io.Combo.Input(
                    "work_rate",
                    options=list(WORK_RATES),
                    tooltip="The frame rate of the work and of the result. 'source' keeps the clip's own rate, frame for frame.",
                ),
                io.Float.Input(
                    "image_rate", default=25.0, min=1.0, max=240.0, step=0.001, tooltip="Frame rate of an IMAGE batch. A VIDEO has its own."
                ),
                io.Combo.Input(
                    "face",
                    options=[*face.CHOICES, BY_INDEX],
                    default=face.CHOICES[0],
                    tooltip="Which face to follow when there are several; chosen where a face is first seen, then followed.",
                ),
                io.Int.Input("face_index", default=0, min=0, max=99, tooltip="For 'index': the face's number from the left, 0 first."),
                io.Combo.Input(
                    "detector",
                    options=list(face.DETECTORS),
                    default=face.DETECTORS[0],
                    tooltip="'auto' takes InsightFace's files if you have them, else MediaPipe's (Apache-2.0). "
                    "InsightFace's models are licensed for non-commercial research only: choose 'mediapipe' for anything else.",
                ),
                sockets.advanced(
                    io.Combo.Input(
                        "smooth",
                        options=list(face.SMOOTHINGS),
                        default=face.SMOOTHINGS[0],
                        tooltip="'reference' hardly smooths the alignment over time, as LatentSync does. 'steady' takes a trembling out of it "
                        "without lagging behind. 'off' aligns each frame by itself.",
                    )
                ),
                sockets.advanced(
                    io.Float.Input(
                        "min_score",
                        default=face.MIN_SCORE,
                        min=0.05,
                        max=1.0,
                        step=0.05,
                        tooltip="Faces the detector is less sure of are passed over. Real faces reach 0.8, drawn ones seldom 0.6.",
                    )
                ),
                sockets.advanced(
                    io.Int.Input("min_size", default=face.MIN_SIZE, min=8, max=4096, tooltip="Pixels; narrower faces are passed over.")
                ),
                io.Mask.Input("face_mask", optional=True, tooltip="Marks the face to follow, instead of 'face'. One for all will do."),
                sockets.advanced(
                    io.Float.Input(
                        "face_time",
                        default=0.0,
                        min=0.0,
                        max=86400.0,
                        step=0.01,
                        optional=True,
                        tooltip="The second of the clip at which 'face' is chosen, 0 where one is first seen. A click on a face in the node sets it.",
                    )
                ),
            ],
            is_output_node=True,  # so that it can be run alone, to see the track first
            outputs=[
                sockets.Faces.Output(display_name="faces", tooltip="The followed face, frame by frame, and its clip: for Denoise, VAE Decode and Restore."),
                io.Image.Output(display_name="preview", tooltip="Where the face was found and lost, cuts, and a contact sheet. One picture."),
            ],
        )

    @classmethod
    def validate_inputs(cls, resolution=None, work_rate=None, face=None, detector=None, smooth=None):
        return sockets.known_choices(cls, resolution=resolution, work_rate=work_rate, face=face, detector=detector, smooth=smooth)

    @classmethod
    def execute(
        cls, clip, resolution, work_rate, image_rate, face, face_index, detector, smooth, min_score, min_size, face_mask=None, face_time=0.0
    ) -> io.NodeOutput:
        track = _align(
            clip_from(clip, work_rate, image_rate),
            detector,
            int(resolution),
            choice=face_mask if face_mask is not None else face_index if face == BY_INDEX else face,
            choice_time=face_time,
            min_score=min_score,
            min_size=min_size,
            smooth=smooth,
            device=get_torch_device(),
            spool_folder=folders.temp_dir(),
            progress=NodeProgress(),
        )
        preview = torch.from_numpy(track.preview())[None] / 255
        return io.NodeOutput(track, preview, ui={**ui.PreviewImage(preview).as_dict(), "latentsync_track": [outline(track)]})


def _align(clip, detector, resolution, **options):
    return face.align_clip(clip, face.load_detector(detector), resolution, **options)


NODES = [LatentSyncFaceAlign]
