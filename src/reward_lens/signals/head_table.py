"""The head conventions of published reward models: one row each, data only.

A new convention is one more row. What a row says of a public checkpoint comes from the project
named in its ``source``; where names were not certain, keys and shapes decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class HeadRow:
    """One way to store and read a reward head.

    Attributes
    ----------
    name : str
        What ``head=`` takes.
    keys : tuple of str
        Regular expressions; each must match a key of the checkpoint, and whatever one of them or
        of ``optional`` matches belongs to the head.
    form : {"linear", "mlp", "gated"}
        ``linear``: ``<stem>.weight`` ``[rows, width]``; ``mlp``: ``<stem>.0``, ``<stem>.2``, … with
        an activation between; ``gated``: rows, a gate network and a transform of the rows.
    stem : str
        Key prefix of the weights.
    bias : {"no", "yes", "any"}
    rows : {"one", "any"}
    rule : str
        Read rule (see :func:`reward_lens.backbone.reading.read_index`); ``config`` where the
        configuration's ``pooling`` says it.
    source : str
        Who stores heads so, and what to know about it.
    optional : tuple of str
        Keys that may be there as well.
    activation : {"none", "relu"}
        Between the layers of an ``mlp`` and of a gate.
    normaliser : {"none", "config", "stored"}
        ``(r − mean) / std`` from the configuration, or from buffers in the checkpoint.
    eos : str, optional
        What the encoder does at the end of the text.
    class_rules : tuple of (str, str)
        Class-name pattern -> read rule, where classes with the same keys read differently.
    """

    name: str
    keys: tuple[str, ...]
    form: str
    stem: str
    bias: str
    rows: str
    rule: str
    source: str
    optional: tuple[str, ...] = ()
    activation: str = "none"
    normaliser: str = "none"
    eos: str | None = None
    class_rules: tuple[tuple[str, str], ...] = ()

    def owns(self, key: str) -> bool:
        """Whether a key of a checkpoint belongs to this head."""
        return any(re.search(p, key) for p in (*self.keys, *self.optional))

    def rule_for(self, classes: Iterable[str]) -> str:
        """The read rule for a checkpoint whose configuration names these classes."""
        for pattern, rule in self.class_rules:
            if any(re.search(pattern, c) for c in classes):
                return rule
        return self.rule


HEADS: tuple[HeadRow, ...] = (
    HeadRow(
        name="value_head",
        keys=(r"^value_head\.weight$",),
        form="linear",
        stem="value_head",
        bias="no",
        rows="one",
        rule="last",
        normaliser="config",
        eos="overwrite",
        source="OpenRLHF before its head was named score, and models trained with it; the last "
        "token of every text is overwritten by eos there",
    ),
    HeadRow(
        name="reward_head",
        keys=(r"^reward_head\.weight$",),
        optional=(r"^reward_head\.bias$",),
        form="linear",
        stem="reward_head",
        bias="any",
        rows="one",
        rule="last",
        source="LLaVA-RLHF and similar; reads the last token",
    ),
    HeadRow(
        name="v_head.summary",
        keys=(r"^v_head\.summary\.weight$", r"^v_head\.summary\.bias$"),
        form="linear",
        stem="v_head.summary",
        bias="yes",
        rows="one",
        rule="last",
        source="TRL's value head (LLaMA-Factory, Skywork-VL-Reward, GRM with a linear head); the "
        "language model's own output layer is kept beside it and not used",
    ),
    HeadRow(
        name="v_head.summary mlp",
        keys=(r"^v_head\.summary\.\d+\.weight$", r"^v_head\.summary\.\d+\.bias$"),
        form="mlp",
        stem="v_head.summary",
        bias="yes",
        rows="one",
        rule="last",
        activation="relu",
        source="GRM (Ray2333/GRM-*-sftreg)",
    ),
    HeadRow(
        name="v_head",
        keys=(r"^v_head\.weight$",),
        form="linear",
        stem="v_head",
        bias="no",
        rows="one",
        rule="before_first_pad",
        source="Starling-RM; reads the token before the first padding, which in a text without "
        "padding is the last. InternLM2 and Athene use the key for other read positions",
        class_rules=((r"^InternLM", "last"),),
    ),
    HeadRow(
        name="regression_head",
        keys=(r"^regression_head\.weight$",),
        form="linear",
        stem="regression_head",
        bias="no",
        rows="one",
        rule="last",
        source="UltraRM, Eurus-RM",
    ),
    HeadRow(
        name="score_head",
        keys=(r"^score_head\.weight$",),
        optional=(r"^score_head\.bias$", r"^normalizer\.(mean|var|count)$"),
        form="linear",
        stem="score_head",
        bias="any",
        rows="any",
        rule="last",
        normaliser="stored",
        source="Beaver (safe-rlhf): config.do_normalize and config.score_type choose the "
        "normaliser; a cost model's score is a cost, lower is better",
    ),
    HeadRow(
        name="score mlp",
        keys=(r"^score\.\d+\.weight$", r"^score\.\d+\.bias$"),
        form="mlp",
        stem="score",
        bias="yes",
        rows="one",
        rule="last",
        activation="relu",
        source="INF-ORM (reads the token before the first padding), Qwen2.5-Math-RM, WorldPM",
        class_rules=((r"^INFORM", "before_first_pad"),),
    ),
    HeadRow(
        name="gated",
        keys=(
            r"^regression_layer\.weight$",
            r"^reward_transform_matrix$",
            r"^gating\.layers\.\d+\.weight$",
            r"^gating\.logit_scale$",
        ),
        optional=(r"^gating\.layers\.\d+\.(bias|running_mean|running_var|num_batches_tracked)$",),
        form="gated",
        stem="regression_layer",
        bias="no",
        rows="any",
        rule="rightmost_non_pad",
        activation="relu",
        source="ArmoRM (19 objectives) and QRM (rows are quantiles of objectives, batch norm in "
        "the gate); the score weighs the rows by a gate read off the prompt",
        class_rules=((r"Gating3", "before_first_pad"),),
    ),
    HeadRow(
        name="regression_layer",
        keys=(r"^regression_layer\.weight$",),
        form="linear",
        stem="regression_layer",
        bias="no",
        rows="any",
        rule="rightmost_non_pad",
        source="the rows of an ArmoRM or QRM kind of model without a gate; with num_quantiles in "
        "the configuration a row is the mean of its quantiles",
    ),
    HeadRow(
        name="out_proj",
        keys=(r"^out_proj\.weight$", r"^out_proj\.bias$"),
        form="linear",
        stem="out_proj",
        bias="yes",
        rows="one",
        rule="config",
        source="OpenAssistant's GPT-NeoX reward models; config.pooling is last or mean. The "
        "published mean multiplies [batch, length, width] by [batch, length], which does not "
        "broadcast as meant; the mean over the text's tokens is taken here",
    ),
)

#: Keys of checkpoints that are no scalar reward model, whatever class they name.
REFUSED: tuple[tuple[str, str], ...] = (
    (
        r"^head_layer\.",
        "this is a pair ranker (PairRM kind): it compares two candidates in one text and has no "
        "score for one response",
    ),
    (
        r"^prompt_head\.",
        "this is a general preference model (GPM kind): it compares response vectors by a skew "
        "product that depends on the prompt and has no score for one response",
    ),
)
#: Class names of graders whose head has the keys of a reward head but another meaning.
REFUSED_CLASSES: tuple[tuple[str, str], ...] = (
    (
        r"ProcessReward|PRM",
        "this is a process reward model: it grades marked steps, not the response at its end",
    ),
    (
        r"^Athene",
        "Athene reads an extra token that is appended to the text; pass head='v_head' and give "
        "texts that end in it",
    ),
)
#: ``model_type`` of published configurations whose trunk transformers has under another name.
ALIASES: dict[str, str] = {"gpt_neox_reward_model": "gpt_neox", "qwen2_rm": "qwen2"}
#: Text that announces the assistant's last turn, by model type, for gated heads.
GATE_TEXTS: dict[str, str] = {
    "llama": "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "gemma2": "<end_of_turn>\n<start_of_turn>model\n",
}


def row_named(name: str) -> HeadRow | None:
    """Return the row of a name, or ``None``."""
    return next((r for r in HEADS if r.name == name), None)


def matching(keys: Iterable[str]) -> tuple[dict[str, HeadRow], dict[str, tuple[str, ...]]]:
    """Which rows' keys are in a checkpoint.

    Returns
    -------
    whole, partial : dict, dict
        Name -> row for rows whose every key is there; name -> patterns that nothing matches for
        rows of which only a part is.
    """
    names = list(keys)
    whole: dict[str, HeadRow] = {}
    partial: dict[str, tuple[str, ...]] = {}
    for row in HEADS:
        absent = tuple(p for p in row.keys if not any(re.search(p, k) for k in names))
        if not absent:
            whole[row.name] = row
        elif len(absent) < len(row.keys):
            partial[row.name] = absent
    if "gated" in whole:
        del whole["regression_layer"]  # the same tensor, as a part of the gated head
    return whole, partial


def plain(pattern: str) -> str:
    """A key pattern as a person would write it."""
    return pattern.strip("^$").replace("\\d+", "N").replace("\\", "")
