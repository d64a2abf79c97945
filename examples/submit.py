"""Queues a workflow in API form on a running ComfyUI, shows how far it is, and fetches the video; or many, on several servers.

    python submit.py --video clip.mp4 --audio speech.wav
    python submit.py --server http://192.0.2.7:8188 --video clip.mp4 --audio speech.wav --model latentsync_unet.pt --seed 7 --output out.mp4
    python submit.py --video clip.mp4 --audio speech.wav --profile approx8
    python submit.py --workflow mine.api.json --set LatentSyncFaceAlign.face=left --set LatentSyncRestore.crf=14
    python submit.py --server http://192.0.2.7:8188 --server http://192.0.2.8:8188 --jobs jobs.jsonl

The last needs submit_jobs.py beside this file and says there what a jobs file is; it writes a result line for each job, passes over what was
done before, and takes other options for all jobs.

Needs aiohttp, which every ComfyUI has installed; the files can be copied out of the repository and used alone. Ctrl-C cancels the jobs on
the servers. Ends with status 0 (one job: and the file's path on the last line), 1 with a message when a job fails, 130 when cancelled.
"""
import argparse
import asyncio
import contextlib
import hashlib
import json
import signal
import sys
import time
import uuid
from pathlib import Path

import aiohttp

VIDEO_SUFFIXES = (".mp4", ".mov", ".mkv", ".webm", ".gif")
EXAMPLE = Path(__file__).with_name("api") / "lipsync.json"
DENOISE = "LatentSyncDenoise"
UPLOADS = "latentsync"  # subfolder of ComfyUI's input folder
BAR_CELLS = 24
HISTORY_TRIES = 100  # a tenth of a second each
POLL_SECONDS, ANSWER_SECONDS = 0.5, 30
CANCEL_TRIES = 20


class JobError(Exception):
    """The server cannot be reached, refuses the workflow, or the job failed. The message is for the person at the terminal."""


class ServerLost(JobError):
    """The server went away, or forgot the job: another one, or the same one later, can do it."""


LOST = (ServerLost, aiohttp.ClientError, asyncio.TimeoutError)


def patched(workflow: dict, changes: list[tuple[str, str, object]], known: bool = True) -> dict:
    """A copy of the API-form workflow in which every node of class `a` has its input `b` set to `c`, for each (a, b, c).

    known: only inputs that the workflow has already; else also those that it leaves at their defaults.
    """
    workflow = json.loads(json.dumps(workflow))
    for class_type, name, value in changes:
        nodes = [node for node in workflow.values() if node["class_type"] == class_type]
        if not nodes:
            raise JobError(f"the workflow has no node of class {class_type} whose {name} could be set")
        for node in nodes:
            if known and name not in node["inputs"]:
                raise JobError(f"{class_type} has no input {name!r}; it has {', '.join(node['inputs'])}")
            node["inputs"][name] = value
    return workflow


def workflow_title(node: dict) -> str:
    return node.get("_meta", {}).get("title") or node["class_type"]


class Bar:
    """One line on a terminal, redrawn; elsewhere a line for each node as it starts."""

    def __init__(self, workflow: dict, stream=sys.stderr):
        self.workflow, self.stream = workflow, stream
        self.redraws = stream.isatty()
        self.finished: set[str] = set()
        self.node: str | None = None
        self.started = time.monotonic()

    def cached(self, nodes: list[str]) -> None:
        self.finished.update(nodes)

    def update(self, node: str, value: float, maximum: float) -> None:
        """`node` has done `value` of `maximum`."""
        changed, self.node = node != self.node, node
        place = f"[{min(len(self.finished) + 1, len(self.workflow))}/{len(self.workflow)}]"
        title = workflow_title(self.workflow.get(node, {"class_type": node}))
        if self.redraws:
            part = min(value / maximum, 1) if maximum > 0 else 0
            cells = round(part * BAR_CELLS)
            elapsed = time.monotonic() - self.started
            self.stream.write(f"\r\x1b[K{place} {title:<28.28} {'#' * cells}{'.' * (BAR_CELLS - cells)} {part:4.0%}  {elapsed:.0f} s")
        elif changed:
            self.stream.write(f"{place} {title}\n")
        self.stream.flush()

    def close(self) -> None:
        if self.redraws and self.node is not None:
            self.stream.write("\r\x1b[K")
            self.stream.flush()


class Client:
    """One ComfyUI server, talked to as one client (`client_id` ties the websocket to what we queue)."""

    def __init__(self, session: aiohttp.ClientSession, server: str):
        self.session, self.server = session, server.rstrip("/")
        self.client_id = uuid.uuid4().hex
        self.ours, self.resting, self.failures = 0, 0.0, 0  # our jobs there; until when it is left alone; how often it did not answer
        self._uploads: dict[Path, asyncio.Task] = {}

    async def get(self, route: str) -> dict:
        """JSON of an answer that comes soon. Raises ServerLost for a server's own failure, and what aiohttp raises."""
        async with self.session.get(f"{self.server}{route}", timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS)) as answer:
            if answer.status != 200:
                raise ServerLost(f"{self.server}{route} answers {answer.status}")
            return await answer.json()

    async def expect_profile(self, name: str) -> None:
        """Raises JobError, with the names that there are, unless this server's Denoise node has the profile `name`."""
        known = await self.get(f"/object_info/{DENOISE}")
        if DENOISE not in known:
            raise JobError(f"{self.server} has no node {DENOISE}: is latentsync-rtx installed there? ComfyUI's log says why it is not loaded")
        inputs = known[DENOISE]["input"]
        kind, *details = {**inputs.get("required", {}), **inputs.get("optional", {})}.get("profile", [[]])
        names = kind if isinstance(kind, list) else details[0]["options"]  # as older and newer ComfyUIs tell a list
        if name not in names:
            there = f"choose one of {', '.join(names)}" if names else "its latentsync-rtx is older than profiles: update it"
            raise JobError(f"{self.server} has no profile {name!r}: {there}")

    async def prompts(self) -> list[str]:
        """Everybody's that run or wait."""
        queue = await self.get("/queue")
        return [entry[1] for entry in queue["queue_running"] + queue["queue_pending"]]

    async def upload(self, path: Path) -> str:
        """Have a file in the server's input folder -> the name that LoadVideo and LoadAudio take. Overwrites nothing, and copies no file twice."""
        if not path.is_file():
            raise JobError(f"{path}: no such file")
        if path not in self._uploads:
            self._uploads[path] = asyncio.ensure_future(self._upload(path))
        try:
            return await asyncio.shield(self._uploads[path])
        except BaseException:
            self._uploads.pop(path, None)
            raise

    async def _upload(self, path: Path) -> str:
        with path.open("rb") as file:
            digest = await asyncio.to_thread(_digest, file)
        folder = f"{UPLOADS}/{digest}"  # so that a name says what is in the file
        query = {"filename": path.name, "subfolder": folder, "type": "input"}
        async with self.session.head(f"{self.server}/view", params=query) as answer:
            if answer.status == 200 and answer.headers.get("Content-Length") == str(path.stat().st_size):
                return f"{folder}/{path.name}"
        form = aiohttp.FormData()
        form.add_field("subfolder", folder)
        with path.open("rb") as file:
            form.add_field("image", file, filename=path.name, content_type="application/octet-stream")
            async with self.session.post(f"{self.server}/upload/image", data=form) as answer:
                if answer.status == 413:
                    raise JobError(f"{path.name} is larger than the server accepts: start ComfyUI with --max-upload-size MEGABYTES")
                if answer.status != 200:
                    raise JobError(f"upload of {path.name}: the server answered {answer.status} {await answer.text()}")
                stored = await answer.json()
        return "/".join(part for part in (stored["subfolder"], stored["name"]) if part)

    async def queue(self, workflow: dict) -> str:
        """-> the prompt's id. Raises JobError with the server's reasons, node by node, when it refuses the workflow. A cancel of this task
        leaves nothing in the queue."""
        posted = asyncio.ensure_future(self._post(workflow))
        try:
            return await asyncio.shield(posted)
        except asyncio.CancelledError:
            with contextlib.suppress(JobError, *LOST):
                await self.cancel(await posted)
            raise

    async def _post(self, workflow: dict) -> str:
        async with self.session.post(f"{self.server}/prompt", json={"prompt": workflow, "client_id": self.client_id}) as answer:
            if answer.status >= 500:
                raise ServerLost(f"{self.server} answers {answer.status}")
            content = await answer.json(content_type=None)
        if answer.status == 200 and not content.get("node_errors"):
            return content["prompt_id"]
        if answer.status == 200:  # one output is wrong, another is fine: ComfyUI would work for that one alone
            await self.cancel(content["prompt_id"])
        raise JobError(refusal(content, workflow))

    async def run(self, workflow: dict, show: Bar) -> dict:
        """Queue it and wait for its end -> the history entry's outputs {node: {...}}. A cancel of this task cancels the job."""
        async with self.session.ws_connect(f"{self.server}/ws", params={"clientId": self.client_id}, max_msg_size=0) as socket:
            prompt_id = await self.queue(workflow)
            try:
                await follow(socket, prompt_id, show)
            except asyncio.CancelledError:
                await self.cancel(prompt_id)
                raise
            finally:
                show.close()
        return await self.outputs(prompt_id)

    async def ended(self, prompt_id: str, patience: float) -> dict:
        """Wait for the end of a prompt, over short losses of the connection -> its outputs. Raises ServerLost after `patience` seconds of
        silence, at once when nobody listens there any more, and when a server that was restarted does not know the prompt."""
        heard, missing = time.monotonic(), 0
        while True:
            try:
                history = await self.get(f"/history/{prompt_id}")
                if prompt_id in history:
                    return succeeded(history[prompt_id])
                missing = 0 if prompt_id in await self.prompts() else missing + 1
                heard = time.monotonic()
            except LOST as error:
                if isinstance(error, aiohttp.ClientConnectorError) or time.monotonic() - heard > patience:
                    raise ServerLost(f"{self.server} went away: {error}") from error
            if missing >= 3:  # between the queue and the history it is in neither
                raise ServerLost(f"{self.server} does not know the job any more: it was restarted")
            await asyncio.sleep(POLL_SECONDS)

    async def outputs(self, prompt_id: str) -> dict:
        """Of a finished prompt: {node: {kind: [file, ...]}}. The server announces success a moment before its history has the entry."""
        for _ in range(HISTORY_TRIES):
            async with self.session.get(f"{self.server}/history/{prompt_id}") as answer:
                history = await answer.json()
            if prompt_id in history:
                return history[prompt_id]["outputs"]
            await asyncio.sleep(0.1)
        raise JobError("the job finished, but the server's history does not list it")

    async def cancel(self, prompt_id: str) -> None:
        """Again until it is gone: ComfyUI forgets an interrupt that comes while it begins a prompt."""
        for _ in range(CANCEL_TRIES):
            await self.session.post(f"{self.server}/queue", json={"delete": [prompt_id]})  # if it still waits
            await self.session.post(f"{self.server}/interrupt", json={"prompt_id": prompt_id})  # if it runs
            if prompt_id not in await self.prompts():
                return
            await asyncio.sleep(POLL_SECONDS)

    async def fetch(self, outputs: dict, target: Path) -> Path:
        """Save the last video among `outputs` as `target`, or under its own name if `target` is a folder."""
        listed = [files for shown in outputs.values() for files in shown.values() if isinstance(files, list)]
        named = [file for files in listed for file in files if isinstance(file, dict) and "filename" in file]
        videos = [file for file in named if file["filename"].lower().endswith(VIDEO_SUFFIXES)]
        if not videos:
            raise JobError("the job finished but saved no video: does the workflow end in a Save Video node?")
        video = max(videos, key=lambda file: file.get("type") == "output")
        if target.is_dir():
            target = target / video["filename"]
        target.parent.mkdir(parents=True, exist_ok=True)
        query = {key: video[key] for key in ("filename", "subfolder", "type")}
        async with self.session.get(f"{self.server}/view", params=query) as answer:
            if answer.status != 200:
                raise JobError(f"/view of {video['filename']}: the server answered {answer.status}")
            partial = target.with_name(target.name + ".partial")
            try:
                with partial.open("wb") as file:
                    async for chunk in answer.content.iter_chunked(1 << 20):
                        file.write(chunk)
                partial.replace(target)
            finally:
                partial.unlink(missing_ok=True)
        return target


def _digest(file) -> str:
    digest = hashlib.sha256()
    while data := file.read(1 << 20):
        digest.update(data)
    return digest.hexdigest()[:16]


def succeeded(entry: dict) -> dict:
    """The outputs in an entry of the history. Raises JobError if the prompt failed, with the reason."""
    told = dict(entry.get("status", {}).get("messages", []))
    if data := told.get("execution_error"):
        raise JobError(f"{data['node_type']}: {data['exception_message'].strip()}")
    if "execution_interrupted" in told:
        raise JobError(f"the job was cancelled on the server, in {told['execution_interrupted'].get('node_type')}")
    return entry["outputs"]


async def follow(socket: aiohttp.ClientWebSocketResponse, prompt_id: str, show: Bar) -> None:
    """Read the server's messages until this prompt has ended. Raises JobError if that was not in success."""
    async for message in socket:
        if message.type is not aiohttp.WSMsgType.TEXT:  # previews are binary
            continue
        event = json.loads(message.data)
        kind, data = event["type"], event.get("data") or {}
        if data.get("prompt_id") != prompt_id:
            continue
        if kind == "execution_cached":
            show.cached(data["nodes"])
        elif kind == "executing" and data.get("node"):
            show.update(data["node"], 0, 0)
        elif kind == "progress_state":
            for node, state in data["nodes"].items():
                if state["state"] == "running":
                    show.update(node, state["value"], state["max"])
                elif state["state"] == "finished":
                    show.finished.add(node)
        elif kind == "execution_success":
            return
        elif kind == "execution_error":
            raise JobError(f"{data['node_type']}: {data['exception_message'].strip()}")
        elif kind == "execution_interrupted":
            raise JobError(f"the job was cancelled on the server, in {data.get('node_type')}")
    raise JobError("the server closed the connection: did ComfyUI stop? Its log says why")


def refusal(content: dict, workflow: dict) -> str:
    """What a 400 of /prompt says, in lines for people."""
    error = content.get("error") or {}
    if isinstance(error, str):
        return error
    if not content.get("node_errors"):  # a node class that the server does not have, say
        return f"the server refuses the workflow: {error.get('message', content)} {error.get('details', '')}".strip()
    lines = ["the server refuses the workflow:"]
    for node, found in content["node_errors"].items():
        title = workflow_title(workflow.get(node, found))
        lines += dict.fromkeys(f"  {title}: {_reason(told)}" for told in found["errors"])
    return "\n".join(lines)


def _reason(told: dict) -> str:
    """A node's own check is told again for each input that it looks at."""
    own = told["details"].partition(" - ")[2] if told.get("type") == "custom_validation_failed" else ""
    return own or f"{told['message']}: {told['details']}"


def change(text: str) -> tuple[str, str, object]:
    """"Class.input=value" -> (class, input, value): the value is JSON where it reads as such, else text."""
    target, equals, value = text.partition("=")
    class_type, dot, name = target.partition(".")
    if not (equals and dot and class_type and name):
        raise argparse.ArgumentTypeError(f"{text!r}: expected NodeClass.input=value")
    try:
        return class_type, name, json.loads(value)
    except json.JSONDecodeError:
        return class_type, name, value


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog="Ctrl-C cancels the job on the server.")
    parser.add_argument("--server", action="append", help="address of ComfyUI, repeatable: the least busy one is taken (default http://127.0.0.1:8188)")
    parser.add_argument("--workflow", type=Path, default=EXAMPLE, help=f"a workflow in API form (default: {EXAMPLE.name} beside this file)")
    parser.add_argument("--video", type=Path, help="the clip; uploaded")
    parser.add_argument("--audio", type=Path, help="the new speech; uploaded (default: the sound of --video)")
    parser.add_argument("--model", help="checkpoint in the server's models/latentsync")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--guidance", type=float)
    parser.add_argument("--profile", metavar="NAME", help="of LatentSync Denoise: exact20, or a faster, approximate one, such as approx8")
    parser.add_argument(
        "--set", dest="changes", type=change, action="append", default=[], metavar="CLASS.INPUT=VALUE", help="any other input; repeatable"
    )
    parser.add_argument("--output", type=Path, default=Path("."), help="file or folder for the result (default: here)")
    many = parser.add_argument_group("many jobs")
    many.add_argument("--jobs", type=Path, help='file of lines such as {"video": "a.mp4", "audio": "a.wav", "out": "b.mp4", "seed": 7}')
    many.add_argument("--results", type=Path, help="file to append a line to for each job (default: JOBS.results.jsonl)")
    many.add_argument("--retries", type=int, default=5, help="other servers a job may go to when one goes away (default %(default)s)")
    many.add_argument("--patience", type=float, default=15, help="seconds that a server may be silent in the middle of a job (default %(default)s)")
    many.add_argument("--wait", type=float, default=600, help="seconds to wait when no server answers (default %(default)s)")
    return parser.parse_args()


async def submit(options: argparse.Namespace) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows, where Ctrl-C is all there is
            asyncio.get_running_loop().add_signal_handler(number, asyncio.current_task().cancel)
    try:
        workflow = json.loads(options.workflow.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise JobError(f"{options.workflow} is not a workflow: {error}") from error
    if not all(isinstance(node, dict) and "class_type" in node for node in workflow.values()):
        raise JobError(f"{options.workflow} is not in API form: in ComfyUI choose Workflow > Export (API)")
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        clients = [Client(session, server) for server in options.server or ["http://127.0.0.1:8188"]]
        if options.jobs is not None or len(clients) > 1:
            sys.modules.setdefault("submit", sys.modules[__name__])  # there, these classes are the same ones
            from submit_jobs import Farm, submit_all

            if options.jobs is not None:
                return await submit_all(options, workflow, clients)
            clients = [await Farm(clients, wait=0).free()]
        client = clients[0]
        try:
            print(await submit_one(options, workflow, client))
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            raise JobError(f"cannot talk to ComfyUI at {client.server}: {str(error) or 'it does not answer in time'}") from error
    return 0


async def submit_one(options: argparse.Namespace, workflow: dict, client: Client) -> Path:
    changes = []
    if options.profile is not None:
        workflow = patched(workflow, [(DENOISE, "profile", options.profile)], known=False)
        await client.expect_profile(options.profile)
    if options.video:
        changes.append(("LoadVideo", "file", await client.upload(options.video)))
    if options.audio or options.video:
        changes.append(("LoadAudio", "audio", await client.upload(options.audio or options.video)))
    if options.model:
        changes.append(("LatentSyncModelLoad", "checkpoint", options.model))
    denoise = {name: getattr(options, name) for name in ("seed", "steps", "guidance")}
    changes += [(DENOISE, name, value) for name, value in denoise.items() if value is not None]
    workflow = patched(workflow, changes + options.changes)
    outputs = await client.run(workflow, Bar(workflow))
    return await client.fetch(outputs, options.output)


def main() -> int:
    try:
        return asyncio.run(submit(arguments()))
    except JobError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("cancelled", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
