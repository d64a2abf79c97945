"""The plain forms of operations against their definitions, where they are not obvious."""
import pytest
import torch
from latentsync_rtx.lipsync import ops
from torch.utils.flop_counter import FlopCounterMode

HEADS = 2


def defined(query, key, value):
    """Softmax attention over the frames, one pixel and one head after the other."""
    y = torch.empty(query.shape)
    for row in range(query.shape[0]):
        for pixel in range(query.shape[2]):
            for lanes in torch.arange(query.shape[3]).chunk(HEADS):
                q, k, v = (t[row, :, pixel, lanes].double() for t in (query, key, value))
                y[row, :, pixel, lanes] = ((q @ k.T / len(lanes) ** 0.5).softmax(1) @ v).float()
    return y


class OverFrames(torch.nn.Module):
    def forward(self, query, key, value):
        return ops.temporal_attention(query, key, value, HEADS)


@pytest.mark.parametrize("together", [True, False], ids=["pieces of one product", "apart"])
@pytest.mark.parametrize(("frames", "pixels"), [(16, 8), (16, 6), (16, 7), (1, 64), (5, 16), (24, 4), (70, 2)])
def test_each_pixel_attends_to_its_own_frames(frames, pixels, together):
    torch.manual_seed(frames * pixels)
    joined = torch.randn(2, frames, pixels, 3 * 16)
    given = [t if together else t.contiguous() for t in joined.chunk(3, -1)]
    want = defined(*given)
    with torch.no_grad():
        assert torch.allclose(ops.temporal_attention(*given, HEADS), want, atol=1e-5)
        exported = torch.export.export(OverFrames(), tuple(given)).module()
        assert torch.allclose(exported(*given), want, atol=1e-5)
        attention = next(node for node in exported.graph.nodes if "scaled_dot_product_attention" in str(node.target))
        assert len(attention.args) == 3 and not attention.kwargs, "engines get the form without masks"


def test_gradients_flow_through_attention_over_frames():
    given = [torch.randn(1, 4, 8, 16, requires_grad=True) for _ in range(3)]
    with torch.inference_mode():
        ops.temporal_attention(*(t.detach() for t in given), HEADS)
    ops.temporal_attention(*given, HEADS).square().sum().backward()
    ours = [t.grad.clone() for t in given]
    pixelwise = [t.detach().unflatten(-1, (HEADS, -1)).permute(0, 2, 3, 1, 4).requires_grad_() for t in given]
    torch.nn.functional.scaled_dot_product_attention(*pixelwise).square().sum().backward()
    for got, want in zip(ours, pixelwise, strict=True):
        assert torch.allclose(got.unflatten(-1, (HEADS, -1)).permute(0, 2, 3, 1, 4), want.grad, atol=1e-5)


def test_masks_stay_where_recorded_graphs_found_them():
    def used(frames):
        """Addresses of the masks that an attention over so many frames reads."""
        seen = []
        original = torch.nn.functional.scaled_dot_product_attention
        with pytest.MonkeyPatch.context() as patch:

            def attention(*given, attn_mask):
                seen.append(attn_mask.data_ptr())
                return original(*given, attn_mask=attn_mask)

            patch.setattr(ops.F, "scaled_dot_product_attention", attention)
            ops.temporal_attention(*torch.randn(3, 1, frames, 4, 16), HEADS)
        return seen

    first = used(16)
    for frames in range(1, 25):
        used(frames)
    assert first and used(16) == first


def test_work_is_counted_without_what_masks_hide():
    given = torch.empty(3, 2, 16, 64, 16, device="meta")
    with FlopCounterMode(display=False) as counter:
        ops.temporal_attention(*given, HEADS)
    assert counter.get_total_flops() == 2 * 64 * 4 * 16 * 16 * 16  # rows, pixels; two products of frames x frames x channels


@pytest.mark.parametrize("probe", ["_gated", "_triton"])
def test_memory_that_is_missing_once_is_no_missing_compiler(probe, monkeypatch):
    if probe == "_triton":
        pytest.importorskip("triton")

    def failing(error):
        def ones(*_, **__):
            raise error

        return ones

    device, probe = torch.device("cuda", 7), getattr(ops, probe)
    for _ in range(2):  # not remembered
        monkeypatch.setattr(ops.torch, "ones", failing(torch.OutOfMemoryError("CUDA out of memory")))
        with pytest.raises(torch.OutOfMemoryError):
            probe(device)
    monkeypatch.setattr(ops.torch, "ones", failing(RuntimeError("no compiler")))
    assert probe(device) is None
    monkeypatch.undo()
    assert probe(device) is None, "asked once"
    probe.cache_clear()


GROUPS = 4
ROWS = pytest.mark.parametrize(("pictures", "frames"), [(8, 4), (6, 1), (3, 3)], ids=["two rows", "each picture", "one row"])
SHIFTED = pytest.mark.parametrize("shift", ["none", "one", "each row"])


def group_normed(x, norm, frames, shift, silu):
    """Group norm whose groups run over the frames of a row, by PyTorch's, in float64."""
    rows = len(x) // frames
    x = x.double().unflatten(0, (rows, frames)).transpose(1, 2)  # [rows, C, frames, H, W]
    if shift is not None:
        x = x + shift.double()[:, :, None, None, None]
    y = torch.nn.functional.group_norm(x, GROUPS, norm.weight.double(), norm.bias.double(), norm.eps).float()
    y = y.transpose(1, 2).flatten(0, 1)
    return torch.nn.functional.silu(y) if silu else y


def group_norm_case(pictures, frames, shift, device):
    torch.manual_seed(pictures)
    x = torch.randn(pictures, 32, 6, 5) + 3
    x[:, 8:16] += 50
    x[:, 16:24] = 70  # no variance at all
    norm = torch.nn.GroupNorm(GROUPS, 32, eps=1e-5).requires_grad_(False)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    shifts = {"none": None, "one": torch.randn(1, 32), "each row": torch.randn(pictures // frames, 32)}[shift]
    x = x.to(device, torch.float16).contiguous(memory_format=torch.channels_last)
    return x, norm.to(device, torch.float16), frames, shifts if shifts is None else shifts.to(device)


def near(got, want):
    """Half precision rounds each number to within 5e-4."""
    return got.dtype == torch.float16 and got.shape == want.shape and (got.float() - want).norm() < 1e-3 * want.norm()


@pytest.fixture
def batch_norm_on_a_cpu(monkeypatch):
    """PyTorch has the two kernels on GPUs only; here by what they are documented to compute."""

    def stats(x, eps):
        variance, mean = torch.var_mean(x.float(), (0, 2, 3), correction=0)
        return mean, torch.rsqrt(variance + eps)

    def elemt(x, weight, bias, mean, inverse, eps, out):
        mean, inverse, weight, bias = (value.float()[:, None, None] for value in (mean, inverse, weight, bias))
        out.copy_((x.float() - mean) * inverse * weight + bias)

    monkeypatch.setattr(torch, "batch_norm_stats", stats)
    monkeypatch.setattr(torch, "batch_norm_elemt", elemt)


@ROWS
@SHIFTED
@pytest.mark.parametrize("silu", [True, False])
def test_group_norm_without_kernels(batch_norm_on_a_cpu, pictures, frames, shift, silu):
    x, norm, frames, shift = group_norm_case(pictures, frames, shift, "cpu")
    given = x.clone()
    got = ops._group_norm_in_half(x, norm, frames, shift, silu)
    assert near(got, group_normed(x, norm, frames, shift, silu))
    assert torch.equal(x, given)
    assert got.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.gpu
@ROWS
@SHIFTED
@pytest.mark.parametrize("silu", [True, False])
def test_group_norm_without_kernels_on_a_gpu(pictures, frames, shift, silu):
    x, norm, frames, shift = group_norm_case(pictures, frames, shift, "cuda")
    with torch.no_grad(), ops.without_kernels():
        assert near(ops.group_norm(x, norm, frames=frames, shift=shift, silu=silu), group_normed(x, norm, frames, shift, silu))


@pytest.mark.gpu
def test_layer_norm_without_kernels_on_a_gpu():
    x, shift, table, norm = torch.randn(2, 5, 16, 64), torch.randn(64), torch.randn(5, 64), torch.nn.LayerNorm(64).requires_grad_(False)
    with torch.no_grad(), ops.without_kernels():
        got = ops.layer_norm(x.half().cuda(), norm.half().cuda(), shift=shift.cuda(), table=table.half().cuda())
    assert near(got.cpu(), torch.nn.functional.layer_norm(x + shift, (64,)) + table[:, None])


@pytest.mark.gpu
def test_bias_and_residual_without_kernels_on_a_gpu():
    x, residual, bias, conv = torch.randn(2, 16, 8, 8), torch.randn(2, 32, 8, 8), torch.randn(32), torch.nn.Conv2d(16, 32, 3, padding=1)
    want = torch.nn.functional.conv2d(x, conv.weight, padding=1) + bias[:, None, None] + residual
    half = [t.half().cuda().contiguous(memory_format=torch.channels_last) for t in (x, residual)]
    with torch.no_grad(), ops.without_kernels():
        assert near(ops.convolved(half[0], conv.half().cuda(), half[1], bias=bias.half().cuda()).cpu(), want.detach())


@pytest.mark.gpu
@pytest.mark.parametrize("compiles", [True, False])
def test_geglu_without_kernels_on_a_gpu(compiles, monkeypatch):
    x, weight, bias = torch.randn(2, 100, 64), torch.randn(256, 64) / 8, torch.randn(256)
    value, gate = torch.nn.functional.linear(*(t.half().float() for t in (x, weight, bias))).chunk(2, -1)
    if not compiles:
        monkeypatch.setattr(ops, "_gated", lambda device: None)
    with torch.no_grad(), ops.without_kernels():
        assert near(ops.geglu(*(t.half().cuda() for t in (x, weight, bias))).cpu(), value * torch.nn.functional.gelu(gate))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_attention_over_frames_without_kernels_on_a_gpu(rows):
    joined = torch.randn(rows, 16, 64, 3 * 80).half()
    with torch.no_grad(), ops.without_kernels():
        got = ops.temporal_attention(*joined.cuda().chunk(3, -1), HEADS)
    assert near(got.cpu(), defined(*joined.float().chunk(3, -1)))
