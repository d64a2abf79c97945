"""When the step becomes a CUDA graph and when it is replayed, on stand-ins for CUDA: what a graph holds is measured by `bench` on a GPU."""
import gc
import itertools
import weakref
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from latentsync_rtx.lipsync import gpu
from latentsync_rtx.lipsync.denoise import denoise
from latentsync_rtx.lipsync.runners import TorchRunner
from latentsync_rtx.lipsync.runners import torch as torch_runner
from latentsync_rtx.lipsync.unet import LatentSyncUNet, UNetConfig

GB = 10**9
TIMESTEPS = torch.tensor([900, 1])


class Graph:
    def __init__(self, replay):
        self.replay = replay


class Card:
    """8 GB, 3 of them in use; a step needs 1 more, and what it needed stays reserved until the cache is emptied."""

    def __init__(self, monkeypatch):
        self.total, self.used, self.cached, self.share = 8 * GB, 3 * GB, 0, 1.0
        self.captured, self.replayed, self.graphs = 0, 0, []
        self.handles, self.pools = ((0, number) for number in itertools.count(1)), []  # pools: of the captures
        stream = SimpleNamespace(wait_stream=lambda other: None)
        for name, stand_in in {
            "device": lambda device: nullcontext(),
            "stream": lambda stream: nullcontext(),
            "Stream": lambda device, priority: stream,
            "current_stream": lambda: stream,
            "CUDAGraph": self.graph,
            "graph": self.capture,
            "graph_pool_handle": lambda: next(self.handles),
            "current_device": lambda: 0,
            "empty_cache": lambda: setattr(self, "cached", 0),
            "memory_reserved": lambda *index: self.used + self.cached,
            "memory_allocated": lambda index: self.used,
            "mem_get_info": lambda index: (self.total - self.used - self.cached, self.total),
            "get_per_process_memory_fraction": self.fraction,
        }.items():
            monkeypatch.setattr(torch.cuda, name, stand_in, raising=False)
        gpu._stream.cache_clear()

    def fraction(self, index):
        assert isinstance(index, int)  # PyTorch takes no device without a number here
        return self.share

    def graph(self):
        made = Graph(self.replay)
        self.graphs.append(weakref.ref(made))
        return made

    @contextmanager
    def capture(self, graph, pool, stream, capture_error_mode):
        assert not gc.isenabled(), "an older graph that is freed now would spoil this one"
        self.captured += 1
        self.pools.append(pool)
        yield

    def replay(self):
        self.replayed += 1


@pytest.fixture
def card(monkeypatch):
    yield Card(monkeypatch)
    gpu._stream.cache_clear()


@pytest.fixture
def session():
    runner = TorchRunner(LatentSyncUNet(UNetConfig(block_out_channels=(32, 32, 64, 64))), device="cpu")
    session = runner.open(TIMESTEPS, frames=1, size=(8, 8), guided=True)
    runner.graph = True  # from here on as on a GPU
    return session


def stepper(card):
    steps = []

    def step():
        steps.append(1)
        card.cached = GB

    return step, steps


def test_free_memory_counts_the_cache_and_keeps_to_the_processs_share(card):
    card.cached = GB
    assert gpu.free_memory(torch.device("cuda")) == gpu.free_memory(torch.device("cuda", 0)) == 5 * GB
    card.share = 0.75
    assert gpu.free_memory(torch.device("cuda")) == 3 * GB


def test_the_step_becomes_a_graph_once_the_libraries_are_warm(card, session):
    step, steps = stepper(card)
    replay = session.capture(step)
    assert len(steps) == 3 and card.captured == 1 and gc.isenabled()
    replay()
    assert len(steps) == 3 and card.replayed == 1


def test_a_small_card_keeps_its_memory_for_the_vae(card, session):
    card.total = card.used + GB + torch_runner.SPARE - 1
    step, steps = stepper(card)
    session.capture(step)()
    assert card.captured == 0 and len(steps) == 3


def test_a_job_that_is_done_gives_the_memory_of_its_graphs_back_at_once(card, session):
    """A graph keeps gigabytes, which the VAE needs next."""
    random = torch.Generator().manual_seed(0)
    masked, crops = torch.randn(2, 2, 4, 8, 8, generator=random)
    gc.disable()  # so that only what lets go of a graph frees it
    try:
        for done in (1, 2):
            denoise(session.runner, masked, crops, torch.zeros(2, 50, 384), torch.ones(8, 8), masked[0], steps=2, blocks=[[0], [1]])
            assert card.captured == len(card.graphs) == done and card.replayed == 4 * done
            assert all(graph() is None for graph in card.graphs)
    finally:
        gc.enable()


def test_graphs_share_their_memory_while_there_are_any(card, session):
    step, _ = stepper(card)
    block, tail = session.capture(step), session.capture(step)
    assert card.pools == [(0, 1), (0, 1)]
    del block
    other = session.capture(step)
    del tail, other
    gc.collect()
    session.capture(step)
    assert card.pools[2:] == [(0, 1), (0, 2)], "a pool without graphs is not opened again"


def test_a_graph_is_not_replayed_over_weights_that_were_given_back(card, session):
    step, steps = stepper(card)
    replay = session.capture(step)
    session.runner.unload()
    replay()
    session.runner.load()  # elsewhere
    replay()
    assert card.replayed == 0 and len(steps) == 5


@torch.no_grad()
def test_a_session_outlives_an_unload(session):
    session.runner.graph = False
    session.sample.normal_(generator=torch.Generator().manual_seed(0))
    session.listen()
    before = session.noise(torch.tensor([0]))
    session.runner.unload()
    torch.testing.assert_close(session.noise(torch.tensor([0])), before)
