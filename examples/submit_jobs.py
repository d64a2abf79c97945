"""Many jobs for submit.py, on one or several ComfyUI servers.

    python submit.py --server http://192.0.2.7:8188 --server http://192.0.2.8:8188 --jobs jobs.jsonl

A jobs file has one JSON object a line: video, out, audio (else the sound of the video), and any of FIELDS below; anything else as
"set": {"Class.input": value}. Paths are relative to the file. Every line is looked at before the first job is sent. The least busy server
gets the next job; jobs of one that goes away go to another; a file is uploaded to a server once. Each job that ends gets a line in
JOBS.results.jsonl, and what that says is done, with the same line and the same files, is passed over the next time.
"""
import argparse
import asyncio
import contextlib
import hashlib
import json
import sys
import time
from pathlib import Path

from submit import ANSWER_SECONDS, LOST, POLL_SECONDS, Client, JobError, ServerLost, change, patched

AT_ONCE = 2  # jobs of ours at a server: one runs, one waits
FIELDS = {  # of a jobs file -> (node, input); the names are those of the pack's own `batch`
    "model": ("LatentSyncModelLoad", "checkpoint"),
    "vae": ("LatentSyncModelLoad", "vae"),
    **{name: ("LatentSyncDenoise", name) for name in ("seed", "steps", "guidance", "length", "extend", "silence", "silence_db", "resume", "profile")},
    **{name: ("LatentSyncFaceAlign", name) for name in ("resolution", "face", "detector", "smooth", "min_score", "min_size", "face_time")},
    "windows": ("LatentSyncAudioFeatures", "windows"),
    **{name: ("LatentSyncRestore", name) for name in ("crf", "encoder")},
    "lossless": ("LatentSyncRestore", "lossless_sound"),
}


class Farm:
    """Servers to choose from. patience: seconds that one may be silent in the middle of a job; wait: that all may be gone."""

    def __init__(self, clients: list[Client], patience: float = 15, wait: float = 600):
        self.clients, self.patience, self.wait = clients, patience, wait
        self._choosing, self._answered = asyncio.Lock(), time.monotonic()

    async def free(self) -> Client:
        """The server with the shortest queue among those that have fewer than AT_ONCE jobs of ours; waits until there is one."""
        async with self._choosing:
            while True:
                able = [client for client in self.clients if client.ours < AT_ONCE and client.resting < time.monotonic()]
                asked = zip(able, await asyncio.gather(*map(self._length, able)), strict=True)
                lengths = {client: length for client, length in asked if length is not None}
                if lengths or any(client.ours for client in self.clients):
                    self._answered = time.monotonic()
                if lengths:
                    chosen = min(lengths, key=lambda client: (lengths[client], client.ours))
                    chosen.ours += 1
                    return chosen
                if time.monotonic() - self._answered > self.wait:
                    raise JobError(f"cannot talk to ComfyUI: for {self.wait:g} s, no server answered")
                await asyncio.sleep(POLL_SECONDS)

    async def _length(self, client: Client) -> int | None:
        try:
            length = len(await client.prompts())
        except LOST as error:
            self.lost(client, error)
            return None
        client.failures = 0
        return length

    def lost(self, client: Client, error: Exception) -> None:
        """Leave it alone for 1, 2, 4, ... 60 seconds."""
        rest = min(60, 2**client.failures)
        client.failures, client.resting = client.failures + 1, time.monotonic() + rest
        print(f"{client.server} does not answer ({error}): asked again in {rest} s", file=sys.stderr)


class Jobs:
    """The lines of a jobs file, and what became of them in the results file."""

    def __init__(self, options: argparse.Namespace, workflow: dict):
        self.options, self.workflow, self.folder = options, workflow, options.jobs.absolute().parent
        self.results = options.results or options.jobs.with_suffix(".results.jsonl")
        self.given, outs = {}, {}
        try:
            text = options.jobs.read_text(encoding="utf-8-sig")
            before = self.results.read_text(encoding="utf-8").splitlines() if self.results.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise JobError(f"cannot read {options.jobs}: {error}") from error
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                self.given[number] = given = self._read(line, number)
                if (first := outs.setdefault(given["out"], number)) != number:
                    raise JobError(f"{options.jobs}, line {number}: {given['out']} is what line {first} writes, too")
        self.done = {}
        for line in before:
            with contextlib.suppress(ValueError, KeyError, TypeError):  # killed while it wrote
                told = json.loads(line)
                self.done.update({told["key"]: told} if told["status"] == "done" else {})

    def _read(self, line: str, number: int) -> dict:
        try:
            given = json.loads(line)
            unknown = set(given) - set(FIELDS) - {"video", "audio", "out", "set"}
            if unknown or not all(isinstance(given.get(name), str) for name in ("video", "out")):
                raise ValueError(f"unknown: {', '.join(sorted(unknown))}" if unknown else "video and out are needed, as text")
            given = {"audio": given["video"], **given}
            self.changed(given, "", "")
        except (ValueError, TypeError, AttributeError, argparse.ArgumentTypeError, JobError) as error:
            raise JobError(f"{self.options.jobs}, line {number} is no job: {error}") from error
        return {**given, **{name: str(self.folder / Path(given[name]).expanduser()) for name in ("video", "audio", "out")}}

    def changed(self, given: dict, video: str, audio: str) -> dict:
        """The workflow with what the options say for all jobs, and the job itself."""
        values = {**{name: getattr(self.options, name) for name in ("model", "seed", "steps", "guidance", "profile")}, **given}
        named = [(*FIELDS[name], str(value) if name == "resolution" else value) for name, value in values.items() if name in FIELDS and value is not None]
        files = [("LoadVideo", "file", video), ("LoadAudio", "audio", audio)]
        other = [(*change(f"{target}=0")[:2], value) for target, value in given.get("set", {}).items()]
        return patched(patched(self.workflow, named, known=False), [*self.options.changes, *files, *other])

    def key(self, given: dict) -> str:
        """Changes with the line, the options, the workflow and the files."""
        files = [(path.stat().st_size, path.stat().st_mtime_ns) for path in map(Path, (given["video"], given["audio"])) if path.exists()]
        return hashlib.sha256(json.dumps([self.changed(given, given["video"], given["audio"]), files]).encode()).hexdigest()[:32]

    def is_done(self, given: dict) -> bool:
        told, out = self.done.get(self.key(given)), Path(given["out"])
        return told is not None and out.is_file() and out.stat().st_size == told.get("out_bytes")

    async def do(self, number: int, farm: Farm) -> bool:
        """One job, on whichever server, and its line in the results -> whether it is done."""
        given, started, attempts, client = self.given[number], time.monotonic(), 0, None
        told = {"line": number, "key": self.key(given), **{name: given[name] for name in ("video", "audio", "out")}}
        try:
            while told.get("status") is None:
                attempts, client = attempts + 1, await farm.free()
                try:
                    await self._attempt(given, client, farm)
                    told |= {"status": "done", "out_bytes": Path(given["out"]).stat().st_size}
                except LOST as error:
                    farm.lost(client, error)
                    if attempts > self.options.retries:
                        raise ServerLost(f"{attempts} times a server went away; the last one: {error}") from error
                finally:
                    client.ours -= 1
        except (JobError, OSError) as error:
            told |= {"status": "failed", "error": {"type": type(error).__name__, "message": str(error)}}
        told |= {"server": client and client.server, "attempts": attempts, "seconds": round(time.monotonic() - started, 3)}
        with self.results.open("ab") as file:
            file.write(b"\n" * (file.tell() > 0 and not self.results.read_bytes().endswith(b"\n")) + json.dumps(told).encode() + b"\n")
        print(f"line {number} {told['status']}: {told.get('error', {}).get('message') or told['out']}", flush=True)
        return told["status"] == "done"

    async def _attempt(self, given: dict, client: Client, farm: Farm) -> None:
        if (profile := given.get("profile", self.options.profile)) is not None:
            await client.expect_profile(profile)
        video, audio = [await client.upload(Path(given[name])) for name in ("video", "audio")]
        prompt_id = await client.queue(self.changed(given, video, audio))
        try:
            outputs = await client.ended(prompt_id, farm.patience)
        except (asyncio.CancelledError, ServerLost):
            with contextlib.suppress(*LOST):
                await asyncio.wait_for(client.cancel(prompt_id), ANSWER_SECONDS)
            raise
        await client.fetch(outputs, Path(given["out"]))


async def submit_all(options: argparse.Namespace, workflow: dict, clients: list[Client]) -> int:
    jobs, farm = Jobs(options, workflow), Farm(clients, options.patience, options.wait)
    missing = [number for number, given in jobs.given.items() if not jobs.is_done(given)]
    tasks = [asyncio.ensure_future(jobs.do(number, farm)) for number in missing]
    try:
        if tasks:
            await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()  # once: a second cancel would stop them in the middle of cancelling what is on the servers
        await asyncio.gather(*tasks, return_exceptions=True)
    done = [task.result() for task in tasks]
    print(f"{len(jobs.given) - done.count(False)} of {len(jobs.given)} jobs are done, {done.count(False)} failed: {jobs.results}")
    return int(False in done)
