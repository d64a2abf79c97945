"""The real library where it cannot run an engine: without a driver here, and with `-m gpu` on a card that it does not know (H200). F47."""
import logging

import pytest
import torch
from latentsync_rtx.lipsync.errors import EngineError
from latentsync_rtx.lipsync.runners import choice, engines
from latentsync_rtx.lipsync.runners.manifest import unsupported
from latentsync_rtx.lipsync.runners.pool import POOL, runner_for
from latentsync_rtx.tests.runners.doubles import CARD


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    """A device where TensorRT-RTX does not run, and a card in our own tables that says it would: the library has to refuse by itself."""
    if (request.param == "cuda") != torch.cuda.is_available() or not unsupported(choice.gpu_of(request.param)):
        pytest.skip("for a machine without a CUDA device, or with one that TensorRT-RTX does not support")
    monkeypatch.setattr(choice, "gpu_of", lambda device=None: CARD)
    yield request.param
    POOL.forget()


def test_the_librarys_refusal_is_pytorch_and_one_line(built, model, device, caplog):
    engine = engines.read(built[0]["path"])
    runner = runner_for(model, "auto", engine=engine, device=device)
    assert runner.key[0] == "tensorrt_rtx"
    with caplog.at_level(logging.WARNING):
        assert runner.spec.backend == "torch"
        runner.load()
    lines = [record.getMessage() for record in caplog.records if "PyTorch runs" in record.getMessage()]
    assert len(lines) == 1 and engine.path.name in lines[0] and "refuses it" in lines[0]
    assert runner.size_bytes > 1e6
    with pytest.raises(EngineError, match="refuses it"):
        runner_for(model, "tensorrt_rtx", engine=engine, device=device).load()
