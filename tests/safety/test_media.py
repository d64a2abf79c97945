"""A clip comes from strangers: it is read, and nothing that it points to is."""
import socket
import subprocess
import threading

import pytest
from latentsync_rtx.lipsync.clip import open_clip
from latentsync_rtx.lipsync.clip.sound import read_audio
from latentsync_rtx.lipsync.errors import MediaError
from latentsync_rtx.tests.clip.conftest import make_clip


@pytest.fixture
def host():
    """A host of our own: its port, and who called."""
    calls = []
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(5)
        server.settimeout(10)

        def answer():
            try:
                while True:
                    connection, _ = server.accept()
                    calls.append(connection.recv(100))
                    connection.close()
            except OSError:
                pass

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield server.getsockname()[1], calls


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    path = tmp_path_factory.mktemp("private") / "secret.mp4"
    return make_clip(path, 10)


PLAYLIST = "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{}\n#EXT-X-ENDLIST\n"
DASH = '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><Period><BaseURL>{}</BaseURL></Period></MPD>'
SDP = "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video {} RTP/AVP 96\na=rtpmap:96 H264/90000\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.m3u8", PLAYLIST),
        ("list.mp4", PLAYLIST),
        ("list.ffconcat", "ffconcat version 1.0\nfile {}\n"),
        ("clip.mp4", "ffconcat version 1.0\nfile secret.mp4\n"),  # beside it: a name that FFmpeg calls safe
        ("list.mpd", DASH),
    ],
)
def test_a_playlist_opens_no_other_file(tmp_path, secret, name, text):
    (secret.parent / name).write_text(text.format(secret), encoding="utf-8")
    for read in (open_clip, read_audio):
        with pytest.raises(MediaError, match=name):
            read(secret.parent / name)


@pytest.mark.parametrize(("name", "text"), [("list.m3u8", PLAYLIST), ("list.mpd", DASH), ("list.ffconcat", "ffconcat version 1.0\nfile {}\n")])
def test_a_playlist_calls_nobody(tmp_path, host, name, text):
    port, calls = host
    (tmp_path / name).write_text(text.format(f"http://127.0.0.1:{port}/a.mp4"), encoding="utf-8")
    with pytest.raises(MediaError, match=name):
        open_clip(tmp_path / name)
    (tmp_path / "call.sdp").write_text(SDP.format(port), encoding="utf-8")
    with pytest.raises(MediaError):
        open_clip(tmp_path / "call.sdp")
    assert calls == []


ADDRESSES = ["http://127.0.0.1:{}/a.mp4", "tcp://127.0.0.1:{}", "concat:{}", "file:///etc/passwd", "subfile,,start,0,end,0,,:/etc/passwd"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_is_no_clip(host, address):
    port, calls = host
    with pytest.raises(MediaError, match="cannot open"):
        open_clip(address.format(port))
    assert calls == []


@pytest.mark.parametrize("name", ["$(touch made).mp4", "; touch made ;.mp4", "`touch made`.mp4", "-f lavfi -i nothing.mp4", "a\nb.mp4", "%03d.mp4"])
def test_a_name_is_a_name_and_no_command(tmp_path, monkeypatch, secret, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", None)  # nothing that reads a clip starts a program
    (tmp_path / name).write_bytes(secret.read_bytes())
    assert open_clip(name).frame_count == open_clip(secret).frame_count
    assert [path.name for path in tmp_path.iterdir()] == [name]
