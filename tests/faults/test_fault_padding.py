"""Padding and pooling: the token read depends on neither padding, batch nor tokenizer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families import BOS, EOS, FAMILIES, ITEMS, PAD, make_model, make_tokenizer
from fault_subjects import ROWS, SOME, TURNS, WHOLE, assert_same, each_row, fresh, native, reference
from fault_subjects import subject as shared_subject

import reward_lens as rl
from reward_lens.backbone import Site
from reward_lens.data import Item

both_heads = pytest.mark.parametrize("rows", ROWS)
every_family = pytest.mark.parametrize("family", FAMILIES)
SIDES = ("left", "right", "both")


def padded(ids, side, total, fill=PAD):
    """Ids laid into ``total`` columns with a mask, as a data loader would hand them over."""
    spare = total - len(ids)
    left = {"left": spare, "right": 0, "both": spare // 2}[side]
    row = [fill] * left + list(ids) + [fill] * (spare - left)
    mask = [0] * left + [1] * len(ids) + [0] * (spare - left)
    return {"input_ids": row, "attention_mask": mask}


@every_family
@both_heads
@pytest.mark.parametrize("side", SIDES)
def test_padding_on_any_side_of_the_input(family, rows, side):
    signal = shared_subject(family, rows)
    ids = [e.ids.tolist() for e in signal.encode(ITEMS)]
    longest = max(map(len, ids))
    given = [padded(x, side, longest + 3) for x in ids]
    assert_same(each_row(signal, given), reference(family, rows), side)


@every_family
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("fill", [PAD, EOS])
def test_the_mask_decides_what_padding_is(family, side, fill):
    """Whatever id was used to pad, what the mask leaves out is not part of the text."""
    signal = shared_subject(family)
    ids = signal.encode(ITEMS)[0].ids.tolist()
    plain = signal.score([Item(ids=tuple(ids))]).value
    ev = signal.score([padded(ids, side, len(ids) + 5, fill)])
    assert int(ev.value.read_index[0]) == int(plain.read_index[0]) == len(ids) - 1
    assert float(ev.value[0]) == float(plain[0])


@every_family
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_tokenizers_padding_side_is_of_no_concern(family, side, monkeypatch):
    signal = shared_subject(family)
    monkeypatch.setattr(signal.encoder.tokenizer, "padding_side", side)
    assert_same(each_row(signal, ITEMS), reference(family), side)


@every_family
@both_heads
def test_the_width_padded_to_is_of_no_concern(family, rows):
    signal = shared_subject(family, rows)
    texts = [(5, 6, 7), (8, 9, 10, 11, 12), tuple(range(20, 28))]
    expected = np.stack([native(signal, x) for x in texts])
    for width in (8, 16, 32):
        for side in ("left", "right"):
            given = [padded(x, side, width) for x in texts]
            assert_same(each_row(signal, given), expected, f"width {width}, {side}")


@every_family
@both_heads
def test_batches_of_1_2_3_and_7_give_the_same_scores_and_ranking(family, rows):
    signal = shared_subject(family, rows)
    items, expected = ITEMS[:7], reference(family, rows)[:7]
    rankings = set()
    for size in (1, 2, 3, 7):
        parts = [items[i : i + size] for i in range(0, 7, size)]
        scores = np.concatenate([each_row(signal, p, batch_tokens=WHOLE) for p in parts])
        assert_same(scores, expected, f"batches of {size}")
        rankings.add(tuple(np.argsort(scores[:, 0], kind="stable").tolist()))
    assert len(rankings) == 1


@pytest.mark.parametrize("family", SOME)
@pytest.mark.parametrize("config_pad", [PAD, None])
@pytest.mark.parametrize("tokenizer_pad", ["<pad>", None])
def test_no_pad_in_the_configuration_or_the_tokenizer(family, config_pad, tokenizer_pad):
    """Transformers refuses such a batch or reads the last column; one text alone is the judge."""
    tokenizer = make_tokenizer()
    tokenizer.pad_token, tokenizer.padding_side = tokenizer_pad, "left"
    model = make_model(family, pad_token_id=config_pad)
    signal = rl.wrap_hf_model(model, tokenizer, conformance_quickcheck=False)
    scores = each_row(signal, ITEMS, batch_tokens=WHOLE)
    assert_same(scores, np.stack([native(signal, e.ids) for e in signal.encode(ITEMS)]))


@every_family
@both_heads
def test_only_the_read_token_decides_the_score(family, rows):
    """Of all tokens' values, the score is that of the one reported, and no other has it."""
    signal = shared_subject(family, rows)
    (values,) = signal.score_prefixes(ITEMS[:1], readout=signal.readouts()[-1].name).value.values
    ev = signal.score(ITEMS[:1], readout=signal.readouts()[-1].name)
    read = int(ev.value.read_index[0])
    assert read == len(values) - 1
    gap = np.abs(values - float(ev.value[0]))
    assert gap[read] <= 1e-5 * np.ptp(values)
    assert (gap[:read] > 1e-4 * np.ptp(values)).all()


@every_family
@both_heads
def test_pad_is_eos_never_reads_inside_the_prompt(family, rows):
    """The end of the prompt's turn, an end token too, is not where the text ends."""
    signal = fresh(family, rows, pad_token_id=EOS)
    ids = (BOS, 5, EOS, 6, 7, EOS)
    ev = signal.score([Item(ids=ids)])
    assert int(ev.value.read_index[0]) == 4  # what transformers reads: the last that is no pad
    np.testing.assert_allclose(each_row(signal, [Item(ids=ids)])[0], native(signal, ids), atol=1e-5)
    last = signal.score([Item(ids=ids)], position="last")
    assert int(last.value.read_index[0]) == 5
    assert list(ev.tables["positions"]["native_index"]) == [4]
    assert list(ev.tables["positions"]["last_index"]) == [5]


@pytest.mark.parametrize("family", SOME)
@pytest.mark.parametrize("pad", [PAD, EOS, None])
def test_turns_that_each_end_with_the_end_token(family, pad):
    signal = fresh(family, template=TURNS, pad_token_id=pad)
    turns = [
        {"role": r, "content": c}
        for r, c in (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "dd"))
    ]
    ev = signal.score([turns])
    (encoded,) = signal.encode([turns])
    ids = encoded.ids.tolist()
    assert ids.count(EOS) == 4
    expected = len(ids) - (2 if pad == EOS else 1)
    assert int(ev.value.read_index[0]) == expected
    assert float(ev.value[0]) == pytest.approx(float(native(signal, ids)[0]), abs=1e-5)
    assert int(signal.score([turns], position="last").value.read_index[0]) == len(ids) - 1


@every_family
@pytest.mark.parametrize("side", ["left", "right"])
def test_up_to_eight_pads_in_the_trunk_move_nothing(family, side):
    """Positions come from the mask: with absolute ones the fault is large, with rotary ones not."""
    signal = shared_subject(family)
    text = np.arange(30, 42)
    alone = float(signal.score([Item(ids=tuple(text.tolist()))]).value[0])
    readout = signal.readout()
    scores = []
    for n_pad in range(9):
        longer = np.concatenate([np.full(n_pad, 50), text])
        pair = signal.encode([Item(ids=tuple(x.tolist())) for x in (text, longer)])
        for batch in signal.trunk.batches(pair, WHOLE, side):
            row = list(batch.index).index(0)
            states = signal.trunk.capture(batch, [Site("final_norm")])[Site("final_norm")]
            end = batch.ids.shape[1] if side == "left" else len(text)
            scores.append(float(readout.read(states[row, end - 1])))
    assert np.ptp(scores) <= 1e-5 * max(1.0, abs(alone))
    assert scores[0] == pytest.approx(alone, abs=1e-5)


@every_family
@both_heads
def test_activations_at_real_tokens_are_the_same_in_a_batch(family, rows):
    signal = shared_subject(family, rows)
    sites = ["embed", *(f"L{k}.{s}" for k in range(3) for s in ("attn_out", "mlp_out"))]
    sites += ["L2.resid_post", "final_norm"]
    items = sorted(ITEMS, key=lambda x: len(x[1]))[:: len(ITEMS) // 3]
    together = signal.capture(items, sites, position="all", batch_tokens=WHOLE)
    for k, item in enumerate(items):
        alone = signal.capture([item], sites, position="all")
        for site in sites:
            assert together[site][k].shape == alone[site][0].shape
            torch.testing.assert_close(together[site][k], alone[site][0], rtol=1e-4, atol=2e-5)


def test_padding_only_is_refused():
    signal = shared_subject("llama")
    with pytest.raises(rl.errors.TokenizeError, match="item 1"):
        signal.score([Item(ids=(1, 2)), Item(ids=(PAD, PAD))])
    with pytest.raises(rl.errors.DataError, match="leaves no id"):
        signal.score([{"input_ids": [1, 2], "attention_mask": [0, 0]}])
