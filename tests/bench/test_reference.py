"""What the bench measures against must compute the same."""
import torch
from latentsync_rtx.bench import networks, reference
from latentsync_rtx.bench.measure import apart
from latentsync_rtx.lipsync.unet import UNetConfig


@torch.no_grad()
def test_the_network_in_the_references_order_is_the_network():
    net = networks.unet(torch.device("cpu"), torch.float32, UNetConfig(block_out_channels=(32, 32, 64, 64)))
    sample, audio, timestep = torch.randn(2, 13, 3, 16, 16), torch.randn(2, 3, 50, 384), torch.tensor([500])
    expected = net(sample, timestep, audio)
    assert expected.std() > 0.05
    assert apart(reference.unet(net, sample, timestep, audio), expected) < 1e-9
