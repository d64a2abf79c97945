"""LatentSyncDenoise: face crops and audio tokens -> latents with the new mouth."""
from comfy_api.latest import io

from ..lipsync import denoise, timeline
from . import memory, sockets
from .progress import NodeProgress


class LatentSyncDenoise(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="LatentSyncDenoise",
            display_name="LatentSync Denoise",
            category=sockets.CATEGORY,
            description="Draws the mouth of every aligned face to match the speech, 16 frames at a time.",
            inputs=[
                sockets.Runner.Input("runner"),
                sockets.Faces.Input("faces"),
                sockets.Audio.Input("audio"),
                io.Vae.Input("vae", tooltip="The SD 1.5 VAE that the model was trained with (vae-ft-mse-840000)."),
                io.Int.Input("seed", default=0, min=0, max=0xFFFFFFFFFFFFFFFF, control_after_generate=True),
                io.Int.Input("steps", default=20, min=1, max=100, tooltip="20 is the reference's. Time is proportional."),
                io.Float.Input(
                    "guidance", default=1.5, min=1.0, max=5.0, step=0.1, tooltip="How strongly the speech drives the mouth. 1 halves the work."
                ),
                io.Combo.Input(
                    "length",
                    options=list(timeline.LENGTHS),
                    default="audio",
                    tooltip="How long the result is: the speech, the video (the mouth is left alone after the speech ends), or the shorter.",
                ),
                io.Combo.Input(
                    "extend",
                    options=list(timeline.EXTENSIONS),
                    default="ping-pong",
                    tooltip="What a clip shorter than the speech does: play back and forth, loop, or hold its last frame.",
                ),
                io.Boolean.Input(
                    "release_runner", default=False, tooltip="Give the network's memory back before decoding: for small cards. It loads again when needed."
                ),
            ],
            outputs=[io.Latent.Output(display_name="latent")],
        )

    @classmethod
    def execute(cls, runner, faces, audio, vae, seed, steps, guidance, length, extend, release_runner) -> io.NodeOutput:
        plan = timeline.build(len(faces), faces.clip.rate, audio.seconds, length=length, extend=extend)
        memory.load(runner)
        try:
            latents = denoise.denoise_clip(
                runner, vae, faces, plan, audio, steps=steps, guidance=guidance, seed=seed, progress=NodeProgress()
            )
        finally:
            if release_runner:
                memory.release(runner)
        return io.NodeOutput({"samples": latents, "latentsync_timeline": plan})


NODES = [LatentSyncDenoise]
