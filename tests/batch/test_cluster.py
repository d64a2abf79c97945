"""A cluster that is not there is told in seconds. No Ray is started here: it would be taken instead of the address."""
import socket

import pytest
from latentsync_rtx import commands
from latentsync_rtx.lipsync.batch import cluster
from latentsync_rtx.lipsync.errors import EngineError


@pytest.fixture
def listener():
    """A socket on this machine that holds one connection, and answers no further ones."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        found.listen(0)
        yield found


def address_of(listener) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nobody_listens_is_told_at_once(scheme, listener, media, jobs_file, capsys, monkeypatch):
    import ray

    def forever(**_):
        raise AssertionError("Ray tries for minutes")

    monkeypatch.setattr(ray, "init", forever)
    address = scheme + address_of(listener)
    listener.close()
    assert commands.main(["batch", str(jobs_file(media("a", 3))), "--ray", "--address", address]) == 1
    error = capsys.readouterr().err
    assert f"cannot use the Ray cluster at {address}: no connection to port" in error and "refused" in error
    assert "`ray start --head` starts one" in error and "Traceback" not in error


def test_a_machine_that_does_not_answer_is_waited_for_a_few_seconds(listener, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 0.2)
    address = address_of(listener)
    cluster.require_listener(address)
    waiting = [socket.socket() for _ in range(4)]
    try:
        for one in waiting:  # until its queue is full
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        with pytest.raises(EngineError, match=r"no answer within 0\.2 s"):
            cluster.require_listener(address)
    finally:
        for one in waiting:
            one.close()


@pytest.mark.parametrize("address", ["auto", "local", "somewhere", "other://127.0.0.1:9"])
def test_what_is_no_host_and_port_is_rays_business(address):
    cluster.require_listener(address)


@pytest.mark.parametrize("address, why", [("127.0.0.1:port", "could not be cast"), ("127.0.0.1:99999", "out of range")])
def test_an_address_that_cannot_be_is_told(address, why):
    with pytest.raises(EngineError, match=rf"cannot use the Ray cluster at {address}: .*{why}"):
        cluster.require_listener(address)
