"""Devices and memory: values go where the hooked tensor is, and only what was asked for stays."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from families import FAMILIES, ITEMS, PAIRS
from fault_subjects import DTYPES, WHOLE, assert_same, each_row
from fault_subjects import subject as shared_subject

import reward_lens as rl
from reward_lens.backbone import Site, read_rows
from reward_lens.backbone.taps import attach

every_family = pytest.mark.parametrize("family", FAMILIES)
# Looking at every tensor that is alive takes a second; two families will do.
some_families = pytest.mark.parametrize("family", ["gemma2", "mixtral"])


def tensors():
    """Every tensor that is alive and no parameter, by identity."""
    gc.collect()
    return {
        id(x): x for x in gc.get_objects() if type(x) is torch.Tensor and x.device.type == "cpu"
    }


def edited(signal, encoded, tap, edit):
    """Scores of items in one forward with the tensor at a tap replaced."""
    out = np.empty(len(encoded))
    read = signal.read_index(encoded)
    for batch in signal.trunk.batches(encoded, WHOLE):
        seen = []
        with torch.no_grad(), attach({tap: edit, signal.trunk.anatomy.normed: seen.append}):
            signal.trunk.base(
                input_ids=batch.ids, attention_mask=batch.mask, position_ids=batch.positions
            )
        rows = read_rows(read)(batch, seen[0])
        out[batch.index] = signal.readout().read(rows).double().numpy()
    return out


def test_the_read_index_goes_to_the_device_of_the_values():
    """Values on another device than ids and index, as with blocks spread over several."""
    signal = shared_subject("llama")
    encoded = signal.encode(ITEMS)
    (batch,) = signal.trunk.batches(encoded, WHOLE)
    elsewhere = torch.empty(*batch.ids.shape, 32, device="meta", dtype=torch.bfloat16)
    rows = read_rows(signal.read_index(encoded))(batch, elsewhere)
    assert rows.device.type == "meta"
    assert rows.shape == (len(encoded), 32)
    assert rows.dtype == torch.bfloat16


@every_family
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_value_put_in_place_takes_the_dtype_of_what_it_replaces(family, dtype):
    """A direction is kept in float32 or float64; the trunk it is added to may run in another."""
    signal = shared_subject(family, 1, dtype)
    encoded = signal.encode(ITEMS[:3])
    tap = signal.trunk.anatomy.blocks[1].leave
    plain = signal.score(ITEMS[:3]).value.values
    for given in (torch.float64, torch.float32, torch.bfloat16):
        step = torch.zeros(32, dtype=given)
        step[3] = 2  # a number that every dtype holds exactly
        found = edited(signal, encoded, tap, lambda x, d=step: x.to(d.dtype) + d)
        expected = edited(signal, encoded, tap, lambda x, d=step: (x.to(d.dtype) + d).to(x.dtype))
        np.testing.assert_array_equal(found, expected)
        assert np.isfinite(found).all()
        assert np.abs(found - plain).max() > 1e-3


@some_families
def test_capture_of_one_site_keeps_one_tensor(family):
    signal = shared_subject(family)
    signal.capture(ITEMS, ["L1.attn_out"])
    before = tensors()
    found = signal.capture(ITEMS, ["L1.attn_out"], batch_tokens=WHOLE)
    kept = [x for k, x in tensors().items() if k not in before]
    assert len(kept) == 1
    (tensor,) = found.values()
    assert kept[0] is tensor
    assert tensor.shape == (len(ITEMS), 32)
    # Not a view that holds the whole batch's activations alive.
    assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


@every_family
def test_a_sweep_keeps_the_rows_it_reads_and_no_more(family):
    """All layers at the read token: one row an item and site, whatever the length of the text."""
    signal = shared_subject(family)
    encoded = signal.encode(ITEMS)
    sites = [Site(k, i) for i in range(3) for k in ("attn_out", "mlp_out", "resid_post")]
    for seen in signal.sweep(encoded, sites, signal.read_index(encoded), batch_tokens=WHOLE):
        row = len(seen.index) * 32 * 4
        for tensor in seen.sites.values():
            assert tensor.untyped_storage().nbytes() <= row
        assert set(seen.sites) == set(sites)


@some_families
def test_fifty_patches_leave_nothing_behind(family):
    signal = shared_subject(family)
    encoded = signal.encode(ITEMS[:2])
    tap = signal.trunk.anatomy.blocks[1].leave
    gone = []

    def patch(k):
        def edit(x):
            new = x + k
            gone.append(weakref.ref(new))
            return new

        return edited(signal, encoded, tap, edit)

    patch(0)
    before = len(tensors())
    for k in range(1, 51):
        patch(k)
    assert len(tensors()) <= before
    assert len(gone) == 51
    assert not any(ref() is not None for ref in gone)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in signal.trunk.model.modules())


@some_families
def test_repeated_measurements_leave_nothing_behind(family):
    signal = shared_subject(family)

    def measure():
        rl.lens(signal, PAIRS[:2])
        rl.attribution(signal, PAIRS[:2], by="head")
        signal.score_prefixes(ITEMS[:2])
        signal.gradient(ITEMS[:2], "L0.resid_post")

    measure()
    before = len(tensors())
    for _ in range(4):
        measure()
    assert len(tensors()) <= before


@every_family
def test_no_graph_is_built_where_no_gradient_is_asked_for(family):
    """A forward that records for a backward pass keeps every activation of every layer."""
    signal = shared_subject(family)
    assert any(p.requires_grad for p in signal.trunk.model.parameters())
    found = signal.capture(ITEMS[:3], ["L0.attn_out", "L2.resid_post"], position="all")
    assert not any(x.requires_grad for rows in found.values() for x in rows)
    (gradient,) = signal.gradient(ITEMS[:1], "L0.resid_post")
    assert not gradient.requires_grad
    assert_same(each_row(signal, ITEMS), each_row(signal, ITEMS, batch_tokens=1))
