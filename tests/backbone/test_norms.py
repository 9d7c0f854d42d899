from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from reward_lens.backbone.norms import probe_norm

CPU = torch.device("cpu")


def built(kind, width, dtype=torch.float32):
    torch.manual_seed(0)
    norm = {"rms": LlamaRMSNorm, "one plus": Gemma2RMSNorm, "layer": nn.LayerNorm}[kind](width)
    with torch.no_grad():
        for p in norm.parameters():
            p += 0.3 * torch.randn_like(p)
    return norm.to(dtype)


@pytest.mark.parametrize("width", [7, 32])
@pytest.mark.parametrize("kind", ["rms", "one plus", "layer"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_is_found_and_frozen_exactly(kind, width, dtype):
    module = built(kind, width, dtype)
    norm = probe_norm(module, width, CPU)
    assert norm is not None
    assert norm.centred == (kind == "layer")
    x = torch.randn(5, width).to(dtype)
    frozen = norm.freeze(x)
    exact = built(kind, width).float()
    exact.load_state_dict({k: v.float() for k, v in module.state_dict().items()})
    with torch.no_grad():
        torch.testing.assert_close(frozen.apply(x).float(), exact(x.float()), rtol=1e-5, atol=1e-6)
    u = torch.randn(width, dtype=torch.float64)
    through = (frozen.pull_back(u) * x.double()).sum(-1) + u @ frozen.bias
    torch.testing.assert_close(through, frozen.apply(x) @ u, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "module",
    [nn.Linear(8, 8), nn.SiLU(), nn.Identity(), nn.Softmax(-1), nn.Linear(8, 4), nn.Tanh()],
    ids=lambda m: type(m).__name__,
)
def test_what_is_no_norm_is_not_taken_for_one(module):
    assert probe_norm(module, 8, CPU) is None


def test_a_norm_of_half_the_channels_is_not_taken_for_one():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x):
            return torch.cat([self.norm(x[..., :4]), 2 * self.norm(x[..., 4:])], -1)

    assert probe_norm(Half(), 8, CPU) is None


def test_weights_changed_later_are_read_as_they_are():
    module = built("rms", 8)
    norm = probe_norm(module, 8, CPU)
    x = torch.randn(2, 8)
    before = norm.freeze(x).gain
    with torch.no_grad():
        module.weight.mul_(2)
    torch.testing.assert_close(norm.freeze(x).gain, 2 * before)
