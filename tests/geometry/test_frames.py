"""Frames and the alignment of state spaces: right where it is known, refused where it is empty."""

from __future__ import annotations

import json

import numpy as np
import pytest
from families import make_signal
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_lens.errors import CapabilityError, DataError, EvidenceError, GaugeError
from reward_lens.evidence import Evidence, GaugeStatus, Units
from reward_lens.evidence.gate import check_comparable
from reward_lens.geometry import Frame, fit_frame, frame_direction, state_alignment
from reward_lens.geometry.frames import column_correlations, fit_maps
from reward_lens.organisms.gauge_twin import make_gauge_twin


def texts(n, start=0):
    rng = np.random.default_rng(7)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz "))
    rows = [(f"Say {k}", *("".join(rng.choice(letters, rng.integers(8, 30))) for _ in range(2)))
            for k in range(n + start)]  # fmt: skip
    return rows[start:]


FITTED, HELD_OUT = texts(60), texts(40, start=60)


@pytest.fixture(scope="module")
def llama():
    return make_signal("llama")


@pytest.fixture(scope="module")
def twin(llama):
    return make_gauge_twin(llama)


@pytest.fixture(scope="module")
def frame(llama, twin):
    return fit_frame(llama, twin, FITTED, dimensions=4)


def test_a_gauge_twin_is_the_same_states_in_other_coordinates(llama, twin, frame):
    found = state_alignment(llama, twin, HELD_OUT, frame)
    np.testing.assert_allclose(found.value.sel(quantity="held_out"), 1, atol=1e-3)
    assert found.interval("procrustes").estimate > 0.999
    assert found.gauge is GaugeStatus.COVARIANT
    assert found.units is Units.ANGLE
    assert found.subject.frame == frame.fingerprint
    assert "depends on the basis" in found.subject.notes["frame_note"]
    assert found.tables["frame"]["dimensions"].item() == 4
    assert Evidence.from_dict(found.to_dict()) == found


def test_directions_are_compared_in_a_frame_and_only_there(llama, twin, frame):
    one, other = (frame_direction(s, frame) for s in (llama, twin))
    assert float(one.value.values @ other.value.values) == pytest.approx(1, abs=1e-3)
    np.testing.assert_allclose((one - other).value, 0, atol=1e-2)
    elsewhere = frame_direction(twin, fit_frame(llama, twin, FITTED, dimensions=3))
    with pytest.raises(GaugeError, match="one common frame"):
        check_comparable(one, elsewhere)


def test_a_frame_is_saved_and_read_and_an_altered_one_is_found(frame, tmp_path):
    frame.save(tmp_path / "frame")
    again = Frame.load(tmp_path / "frame")
    assert again.fingerprint == frame.fingerprint
    assert again.lineages == frame.lineages
    np.testing.assert_array_equal(again.map_a, frame.map_a)
    facts = tmp_path / "frame" / "frame.json"
    said = json.loads(facts.read_text())
    facts.write_text(json.dumps({**said, "corpus": "other"}))
    with pytest.raises(EvidenceError, match="it was altered after it was fitted"):
        Frame.load(tmp_path / "frame")
    with pytest.raises(EvidenceError, match="holds no frame"):
        Frame.load(tmp_path)


def test_a_frame_is_not_judged_on_what_it_was_fitted_on(llama, twin, frame):
    with pytest.raises(DataError, match="1 lineages .* where any two trunks look aligned"):
        state_alignment(llama, twin, [*HELD_OUT, FITTED[0]], frame)


def test_too_small_a_corpus_is_refused(llama, twin):
    with pytest.raises(DataError, match="dimensions=7: with 60 lineages .* 1 to 6 dimensions"):
        fit_frame(llama, twin, FITTED, dimensions=7)
    with pytest.raises(DataError, match="with 9 lineages"):
        fit_frame(llama, twin, FITTED[:9])
    assert fit_frame(llama, twin, FITTED[:20]).dimensions == 2


def test_a_frame_is_of_two_signals(llama, twin, frame):
    other = make_signal("gpt2")
    with pytest.raises(DataError, match="fit one on these, in this order"):
        state_alignment(twin, llama, HELD_OUT, frame)
    with pytest.raises(DataError, match="was fitted on the signals"):
        frame_direction(other, frame)
    inside = fit_frame(llama, other, FITTED, site=("L1.resid_post", "L0.mlp_out"), dimensions=2)
    assert inside.sites == ("L1.resid_post", "L0.mlp_out")
    with pytest.raises(CapabilityError, match=r"fitted at L1.resid_post"):
        frame_direction(llama, inside)


def test_unrelated_states_do_not_line_up_where_they_seem_to():
    """Fewer rows than dimensions: in the sample everything lines up, held out nothing does."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 30)), rng.normal(size=(40, 30))
    naive = fit_maps(x, y, 30)
    assert naive["correlations"].max() > 0.85  # what the ten lineages a dimension are for
    x, y = rng.normal(size=(400, 30)), rng.normal(size=(400, 30))
    fitted = fit_maps(x[:200], y[:200], 20)
    held = column_correlations(
        (x[200:] - fitted["centre_a"]) @ fitted["map_a"],
        (y[200:] - fitted["centre_b"]) @ fitted["map_b"],
    )
    assert np.abs(held).mean() < 0.15
    assert np.abs(held.mean()) < 0.05


@pytest.mark.parametrize("rows", [12, 60, 600])
def test_correlations_in_the_sample_are_correlations(rows):
    """Few rows are shrunk much: the singular values of what is whitened so go beyond 1."""
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, 6)) * [9, 3, 1, 1, 0.3, 0.1]
    y = x @ np.linalg.qr(rng.normal(size=(6, 6)))[0] + 0.01 * rng.normal(size=(rows, 6))
    fitted = fit_maps(x, y, 3)
    a, b = (x - fitted["centre_a"]) @ fitted["map_a"], (y - fitted["centre_b"]) @ fitted["map_b"]
    by_hand = [np.corrcoef(a[:, k], b[:, k])[0, 1] for k in range(3)]
    np.testing.assert_allclose(fitted["correlations"], by_hand, atol=1e-12)
    assert (np.abs(fitted["correlations"]) <= 1 + 1e-12).all()
    assert np.linalg.svd(a.T @ b / rows, compute_uv=False).max() > 1


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_a_rotation_of_the_states_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(120, 8)) * np.arange(1, 9)
    y = x @ rng.normal(size=(8, 6)) + rng.normal(size=(120, 6))
    turn = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    one, other = fit_maps(x, y, 4), fit_maps(x @ turn, y, 4)
    np.testing.assert_allclose(one["correlations"], other["correlations"], atol=1e-8)
