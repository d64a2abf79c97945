"""A server on the loopback address that behaves like Hugging Face, on good days and bad ones."""
import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from latentsync_rtx.lipsync.download import CHECKPOINTS, DEFAULT_CHECKPOINT, VAE, WHISPER

from .model_files import save_unet, save_whisper, unet_state


@contextmanager
def serving() -> "Iterator[Hub]":
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Hub(ThreadingHTTPServer):
    """Files by repository path. `breaks`: how many transfers end half-way. `requests`: (path, Range header) of every one for bytes."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Answer)
        self.files, self.requests = {}, []
        self.breaks, self.ranges, self.wrong_sum = 0, True, False

    def handle_error(self, request, client_address):
        """A client that hangs up is part of the tests."""

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.server_port}"

    def serve_models(self, folder):
        """All that `download` fetches for LatentSync 1.6: small files, kept in `folder` / "served"."""
        unet, whisper = save_unet(folder / "served" / "unet.pt", unet_state()), save_whisper(folder / "served" / "tiny.pt")
        for remote, data in ((CHECKPOINTS[DEFAULT_CHECKPOINT], unet.read_bytes()), (WHISPER, whisper.read_bytes()), (VAE, b"a vae")):
            self.files[f"/{remote.repo}/resolve/main/{remote.file}"] = data


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        hub, path = self.server, self.path
        name = path.removeprefix("/bytes")
        if name not in hub.files:
            self._end(404)
        elif path == name:  # as Hugging Face: what is known about the file, and where its bytes are
            digest = "0" * 64 if hub.wrong_sum else hashlib.sha256(hub.files[name]).hexdigest()
            headers = {"Location": f"{hub.endpoint}/bytes{name}", "X-Linked-ETag": f'"{digest}"', "X-Repo-Commit": "c0ffee"}
            self._end(302, headers)
        else:
            self._bytes(hub, hub.files[name])

    def _bytes(self, hub, contents):
        wanted = self.headers.get("Range")
        hub.requests.append((self.path, wanted))
        start = int(re.match(r"bytes=(\d+)-$", wanted)[1]) if wanted and hub.ranges else 0
        if start and start >= len(contents):
            return self._end(416, {"Content-Range": f"bytes */{len(contents)}"})
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(contents) - 1}/{len(contents)}")
        self.send_header("Content-Length", str(len(contents) - start))
        self.end_headers()
        if hub.breaks:
            hub.breaks -= 1
            self.wfile.write(contents[start : start + (len(contents) - start) // 2])
            self.close_connection = True
            self.connection.shutdown(2)
        else:
            self.wfile.write(contents[start:])

    def _end(self, status, headers=None):
        self.send_response(status)
        for name, value in {"Content-Length": "0", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_):
        pass
