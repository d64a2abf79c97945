"""Networks of a few pixels: threads would wait for one another longer than they work."""
import pytest
import torch
from latentsync_rtx.lipsync.runners.manifest import DEEP, SHALLOW
from latentsync_rtx.lipsync.runners.tensorrt_rtx import RtxRunner
from latentsync_rtx.lipsync.unet import LatentSyncUNet, UNetConfig
from latentsync_rtx.tests.runners import doubles
from latentsync_rtx.tests.runners.doubles import CARD, FRAMES, PARITY, SIDE, Library, reference, write_engine


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device(request.param)


@pytest.fixture(scope="module")
def unet(device):
    torch.manual_seed(0)
    return LatentSyncUNet(UNetConfig(block_out_channels=(32, 32), layers_per_block=1)).to(device).eval().requires_grad_(False)


@pytest.fixture
def lanes():
    with doubles.late_lanes():
        yield


@pytest.fixture
def make(tmp_path, unet, device, lanes):
    """make(**fields of the manifest) -> a runner that passed its comparison before; `library` holds options of the double, `pair` gives the
    engine a shallow partner."""

    def make(library: dict | None = None, runner=RtxRunner, pair=False, **fields):
        fields = {"frames": FRAMES, "resolution": 8 * SIDE, "parity": PARITY, **fields}
        if pair:
            write_engine(tmp_path, **fields, role=SHALLOW)
            fields["role"] = DEEP
        engine = write_engine(tmp_path, **fields)
        double = Library(engine, unet, **(library or {}))
        made = runner(engine, reference(unet), device, gpu=CARD, library=double)
        made.double = double
        return made

    return make
