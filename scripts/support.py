#!/usr/bin/env python3
"""Build every model of the zoo, judge it, and write ``docs/support.md``: ``support.py [NAME ...]``.

Every entry runs in a process of its own. The judge of a score is the model's own ``logits`` on one
unpadded text; everything else asks the public interface. With names, only those are run and their
rows printed; nothing is written.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "support.md"
TIMEOUT = 180  # seconds for one entry
_PRELOADED = ["zoo", "families", "reward_lens.signals", "reward_lens.instruments"]
sys.path.insert(0, str(ROOT / "tests"))

COLUMNS = ("conforms", "finest split", "completeness", "native gap", "batch gap", "padding gap")
HEAD = """\
# Which classifiers of transformers are understood, and how far

<!-- backbone {fingerprint} -->
<!-- transformers {transformers} -->

Written by `make support`; do not edit. Every row is a tiny random model of one type, built from its
configuration class, in float32. *Conforms*: `run_conformance` passes, and the scores equal the
model's own `logits` on one unpadded text at a time. *Finest split*: the finest decomposition of the
residual stream that verified numerically (`layer`, `sublayer`, `head`). *Completeness*: what the
sum of all writes misses of the score, over the sum of their sizes, at the text where it is largest.
The gaps are shares of the range of the scores: each text alone against the model's own logits;
between batch sizes {sizes}; and between ids given unpadded, padded on the left and padded on
the right. 1e-5 is allowed.

"""


@dataclass
class Row:
    """What one entry reached.

    Attributes
    ----------
    granularity : str
        ``none`` where the model could not be signal.
    completeness, native, batch, padding : float, optional
        ``None`` where it could not be measured; ``reasons`` says why.
    """

    name: str
    conforms: bool = False
    granularity: str = "none"
    completeness: float | None = None
    native: float | None = None
    batch: float | None = None
    padding: float | None = None
    reasons: list[str] = field(default_factory=list)

    def line(self) -> str:
        """One line of the table."""
        gaps = (self.completeness, self.native, self.batch, self.padding)
        cells = [self.name, "yes" if self.conforms else "**no**", self.granularity]
        cells += ["-" if g is None else f"{g:.0e}" for g in gaps]
        cells.append("; ".join(self.reasons).replace("|", "\\|").replace("\n", " "))
        return "| " + " | ".join(cells) + " |"


def judge(name: str) -> Row:
    """Build, wrap and measure one entry, in this process."""
    import torch
    import zoo
    from transformers.utils import logging

    import reward_lens as rl

    torch.set_num_threads(1)
    logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    row = Row(name)

    def tried(what: str, measure: Callable[[], Any]) -> Any:
        try:
            return measure()
        except Exception as error:  # a row of the table, whatever it is
            row.reasons.append(f"{what}: {type(error).__name__}: {error}")
            return None

    model = tried("build", lambda: zoo.make(name))
    native = tried("forward", lambda: zoo.native_scores(name, model))
    signal = tried(
        "wrap",
        lambda: rl.wrap_hf_model(model, zoo.tokenizer_for(name), conformance_quickcheck=False),
    )
    if native is None or signal is None:
        return row
    row.granularity = signal.meta.granularity
    row.reasons += [note for note in signal.meta.notes if "alone" in note]
    report = tried("conformance", lambda: rl.run_conformance(signal))
    scale = float(native.max() - native.min())

    def share(gap: float) -> float:
        return gap / scale

    row.native = tried("score", lambda: share(abs(zoo.scores_in(1, signal) - native).max()))
    row.batch = tried("batches", lambda: share(zoo.batch_gap(signal)))
    row.padding = tried("padded ids", lambda: share(zoo.padding_gap(signal)))
    if row.granularity in ("sublayer", "head"):
        row.completeness = tried("attribution", lambda: _completeness(signal))
    _conclude(row, signal.trunk.anatomy.missing, report)
    return row


def _completeness(signal: Any) -> float:
    """The larger completeness error of the splits that the signal offers."""
    from families import PAIRS

    import reward_lens as rl

    kinds = ("component", "head") if signal.meta.granularity == "head" else ("component",)
    found = [rl.attribution(signal, PAIRS, by=kind).tables["completeness"] for kind in kinds]
    return max(float(table["completeness"].iloc[0]) for table in found)


def _conclude(row: Row, missing: dict[str, str], report: Any) -> None:
    from zoo import EXACT

    row.reasons += _merged(missing)
    if report is None:
        return
    row.reasons += [f"{c.name}: {c.measured}" for c in report.checks if not c.passed]
    gaps = {"native": row.native, "batch": row.batch, "padding": row.padding}
    row.reasons += [f"{what} gap {gap:.0e}" for what, gap in gaps.items() if gap and gap > EXACT]
    row.conforms = report.passed and all(g is not None and g <= EXACT for g in gaps.values())


def _merged(missing: dict[str, str]) -> Iterable[str]:
    """Reasons with the places they are true of: ``L0.head, L2.head: why``."""
    places: dict[str, list[str]] = {}
    for place, reason in missing.items():
        places.setdefault(reason, []).append(place)
    return [f"{', '.join(where)}: {reason}" for reason, where in places.items()]


def _child(name: str, answer: Connection) -> None:
    answer.send(judge(name))


def _in_own_process(name: str) -> Row:
    # A server that has imported the libraries once and forks: importing takes longer than judging.
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(name, theirs))
    child.start()
    theirs.close()
    try:
        row = ours.recv() if ours.poll(TIMEOUT) else Row(name, reasons=[f"over {TIMEOUT} s"])
    except EOFError:
        child.join()
        row = Row(name, reasons=[f"its process ended with {child.exitcode}"])
    child.kill()
    child.join()
    sys.stderr.write(row.line() + "\n")
    return row


def table(rows: dict[str, Row], fingerprint: str) -> str:
    """The whole page; ``fingerprint`` is of the code that the rows were made with."""
    import zoo

    text = HEAD.format(
        fingerprint=fingerprint,
        transformers=version("transformers"),
        sizes=", ".join(map(str, zoo.SIZES)),
    )
    for group, entries in zoo.GROUPS.items():
        passed = sum(rows[name].conforms for name in entries)
        text += f"- {group}: {passed} of {len(entries)} conform\n"
    for group, entries in zoo.GROUPS.items():
        names = ("type", *COLUMNS, "what is missing, and why")
        text += f"\n## {group.capitalize()}\n\n| {' | '.join(names)} |\n"
        text += "|---" * len(names) + "|\n"
        text += "".join(rows[name].line() + "\n" for name in entries)
    return text


def short_of_expected(rows: Iterable[Row]) -> list[str]:
    """What fell below the committed expectation, in words."""
    from zoo_expected import EXPECTED, FAILING

    said = []
    for row in rows:
        if row.granularity != EXPECTED[row.name]:
            said.append(f"{row.name}: {row.granularity}, expected {EXPECTED[row.name]}")
        if not row.conforms and row.name not in FAILING:
            said.append(f"{row.name} does not conform: {'; '.join(row.reasons)}")
    return said


def main() -> int:
    """Run the entries asked for, or all of them, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="entries to run and print; all by default")
    asked = parser.parse_args()
    import zoo
    from code_fingerprint import code_fingerprint

    unknown = [name for name in asked.names if name not in zoo.ALL]
    if unknown:
        parser.error(f"no such entry: {', '.join(unknown)}")
    fingerprint = code_fingerprint(["backbone"])  # now: a change during the run makes it stale
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED)
    with ThreadPoolExecutor(2) as pool:
        rows = list(pool.map(_in_own_process, asked.names or zoo.ALL))
    if not asked.names:
        TABLE.write_text(table({row.name: row for row in rows}, fingerprint))
        sys.stdout.write(f"{TABLE}\n")
    said = short_of_expected(rows)
    sys.stdout.writelines(f"{line}\n" for line in said)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
