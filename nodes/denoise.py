"""LatentSyncDenoise: face crops and audio tokens -> latents with the new mouth."""
from comfy_api.latest import io

from ..lipsync import budget, denoise, folders, timeline
from ..lipsync.audio import THRESHOLD_DB
from ..lipsync.journal import Journal
from ..lipsync.profiles import EXACT, PROFILES, choose
from ..lipsync.silence import SILENCES, with_silence
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
            **sockets.search_aliases("lip sync", "lipsync", "talking head", "sampler"),
            inputs=[
                sockets.Runner.Input("runner", tooltip="From LatentSync Load Engine: what runs the network."),
                sockets.Faces.Input("faces", tooltip="From LatentSync Align Face: the faces to redraw."),
                sockets.Audio.Input("audio", tooltip="From LatentSync Audio Features: the speech to follow."),
                io.Vae.Input("vae", tooltip="The SD 1.5 VAE that the model was trained with (vae-ft-mse-840000)."),
                io.Int.Input(
                    "seed", default=0, min=0, max=0xFFFFFFFFFFFFFFFF, control_after_generate=True, tooltip="The same seed gives the same result."
                ),
                io.Int.Input("steps", default=20, min=1, max=100, tooltip="Of exact20. 20 is the reference's; any other number is approximate."),
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
                sockets.advanced(
                    io.Boolean.Input(
                        "release_runner",
                        default=False,
                        tooltip="Give the network's memory back before decoding: for small cards. It loads again when needed.",
                    )
                ),
                io.Combo.Input(
                    "silence",
                    options=list(SILENCES),
                    default=SILENCES[0],
                    optional=True,
                    tooltip="'off': the mouth follows breath and noise too. 'rest': it hears perfect silence there. 'keep': it is the clip's own.",
                ),
                sockets.advanced(
                    io.Float.Input(
                        "silence_db", default=THRESHOLD_DB, min=-120.0, max=0.0, step=1.0, optional=True, tooltip="Sound quieter than this is silence."
                    )
                ),
                sockets.advanced(
                    io.Boolean.Input(
                        "resume",
                        default=True,
                        optional=True,
                        tooltip="Keep finished blocks on disk until the clip is restored: a job that was cancelled or died goes on from there.",
                    )
                ),
                io.Combo.Input(
                    "profile",
                    options=list(PROFILES),
                    default=EXACT,
                    optional=True,
                    tooltip="exact20: the reference's arithmetic. All others are APPROXIMATE, for speed: docs/profiles.md has what each costs and changes.",
                ),
            ],
            outputs=[io.Latent.Output(display_name="latent", tooltip="The redrawn faces as latents: for LatentSync VAE Decode.")],
        )

    @classmethod
    def validate_inputs(cls, length=None, extend=None, silence=None, profile=None):
        return sockets.known_choices(cls, length=length, extend=extend, silence=silence, profile=profile)

    @classmethod
    def execute(
        cls, runner, faces, audio, vae, seed, steps, guidance, length, extend, release_runner,
        silence="off", silence_db=THRESHOLD_DB, resume=True, profile=EXACT,
    ) -> io.NodeOutput:  # fmt: skip
        denoise.expect_profile(runner, choose(profile, steps).plan(guidance))
        plan = timeline.build(len(faces), faces.clip.rate, audio.seconds, length=length, extend=extend)
        plan = with_silence(plan, audio, silence, silence_db)
        temp, jobs = folders.temp_dir(), folders.jobs_dir() if resume else None
        budget.require(temp=temp, side=faces.resolution, redrawn=len(plan.redrawn(faces.found)), jobs=jobs)
        journal = Journal(jobs) if resume else None
        memory.load(runner)
        try:
            latents = denoise.denoise_clip(
                runner,
                vae,
                faces,
                plan,
                audio,
                steps=steps,
                guidance=guidance,
                seed=seed,
                profile=profile,
                journal=journal,
                spool_folder=temp,
                progress=NodeProgress(lambda done, total: _crop(faces, done / max(1, total))),
            )
        finally:
            if release_runner:
                memory.release(runner)
        return io.NodeOutput({"samples": latents, "latentsync_timeline": plan, "latentsync_journal": journal})


def _crop(faces, share):
    """The crop that is about being redrawn when `share` of the work is done."""
    return faces.crops.read(min(int(share * len(faces.crops)), len(faces.crops) - 1)) if len(faces.crops) else None


NODES = [LatentSyncDenoise]
