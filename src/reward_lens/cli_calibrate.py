"""The command ``calibrate``: scorecards of instruments on a model, kept in a store."""

from __future__ import annotations

import json as jsonlib
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reward_lens.cli_options import (
    INTERRUPTED,
    Bars,
    Base,
    BatchTokens,
    Bos,
    Columns,
    Device,
    Download,
    Dtype,
    Eos,
    Head,
    Json,
    Limit,
    Model,
    Position,
    Readout,
    Revision,
    Sign,
    Template,
    Truncate,
    checked_truncate,
    columns_of,
    load,
    plain_errors,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_lens.data import Pairs
    from reward_lens.evidence import EvidenceStore, Scorecard
    from reward_lens.organisms.calibration_cards import Calibration

#: Where scorecards are kept if nothing is said.
STORE = Path("reward-lens.db")


def calibrate(
    ctx: typer.Context,
    model: Model,
    pairs: Annotated[
        str | None,
        typer.Argument(help="Pairs whose texts rules are planted on; the shipped ones by default."),
    ] = None,
    store: Annotated[Path, typer.Option(help="Evidence store; made if it is missing.")] = STORE,
    instruments: Annotated[
        str | None,
        typer.Option(
            help="Names with commas between, of lens, attribution, attribution_heads, patch_grid, "
            "patch_grid_heads, path_effects, attribution_patching; what an audit leans on by "
            "default: lens, attribution, patch_grid, path_effects."
        ),
    ] = None,
    doses: Annotated[
        str | None,
        typer.Option(
            help="Sizes of the rules, in SDs of the margin; 0.5,1,2 by default. Each costs 21 "
            "models with a rule in them. With fewer it is known less closely from which size on "
            "rules are found: a reading smaller than the smallest dose is never calibrated."
        ),
    ] = None,
    max_pairs: Annotated[
        int,
        typer.Option(
            help="A sample of this size is taken of more. Time grows with it. A card speaks of "
            "measurements on this many pairs, up to ten times as many; with fewer there is more "
            "noise, and only larger rules are found."
        ),
    ] = 64,
    seed: Annotated[int, typer.Option(help="Of the sample and the organisms.")] = 0,
    json: Json = False,
    limit: Limit = None,
    columns: Columns = None,
    truncate: Truncate = "error",
    readout: Readout = None,
    dtype: Dtype = None,
    device: Device = None,
    head: Head = None,
    position: Position = "native",
    template: Template = None,
    bos: Bos = None,
    eos: Eos = None,
    sign: Sign = None,
    base: Base = None,
    revision: Revision = None,
    batch_tokens: BatchTokens = 4096,
    allow_download: Download = False,
) -> None:
    """Plant rules in a model, see which instruments find them, and keep their scorecards.

    What is measured is kept at once, so that the same command goes on after an interrupt. Exits 1
    if an instrument fails its card or none has one, 2 if the model cannot be calibrated.
    """
    cut = checked_truncate(truncate)
    options: dict[str, Any] = {}
    if instruments is not None:
        options["instruments"] = tuple(n.strip() for n in instruments.split(",") if n.strip())
    if doses is not None:
        options["doses"] = _numbers(doses)
    from reward_lens.assets import asset
    from reward_lens.auditing import fitting_pairs
    from reward_lens.data import load_pairs
    from reward_lens.errors import CapabilityError
    from reward_lens.evidence import EvidenceStore
    from reward_lens.organisms.calibration import calibrate as run_calibration
    from reward_lens.organisms.instrument_specs import named_specs

    with plain_errors():
        named_specs(options.get("instruments", ("lens",)))  # a wrong name is no fault of the model
        source = asset("demo/pairs.jsonl") if pairs is None else pairs
        if pairs is None:
            typer.echo("rules are planted on texts of the pairs that are shipped", err=True)
        given: Pairs = load_pairs(
            source, limit=limit, allow_download=allow_download, **columns_of(columns)
        )
        signal = load(model, ctx)
        signal.readout(readout or signal.default_readout)  # nor is an unknown readout
        fit, _ = fitting_pairs(signal, given, cut)
        with EvidenceStore(store) as opened:
            try:
                with interruptible(opened, "no scorecard was made"), organism_bar() as progress:
                    found = run_calibration(signal, fit, store=opened, max_pairs=max_pairs,
                                            seed=seed, readout=readout, truncate=cut,
                                            batch_tokens=batch_tokens, progress=progress,
                                            **options)  # fmt: skip
            except CapabilityError as error:
                raise CapabilityError(not_calibrated(str(error))) from error
            records, hash_of_last = len(opened), opened.head
    if not found.cards:
        typer.echo(f"reward-lens: {not_calibrated(_reasons(found))}", err=True)
    if json:
        typer.echo(_as_json(found, store, hash_of_last))
    else:
        say(found)
        typer.echo(f"{store}: {records} records, head {hash_of_last}")
    raise typer.Exit(0 if found.passed else 1)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        typer.echo(
            f"reward-lens: --doses {text}: give numbers with commas between: 0.5,1,2", err=True
        )
        raise typer.Exit(2) from None


def not_calibrated(why: str) -> str:
    """That a calibration made no scorecard, why, and what follows."""
    return (
        f"cannot be calibrated: {why}. Without scorecards everything that is read on this model "
        f"stays exploratory"
    )


def _reasons(found: Calibration) -> str:
    """Why there is no card, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for name, why in found.skipped.items():
        by_reason.setdefault(why, []).append(name)
    reasons = [f"{', '.join(names)}: {why}" for why, names in by_reason.items()]
    return "; ".join(reasons or found.notes) or "no rule could be planted"


@contextmanager
def interruptible(store: EvidenceStore | None, lost: str, otherwise: str = "") -> Iterator[None]:
    """Where the run is interrupted, say what is kept and how to go on; exits 130.

    Parameters
    ----------
    lost : str
        What was not made.
    otherwise : str
        What is said where there is no store.
    """
    before = 0 if store is None else len(store)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"\nreward-lens: interrupted; {lost}", err=True)
        if store is None:
            typer.echo(otherwise, err=True)
        else:
            new = [e.instrument for e in store.find(since=before)]
            kept = f"{len(new)} new: {', '.join(dict.fromkeys(new))}" if new else "nothing new"
            typer.echo(f"{store.path} keeps what was measured ({kept})", err=True)
            typer.echo("the same command goes on from there", err=True)
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def organism_bar() -> Iterator[Callable[[int, int], None]]:
    """A progress bar over organisms, which appears with the first."""
    with ExitStack() as stack:
        bar: list[Any] = []

        def told(done: int, total: int) -> None:
            if not bar:
                bar.append(stack.enter_context(Bars().stage("calibration", total)))
            bar[0](1)

        yield told


def say(found: Calibration) -> None:
    """Print what each card says."""
    for name, card in found.cards.items():
        for line in _lines(name, card, found.seconds.get(name, math.nan)):
            typer.echo(line)
    for name, why in found.skipped.items():
        typer.echo(f"{name}: no scorecard: {why}")
    for note in found.notes:
        typer.echo(f"note: {note}")
    planting = found.seconds.get("planting", 0.0)
    typer.echo(f"{planting:.0f} s for planting, {sum(found.seconds.values()):.0f} s in all")


def _lines(name: str, card: Scorecard, seconds: float) -> Iterator[str]:
    taken, bound = card.false_positives
    share, n = card.coverage
    yield f"{name}: {'passed' if card.passed else 'FAILED: ' + '; '.join(card.failures)}"
    found = ", ".join(
        f"{r.found} of {r.organisms} at {r.dose:g}" for r in card.recovery.itertuples()
    )
    dose = card.detection_dose
    finds = f"finds rules from {dose:g} SD on, the median at {card.size:.2f} of its size"
    if math.isnan(dose):
        finds = "finds rules of no dose reliably"
    yield f"  {finds}"
    yield f"  finds {found} SD; threshold {card.threshold:.2f} SD"
    yield f"  takes {taken} of {len(card.nulls)} nulls for rules: at most {bound:.1%} at 95 %"
    if n:
        yield f"  its {card.level:.0%} intervals hold {share:.1%} of {n} planted effects"
    low, high = card.n_pairs
    yield f"  speaks of {low} to {high} pairs; {card.cost_forwards:.0f} forwards, {seconds:.0f} s"
    yield f"  {card.id}"


def _as_json(found: Calibration, store: Path, head: str) -> str:
    """What was found, as strict JSON: what is unknown is null."""
    rows = [
        {str(k): None if v != v else v for k, v in row.items()}
        for row in found.to_dataframe().to_dict("records")
    ]
    for row in rows:
        row["failures"] = list(found.cards[str(row["instrument"])].failures)
    return jsonlib.dumps({
        "store": str(store), "head": head, "passed": found.passed, "cards": rows,
        "skipped": dict(found.skipped), "notes": list(found.notes),
    }, allow_nan=False)  # fmt: skip
