"""The stages of a lip-sync job: clip -> face track -> latents -> crops -> clip. Nothing here knows ComfyUI."""
