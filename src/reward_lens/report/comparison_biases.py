"""The section of biases of two models: the same edits, each model in its own unit and threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from markupsafe import Markup

from reward_lens.evidence import Evidence
from reward_lens.report import figures
from reward_lens.report.accuracy_figures import Effect, effects
from reward_lens.report.biases import like_neutral
from reward_lens.report.comparison_parts import LETTERS, both, joint_labels, names_of, stated
from reward_lens.report.numbers import Numbers
from reward_lens.report.parts import MEAN_INTERVALS, Cell, Figure, Part, Section, Table
from reward_lens.wording import counted

BATTERY, STYLE = "bias_battery", "style_accuracy"
#: Edits that the figure shows, two rows each; and findings of a kind that are put in words.
MOST, MOST_SAID = 12, 3
_NONE_NAMED = (
    "No bias is named in either, of {} edits tried: no effect lies wholly beyond what random heads "
    "on the same trunk show. That proves no absence."
)
_LEVELS = ("easy", "normal", "hard")
#: By which model an edit is named, in the order of a reader's interest.
VERDICTS = ("both", "both, opposite", "a", "b", "neither")


@dataclass(frozen=True)
class SharedEdits:
    """The edits that were made with both models.

    Attributes
    ----------
    a, b : DataFrame
        The tables ``effects`` of both batteries.
    plain : (set of str, set of str)
        Phrases of a tone that do no more than a sentence that says nothing.
    """

    a: pd.DataFrame
    b: pd.DataFrame
    plain: tuple[set[str], set[str]]

    @classmethod
    def of(cls, found: tuple[Evidence, Evidence]) -> SharedEdits:
        """From both batteries."""
        one, other = (e.tables["effects"] for e in found)
        return cls(one, other, (like_neutral(found[0]), like_neutral(found[1])))

    @cached_property
    def rows(self) -> list[tuple[int, int]]:
        """Rows of every shared edit in both tables, in the order of the first."""
        at = {str(edit): k for k, edit in enumerate(self.b["edit"])}
        return [(k, at[str(edit)]) for k, edit in enumerate(self.a["edit"]) if str(edit) in at]

    @cached_property
    def alone(self) -> tuple[list[str], list[str]]:
        """Edits that only the first, or only the second, was tried with."""
        one, other = (dict.fromkeys(t["edit"].astype(str)) for t in (self.a, self.b))
        return [e for e in one if e not in other], [e for e in other if e not in one]

    def verdict(self, pair: tuple[int, int]) -> str:
        """One of :data:`VERDICTS`."""
        named = [bool(t["named"].iloc[k]) for t, k in zip((self.a, self.b), pair, strict=True)]
        up = [t["mean"].iloc[k] > 0 for t, k in zip((self.a, self.b), pair, strict=True)]
        if all(named):
            return "both" if up[0] == up[1] else "both, opposite"
        return "a" if named[0] else "b" if named[1] else "neither"

    def size(self, pair: tuple[int, int]) -> float:
        """The larger of both effects, each for its threshold; 0 where there is none."""
        sizes = [abs(t["mean"].iloc[k]) / t["threshold"].iloc[k]
                 for t, k in zip((self.a, self.b), pair, strict=True)]  # fmt: skip
        return float(np.nan_to_num(sizes).max())

    def tone_only(self, pair: tuple[int, int]) -> bool:
        """Whether what is rewarded is any added sentence, with every model that names the edit."""
        edit, verdict = str(self.a["edit"].iloc[pair[0]]), self.verdict(pair)
        who = {"a": [0], "b": [1], "neither": []}.get(verdict, [0, 1])
        return bool(who) and all(edit in self.plain[k] for k in who)


def biases(evidence: Mapping[str, Evidence], number: Numbers) -> Section | None:
    """The section, with what there is of batteries and of style; nothing without either."""
    batteries, styles = both(evidence, BATTERY), both(evidence, STYLE)
    parts = [_style(styles, number)] if styles else []
    if batteries is None:
        return Section("biases", "Are they biased alike?", parts=parts) if parts else None
    shared = SharedEdits.of(batteries)
    return Section(
        "biases", "Are they biased alike?",
        [alike(evidence, number, most=2 * MOST_SAID), *_how(batteries, number)],
        [_figure(batteries, shared)], _tables(shared, number), parts=parts,
    )  # fmt: skip


def alike(evidence: Mapping[str, Evidence], number: Numbers, most: int = MOST_SAID) -> Markup:
    """What is named by both, by one, by neither, in words with sizes.

    Places of one edit are named together; a phrase of a tone that does no more than any added
    sentence is told apart.
    """
    batteries = both(evidence, BATTERY)
    assert batteries is not None
    shared = SharedEdits.of(batteries)
    kinds: dict[str, list[tuple[int, int]]] = {v: [] for v in VERDICTS}
    tones: dict[str, None] = {}
    for pair in sorted(shared.rows, key=lambda p: -shared.size(p)):
        if shared.tone_only(pair):
            tones[str(shared.a["name"].iloc[pair[0]])] = None
        else:
            kinds[shared.verdict(pair)].append(pair)
    heads = {"both": "Named in both", "both, opposite": "Named in both, in opposite directions",
             "a": "Only in a", "b": "Only in b"}  # fmt: skip
    said = [
        Markup("{}: {}.").format(head, _listed(shared, kinds[v], v, number, most))
        for v, head in heads.items()
        if kinds[v]
    ]
    if tones:
        said.append(Markup("No more than any added sentence does: {}.").format(", ".join(tones)))
    tried = len(shared.rows)
    if said:
        said.append(Markup("In neither: {} of {} edits.").format(len(kinds["neither"]), tried))
        said.append(Markup("Sizes are in median |margins| of each model."))
    else:
        said.append(Markup(_NONE_NAMED).format(tried))
    return Markup(" ").join([*said, *_few(batteries)])


def _listed(
    shared: SharedEdits, pairs: Sequence[tuple[int, int]], verdict: str, number: Numbers, most: int
) -> Markup:
    """Findings of a kind, those of one edit and direction together, the largest first."""
    groups: dict[tuple[str, bool], list[tuple[int, int]]] = {}
    for pair in pairs:
        up = bool((shared.b if verdict == "b" else shared.a)["mean"].iloc[pair[verdict == "b"]] > 0)
        groups.setdefault((str(shared.a["name"].iloc[pair[0]]), up), []).append(pair)
    said = [_in_words(shared, rows, verdict, number) for rows in list(groups.values())[:most]]
    if len(groups) > most:
        said.append(Markup("{} more, in the table").format(len(groups) - most))
    return Markup(", ").join(said)


def _in_words(
    shared: SharedEdits, rows: Sequence[tuple[int, int]], verdict: str, number: Numbers
) -> Markup:
    one, *others = rows
    table = shared.b if verdict == "b" else shared.a
    words = str(table["direction"].iloc[one[verdict == "b"]])
    if verdict == "both, opposite":  # the direction is that of the first
        words = str(table["edit"].iloc[one[0]])
    shown = LETTERS if verdict.startswith("both") else (verdict,)
    sizes = Markup(", ").join(
        Markup("{}{}").format(
            number(f"{BATTERY}_{letter}", f"table/effects/{one[letter == 'b']}/mean", "+.2f"),
            f" ({letter})" if len(shown) > 1 else "",
        )
        for letter in shown
    )
    places = " and ".join(str(shared.a["position"].iloc[p[0]]) for p in others)
    return Markup("{} by {}{}").format(words, sizes, f" (also at the {places})" if places else "")


def _few(batteries: tuple[Evidence, Evidence]) -> list[str]:
    """Whose trunk lets little be named."""
    few = [
        letter
        for letter, e in zip(LETTERS, batteries, strict=True)
        if str(e.tables["null"]["note"].iloc[0])
    ]
    if not few:
        return []
    whose = "trunks of both models" if len(few) == 2 else f"trunk of model {few[0]}"
    return [f"On the {whose} random heads show much of what the head does, so little can be named."]


def _how(batteries: tuple[Evidence, Evidence], number: Numbers) -> list[Cell]:
    """How the verdicts are reached, and what may not be read into them."""
    said: list[Cell] = [
        "The same responses are edited in ways that should not matter and scored again with both. "
        "An effect is the edited score minus the original one, in units of the model's own median "
        "|margin|; it is named where its interval lies wholly beyond that model's own threshold: "
        "what the largest of all effects of random heads on its trunk stays below 19 times in 20. "
        "What is named in one model only need not differ between the two: their thresholds "
        "do."
    ]
    for letter, name in zip(LETTERS, names_of(BATTERY), strict=True):
        said.append(
            Markup("Model {}: {} responses of {} pairs, median |margin| {} reward; of {} other "
                   "random heads {} would be said to have a bias.").format(
                letter,
                *(number(name, f"table/unit/0/{c}", f)
                  for c, f in (("responses", "d"), ("pairs", "d"), ("median_margin", ".3g"))),
                *(number(name, f"table/null/0/{c}", "d") for c in ("test_heads", "naming_any")))
        )  # fmt: skip
    return said


def _figure(batteries: tuple[Evidence, Evidence], shared: SharedEdits) -> Figure:
    """Both effects of an edit below each other: those named first, then the largest."""
    order = sorted(
        shared.rows, key=lambda p: (VERDICTS.index(shared.verdict(p)) == 4, -shared.size(p))
    )[:MOST]
    drawn = [
        _effect(table.iloc[k], letter)
        for pair in order
        for letter, table, k in zip(LETTERS, (shared.a, shared.b), pair, strict=True)
    ]
    some = "" if len(order) == len(shared.rows) else f", the {len(order)} largest of them"
    responses = int(batteries[0].tables["unit"]["responses"].iloc[0])
    return Figure(
        effects(drawn, "change of the score (median |margins|)",
                "Effects of the same edits on both models"),
        f"Mean change of the score by edit, a above b{some}. Filled: raises it; outlined: lowers "
        f"it; whiskers: 95 % intervals; brackets: the smallest effect that counts for that model. "
        f"▸ marks the named ones.",
        joint_labels(*batteries, units="share", n=f"n = at most {responses} responses",
                     intervals=MEAN_INTERVALS),
        names_of(BATTERY),
    )  # fmt: skip


def _effect(row: pd.Series, letter: str) -> Effect:
    mean, low, high, least = (float(row[c]) for c in ("mean", "low", "high", "threshold"))
    return Effect(f"{row['edit']} · {letter}", mean, low, high, least, bool(row["named"]))


def _tables(shared: SharedEdits, number: Numbers) -> list[Table]:
    columns = {"mean": "+.2f", "low": "+.2f", "high": "+.2f", "threshold": ".2f", "n": "d"}
    rows: list[list[Cell]] = [
        [
            str(shared.a["edit"].iloc[pair[0]]),
            shared.verdict(pair),
            *(number(name, f"table/effects/{k}/{c}", form)
              for name, k in zip(names_of(BATTERY), pair, strict=True)
              for c, form in columns.items()),
        ]
        for pair in shared.rows
    ]  # fmt: skip
    head = ["edit", "named in", *(f"{c} {letter}" for letter in LETTERS
            for c in ("effect", "low", "high", "threshold", "responses"))]  # fmt: skip
    found = [Table("Every shared edit with both models", head, rows)]
    if any(shared.alone):
        alone: list[list[Cell]] = [
            [edit, letter]
            for letter, edits in zip(LETTERS, shared.alone, strict=True)
            for edit in edits
        ]
        found.append(Table("Edits that were tried with one model only", ["edit", "model"], alone))
    return found


def _style(styles: tuple[Evidence, Evidence], number: Numbers) -> Part:
    """Accuracy by style, and score against length, of both."""
    text: list[Cell] = []
    drawn: list[Figure] = []
    tables: list[Table] = []
    names = names_of(STYLE)
    with_styles = [bool(e.interval("easy_less_hard").n) for e in styles]
    if all(with_styles):
        text.append(Markup(
            "Both responses of a pair are written plainly, longer, and longer with markdown. Easy: "
            "the chosen response has the richer style; normal: the same; hard: the plainer. From "
            "easy to hard the accuracy falls by {} with a and by {} with b.").format(
            *(stated(number, n, e, "easy_less_hard", ".2f")
              for n, e in zip(names, styles, strict=True)))
        )  # fmt: skip
        points = [
            figures.Row(f"{level} · {letter}", i.estimate, i.low, i.high)
            for level in _LEVELS
            for letter, e in zip(LETTERS, styles, strict=True)
            for i in (e.interval(level),)
        ]
        pairs = ", ".join(
            f"{counted(e.interval('easy_less_hard').n, 'pair')} ({letter})"
            for letter, e in zip(LETTERS, styles, strict=True)
        )
        drawn.append(Figure(
            figures.rows(points, "share with the chosen response ahead",
                         "Accuracy of both by style with 95 % intervals", mark=0.5),
            "Accuracy where style is with, even with, or against the chosen response; whiskers are "
            "95 % intervals, the line is a coin.",
            joint_labels(*styles, n=f"n = {pairs}", intervals=MEAN_INTERVALS), names,
        ))  # fmt: skip
    else:
        text.append("No pair can be written in all styles, so that style is not controlled here.")
    kinds = {"accuracy, easy": "easy", "accuracy, normal": "normal", "accuracy, hard": "hard",
             "easy less hard": "easy_less_hard",
             "median |margins| per e-fold of length": "length.slope",
             "rank correlation of score and length": "length.correlation"}  # fmt: skip
    tables.append(Table("Style and length", ["measure", *LETTERS, "note"], [
        [words, *(stated(number, n, e, key, ".2f", brief=True)
                  for n, e in zip(names, styles, strict=True)),
         "; ".join(dict.fromkeys(i.note for e in styles if (i := e.interval(key)).note))]
        for words, key in kinds.items()
    ], open=True))  # fmt: skip
    return Part("Does style or length decide?", text, drawn, tables)
