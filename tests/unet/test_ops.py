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
        assert "stack" not in str(exported.code), "engines get the form without masks"


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
