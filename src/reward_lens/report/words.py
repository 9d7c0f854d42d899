"""The words of a page that a reader may not know, in a sentence each."""

from __future__ import annotations

from reward_lens.report.parts import Cell, Section, Table

_WORDS = {
    "calibrated, exploratory": "How far a number can be leaned on. A calibrated one was read by an "
    "instrument that found rules planted in this very model, and is as large as those; an "
    "exploratory one is a lead.",
    "component": "A part of a layer that adds to the residual stream: L0.attn_out is the attention "
    "of the first layer, L0.mlp_out its MLP, L0.H3 the fourth of its attention heads.",
    "depth": "How many layers have been run: 0 is the embedding, 1 is after the first layer.",
    "gauge": "Whether a number depends on the coordinates of the model's states. An invariant one "
    "does not.",
    "interval": "A range that holds the true value in 95 of 100 data sets like this one, if its "
    "note does not say otherwise.",
    "lineage": "What data that are not independent have in common, most often their prompt. "
    "Intervals count lineages, not rows.",
    "margin": "The score of the chosen response less that of the rejected one. Below 0 the model "
    "prefers the rejected one.",
    "median |margin|": "The size of a typical margin of these pairs, as a unit for effects.",
    "noise, denoise": "The chosen side gets a component's activation from the rejected side (what "
    "of the margin is lost?), or the other way round (what is gained?).",
    "norm frozen, norm applied": "Two ways to read the margin in the middle of the network: what "
    "the layers so far have written of the final score, and what the head would say of the state "
    "there.",
    "observational, causal, vulnerability": "Read off the model as it runs; measured by changing "
    "something inside it; measured by changing the text.",
    "prefix score": "The score of a text cut at a token.",
    "random heads": "Heads drawn by chance on the same network. What they reward too is no "
    "preference that training gave to this one.",
    "reward": "The unit of scores. It is fixed only up to a scale and a shift per prompt, so it "
    "cannot be compared between models.",
}


def words_section() -> Section:
    """The section that explains them, folded as a table."""
    rows: list[list[Cell]] = [[word, said] for word, said in _WORDS.items()]
    return Section(
        "words", "Words", tables=[Table("What the words mean", ["word", "meaning"], rows)]
    )
