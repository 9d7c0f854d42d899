"""Style-controlled accuracy of signals whose taste is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reward_lens as rl
from reward_lens.data import Item, Pair, Pairs
from reward_lens.errors import DataError
from reward_lens.evidence import Tier, Units
from reward_lens.instruments.style_control import (
    STYLES,
    _levels,
    marks_of,
    style_accuracy,
    styles_of,
)
from reward_lens.organisms.hand_set import FEATURE, KEY, ONE, QUERY, REWARD, VALUE, HandSet

THINGS = ("apples", "rivers", "stones", "gardens", "letters", "winters", "oceans", "houses",
          "roads", "books", "birds", "songs", "trees", "clocks", "boats", "doors")  # fmt: skip


def taste(right: float, length: float, good: str = "good"):
    """Prefers the word "good" by ``right``, however long the text, and longer texts by ``length``.

    One head looks for the word (and for nothing where it is not there), another reads 1 over the
    number of tokens.
    """
    model = HandSet(layers=1)
    (first,) = model.tokenizer("User", add_special_tokens=False)["input_ids"]
    rows = model.model.model.embed_tokens.weight
    with torch.no_grad():
        rows[first, VALUE] = 1.0
        rows[first, KEY] = 0.5  # looked at where there is no good word
        rows[:, QUERY] = 1.0
    model.token(good, {KEY: 1.0, FEATURE: 1.0})
    model.head(0, 0, query=QUERY, key=KEY, value=FEATURE, writes={REWARD: right})
    model.head(0, 1, query=None, key=ONE, value=VALUE, writes={REWARD: -length})
    return model.signal("taste")


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    """The better side says that something is good; it is the longer one every other time."""
    rows = []
    for k, thing in enumerate(THINGS):
        more = " again" * (k % 2)
        less = " again" * (1 - k % 2)
        rows.append(
            {
                "prompt": f"What of {thing}?",
                "chosen": f"I find {thing} good here. There are many of them{more}.",
                "rejected": f"I find {thing} poor here. There are many of them{less}.",
            }
        )
    return rl.data.as_pairs(rows)


def test_a_signal_that_only_hears_what_is_said_is_right_at_every_level(pairs):
    ev = style_accuracy(taste(right=4.0, length=0.0), pairs)
    assert (ev.tier, ev.units) == (Tier.VULNERABILITY, Units.PROBABILITY)
    np.testing.assert_array_equal(ev.value, np.ones((3, 3)))
    assert [ev.interval(n).estimate for n in ("easy", "normal", "hard")] == [1, 1, 1]
    assert ev.interval("easy_less_hard").estimate == 0
    assert ev.provenance.cost_forwards == 2 * 16 + 6 * 16


def test_a_signal_that_only_counts_words_is_right_where_style_is(pairs):
    ev = style_accuracy(taste(right=0.0, length=4.0), pairs)
    assert ev.interval("easy").estimate > 0.95
    assert ev.interval("hard").estimate < 0.05
    assert ev.interval("normal").estimate == pytest.approx(0.5, abs=0.1)
    assert ev.interval("easy_less_hard").low > 0.8
    assert ev.interval("length.slope").low > 0
    assert ev.interval("length.correlation").estimate > 0.8
    observed = ev.tables["observed"].set_index(["of", "side"])["accuracy"]
    assert observed["length", "chosen has more"] == 1
    assert observed["length", "chosen has less"] == 0
    assert list(ev.tables["levels"]["level"]) == ["easy", "normal", "hard", "easy_less_hard"]


def test_the_matrix_is_chosen_style_against_rejected_style(pairs):
    signal = taste(right=1.0, length=3.0)
    ev = style_accuracy(signal, pairs)
    for a, one in enumerate(STYLES):
        for b, other in enumerate(STYLES):
            sides = [
                (i.prompt_text, styles_of(i.response)[s])
                for side, s in ((pairs.chosen, a), (pairs.rejected, b))
                for i in side
            ]
            scores = signal.score(sides).value.values
            won = (scores[:16] > scores[16:]).mean()
            found = ev.value.sel(chosen_style=one, rejected_style=other)
            assert found == pytest.approx(won, abs=1e-6)
    cells = ev.value.values
    assert ev.interval("hard").estimate == pytest.approx(cells[np.triu_indices(3, 1)].mean())
    assert ev.interval("easy").estimate == pytest.approx(cells[np.tril_indices(3, -1)].mean())
    assert ev.interval("normal").estimate == pytest.approx(np.diag(cells).mean())


def test_cells_of_a_pair_are_one_lineage():
    rng = np.random.default_rng(2)
    sides = rng.normal(size=(2, 30, 3)) + rng.normal(size=(2, 30, 1))
    margins = sides[0, :, :, None] - sides[1, :, None, :]
    lineages = np.array([f"l{k}" for k in range(30)], dtype=object)
    found = {i.name: i for i in _levels(margins, lineages)}
    for name, cells in (("easy", [3, 6, 7]), ("normal", [0, 4, 8]), ("hard", [1, 2, 5])):
        won = margins.reshape(30, 9)[:, cells] > 0
        i = found[name]
        assert (i.n, i.clusters) == (90, 30)
        # One mean a pair has the same error, and each pair counts once in it.
        assert i.se == pytest.approx(won.mean(1).std(ddof=1) / np.sqrt(30), rel=1e-9)
        assert i.n_effective < 60


def test_styles_grow_richer_and_keep_the_words():
    plain, longer, marked = styles_of("**One** thing is so. Another is not.")
    assert plain == "One thing is so. Another is not."
    assert longer.startswith(f"{plain} ")
    assert longer.endswith(f": {plain}")
    assert marked.startswith("**One thing is so.**\n\n- Another is not.\n- ")
    assert [marks_of(t) for t in (plain, longer, marked)] == [0, 0, 4]
    for none in (
        "One only.",
        "- a list\n- of two",
        "Code. Is here.\n```\nx\n```",
        "1. One.\n2. Two.",
    ):
        assert styles_of(none) is None


def test_pairs_without_all_styles_are_named(pairs):
    some = [(p.chosen.prompt_text, p.chosen.response, p.rejected.response) for p in pairs[:4]]
    long = " ".join("So it is, and so it stays." for _ in range(16))
    ev = style_accuracy(
        taste(1.0, 1.0), [*some, ("q", "Only one.", "Two. Two."), ("r", long, "Two. Two.")]
    )
    left = ev.tables["left_out"].set_index("pair")["reason"]
    assert left.tolist() == [
        "chosen: fewer than two sentences, or a list or code",
        "longer than the model reads in one of the styles",
    ]
    assert ev.interval("normal").n == 3 * 4
    none = style_accuracy(taste(1.0, 1.0), [("q", "One.", "No."), ("r", "Yes.", "Nope.")])
    assert np.isnan(none.value).all()
    assert none.tables["levels"]["accuracy"].isna().all()
    for name in ("easy", "normal", "hard", "easy_less_hard"):
        i = none.interval(name)
        assert i.n == 0
        assert np.isnan([i.estimate, i.low, i.high]).all()
        assert i.note == "no pair has every style on both sides; the table left_out says why"


def test_pairs_of_two_prompts_say_nothing_of_length():
    sides = [(f"p{k}", f"q{k}") for k in range(3)]
    pairs = Pairs(
        Pair(Item.of(p, "One. Two."), Item.of(q, "Three."), str(k), str(k))
        for k, (p, q) in enumerate(sides)
    )
    ev = style_accuracy(taste(1.0, 1.0), pairs)
    for name in ("length.slope", "length.correlation"):
        assert np.isnan(ev.interval(name).estimate)
        assert ev.interval(name).note == "no prompt has two responses"


def test_a_sample_and_refusals(pairs):
    signal = taste(1.0, 1.0)
    assert style_accuracy(signal, pairs, max_pairs=4).interval("normal").n == 12
    with pytest.raises(DataError, match="styles need a prompt and a response"):
        style_accuracy(signal, [{"text_chosen": "a", "text_rejected": "b"}])
