"""Which back end runs: a pure function, then on this machine. F46, F47."""
import json
import logging
from types import SimpleNamespace

import pytest
from latentsync_rtx.lipsync.errors import EngineError
from latentsync_rtx.lipsync.runners import choice, engines
from latentsync_rtx.lipsync.runners.choice import choose, choose_for
from latentsync_rtx.lipsync.runners.manifest import DEEP, SHALLOW, WHOLE, Gpu
from latentsync_rtx.lipsync.runners.pool import EngineRecipe, PooledRunner, TorchRecipe
from latentsync_rtx.tests.runners.doubles import CARD, VERSION, write_engine

H200 = Gpu("NVIDIA H200", "9.0", "13.0")
MODEL = SimpleNamespace(fingerprint="f00d")


@pytest.fixture
def engine(tmp_path):
    return write_engine(tmp_path)


def test_auto_takes_the_first_engine_that_passes(engine):
    chosen = choose("auto", gpu=CARD, version=VERSION, candidates=[(None, False, "stale"), (engine, True, "")])
    assert (chosen.backend, chosen.engine) == ("tensorrt_rtx", engine)
    assert CARD.name in chosen.reason


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"gpu": None}, "no NVIDIA GPU"),
        ({"gpu": H200}, "does not support this GPU (NVIDIA H200, compute capability 9.0)"),
        ({"version": None}, "tensorrt-rtx is not installed"),
        ({"candidates": []}, "no engine for this checkpoint"),
        ({"candidates": [(None, False, "its frames is 4, needed is 16.")]}, "its frames is 4"),
    ],
)
def test_without_a_usable_engine_auto_is_pytorch_and_a_wish_for_rtx_an_error(engine, changes, why):
    given = {"gpu": CARD, "version": VERSION, "candidates": [(engine, True, "")], **changes}
    chosen = choose("auto", **given)
    assert chosen.backend == "torch" and why in chosen.reason and "\n" not in chosen.reason
    with pytest.raises(EngineError) as error:
        choose("tensorrt_rtx", **given)
    assert why in str(error.value)
    assert choose("torch", **given).backend == "torch"


def test_an_unknown_wish_is_refused():
    with pytest.raises(EngineError, match="auto, tensorrt_rtx, torch"):
        choose("tensorrt", gpu=None, version=None, candidates=[])


def on(monkeypatch, gpu):
    monkeypatch.setattr(choice, "gpu_of", lambda device=None: gpu)
    monkeypatch.setattr(engines, "installed_version", lambda: VERSION)


def test_on_a_card_it_takes_this_models_engine(tmp_path, monkeypatch):
    on(monkeypatch, CARD)
    write_engine(tmp_path, fingerprint="beef")
    write_engine(tmp_path, guided=False)
    mine = write_engine(tmp_path)
    assert choose_for(MODEL, folder=tmp_path).engine == mine
    assert choose_for(MODEL, folder=tmp_path, guided=False).engine.manifest["guided"] is False
    assert choose_for(MODEL, engine=mine, folder=tmp_path).engine == mine
    other = SimpleNamespace(fingerprint="cafe")
    assert choose_for(other, folder=tmp_path).backend == "torch"
    assert "checkpoint is f00d, needed is cafe" in choose_for(other, engine=mine).reason


def test_an_unsupported_card_costs_one_line(tmp_path, monkeypatch, caplog):  # F47
    on(monkeypatch, H200)
    write_engine(tmp_path)
    with caplog.at_level(logging.INFO):
        assert choose_for(MODEL, folder=tmp_path).backend == "torch"
    assert [record.getMessage() for record in caplog.records] == [
        "PyTorch runs the network: TensorRT-RTX does not support this GPU (NVIDIA H200, compute capability 9.0)."
    ]


def test_a_chosen_torch_needs_no_reason(tmp_path, monkeypatch, caplog):
    on(monkeypatch, CARD)
    with caplog.at_level(logging.WARNING):
        assert choose_for(MODEL, "torch", folder=tmp_path / "no folder").backend == "torch"
    assert not caplog.records


def test_there_is_no_card_on_a_cpu():
    assert choice.gpu_of("cpu") is None


def test_block_caching_takes_a_pair_and_nothing_else(tmp_path, monkeypatch):
    on(monkeypatch, CARD)
    whole = write_engine(tmp_path)
    assert choose_for(MODEL, "auto", folder=tmp_path, cached=True).backend == "torch"
    with pytest.raises(EngineError, match=r"does not let the network's deep features be reused.*--caching"):
        choose_for(MODEL, "tensorrt_rtx", folder=tmp_path, cached=True)
    deep = write_engine(tmp_path, role=DEEP)
    assert choose_for(MODEL, "auto", folder=tmp_path, cached=True).backend == "torch", "its partner is missing"
    shallow = write_engine(tmp_path, role=SHALLOW)
    write_engine(tmp_path, role=SHALLOW, frames=8)
    assert choose_for(MODEL, "tensorrt_rtx", folder=tmp_path, cached=True).engine == deep
    assert choose_for(MODEL, "tensorrt_rtx", folder=tmp_path).engine == whole
    whole.path.unlink()
    whole.path.with_suffix(".json").unlink()
    assert choose_for(MODEL, "tensorrt_rtx", folder=tmp_path).engine == deep, "a deep one runs every profile"
    assert [engine.manifest["role"] for engine in engines.list_engines(tmp_path)] == [DEEP], "a partner is nothing to choose"
    assert engines.partner(deep) == shallow
    with pytest.raises(EngineError, match="only the outer part"):
        choose_for(MODEL, "tensorrt_rtx", folder=tmp_path, engine=shallow)


def test_a_pooled_engine_knows_whether_it_caches(tmp_path):
    assert [runner.caches for runner in (pooled(write_engine(tmp_path)), pooled(write_engine(tmp_path, role=DEEP)))] == [False, False]
    write_engine(tmp_path, role=SHALLOW)
    assert pooled(write_engine(tmp_path, role=DEEP)).caches
    assert PooledRunner(TorchRecipe(MODEL, "cpu")).caches


def pooled(engine):
    return PooledRunner(EngineRecipe(engine.path, engine.identity, MODEL, "cuda"))


def test_engines_from_before_there_were_roles_are_whole_and_keep_their_identity(tmp_path):
    engine = write_engine(tmp_path)
    manifest = json.loads(engine.path.with_suffix(".json").read_text())
    assert manifest.pop("role") == WHOLE
    engine.path.with_suffix(".json").write_text(json.dumps(manifest))
    assert engines.read(engine.path) == engine and engines.read(engine.path).manifest["role"] == WHOLE
