"""``reward-lens evidence``: look into a store, take it along, check that nobody touched it."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reward_lens.cli_options import Json, plain_errors

if TYPE_CHECKING:
    from reward_lens.evidence import EvidenceStore

evidence_app = typer.Typer(
    no_args_is_help=True, help="Look into an evidence store, export, import and verify it."
)

StoreFile = Annotated[Path, typer.Argument(metavar="STORE", help="File of an evidence store.")]
Head = Annotated[
    str | None, typer.Option(help="Hash that verify or ls printed earlier, to find a cut tail.")
]


def _open(path: Path) -> EvidenceStore:
    """The store, to look into it: it may lie where nothing can be written."""
    from reward_lens.evidence import EvidenceStore

    return EvidenceStore(path, create=False, read_only=True)


@evidence_app.command()
def ls(
    store: StoreFile,
    instrument: Annotated[str | None, typer.Option(help="Only records of this one.")] = None,
    kind: Annotated[
        str | None, typer.Option(help="evidence, scorecard, registration or outcome.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what was measured with a rule planted.")
    ] = False,
    json: Json = False,
) -> None:
    """List the records in order, with the rung of each evidence and the verdict of each scorecard.

    What was measured on organisms, to calibrate, is counted and left out, but for --all.
    """
    from reward_lens.evidence.records import KINDS

    if kind is not None and kind not in KINDS:
        typer.echo(f"reward-lens: --kind {kind}: choose one of {', '.join(KINDS)}", err=True)
        raise typer.Exit(2)
    with plain_errors(), _open(store) as opened:
        fault, head, table = opened.fault(), opened.head, opened.index().reset_index()
        total = len(table)
        for column, wanted in (("instrument", instrument), ("kind", kind)):
            if wanted is not None:
                table = table[table[column] == wanted]
        hidden = 0 if everything else int(table["planted"].sum())
        if hidden:
            table = table[~table["planted"]]
        records = [
            {**{str(k): None if v != v else v for k, v in row.items()}, **_verdict(opened, row)}
            for row in table.to_dict("records")
        ]
    if fault:
        typer.echo(f"reward-lens: {store} does not verify, so that nothing in it can be relied "
                   f"on: {fault}", err=True)  # fmt: skip
    if json:
        said = {"head": head, "total": total, "hidden": hidden, "records": records}
        typer.echo(jsonlib.dumps(said, ensure_ascii=False))
        return
    _print_table(records)
    count = f"{total}" if len(records) == total else f"{len(records)} of {total}"
    typer.echo(f"{count} records, head {head}")
    if hidden:
        typer.echo(
            f"{hidden} more were measured with a rule planted in the model: --all lists them"
        )


def _verdict(store: EvidenceStore, row: dict[Any, Any]) -> dict[str, Any]:
    """The rung of an evidence; whether a scorecard passed, and its detection dose."""
    from reward_lens.errors import EvidenceError
    from reward_lens.evidence import Scorecard

    if row["kind"] == "evidence":
        return {"trust": store.trust(row["id"]).name.lower()}
    if row["kind"] != "scorecard":
        return {"trust": ""}
    try:
        card = store.get(row["id"])
    except EvidenceError:  # altered, which the warning that the store does not verify is about
        return {"trust": "", "passed": None, "detection_dose": None}
    assert isinstance(card, Scorecard)
    dose = card.detection_dose
    return {"trust": "", "passed": card.passed, "detection_dose": None if dose != dose else dose}


def _print_table(records: list[dict[str, Any]]) -> None:
    shown = ["seq", "id", "kind", "instrument", "readout", "trust", "added", "note"]
    rows = [
        ["" if v is None else str(v) for v in ({**r, "note": _note(r)}[k] for k in shown)]
        for r in records
    ]
    widths = [max([len(h), *(len(r[k]) for r in rows)]) for k, h in enumerate(shown)]
    for row in [shown, *rows]:
        typer.echo("  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)).rstrip())


def _note(record: dict[str, Any]) -> str:
    if record["planted"]:
        return "a rule was planted"
    if record["kind"] != "scorecard":
        return ""
    if record["passed"] is None:
        return "cannot be read"
    dose = record["detection_dose"]
    found = "detects no dose reliably" if dose is None else f"detects from {dose:g} SD on"
    return f"{'passed' if record['passed'] else 'FAILED'}, {found}"


@evidence_app.command()
def show(
    store: StoreFile,
    id: Annotated[str, typer.Argument(metavar="ID", help="Of a record, or how it begins.")],
    json: Json = False,
) -> None:
    """Print the receipt of an evidence with its rung and why, or what another record says."""
    from reward_lens.errors import EvidenceError
    from reward_lens.evidence import Evidence

    with plain_errors(), _open(store) as opened:
        fitting = opened.beginning(id)
        if len(fitting) != 1:
            listed = f": {', '.join(fitting[:5])}" if fitting else "; `evidence ls` lists them"
            raise EvidenceError(f"{store}: {len(fitting)} records begin with {id!r}{listed}")
        record = opened.get(fitting[0])
        if json:
            said: dict[str, Any] = {"record": record.to_dict()}
            if isinstance(record, Evidence):
                standing = opened.standing(record.id)
                said["trust"] = {
                    "level": standing.level.name,
                    "because": standing.because,
                    "licence": standing.licence,
                    "above": dict(standing.above),
                    "below": dict(standing.below),
                    "records": standing.records,
                }
            typer.echo(jsonlib.dumps(said, allow_nan=False))
        else:
            typer.echo(record.receipt() if isinstance(record, Evidence) else record.summary())


@evidence_app.command()
def export(
    store: StoreFile,
    output: Annotated[Path, typer.Argument(help="OUT.jsonl or OUT.parquet.")],
    evidence_only: Annotated[
        bool, typer.Option("--evidence-only", help="Leave out all else, and the chain.")
    ] = False,
    json: Json = False,
) -> None:
    """Write all records with their chain to a file."""
    from reward_lens.cli_output import check_parent
    from reward_lens.evidence.transfer import export_records

    check_parent(output)
    with plain_errors(), _open(store) as opened:
        n, head = export_records(opened, output, evidence_only=evidence_only), opened.head
    if json:
        typer.echo(jsonlib.dumps({"output": str(output), "records": n, "head": head}))
    else:
        typer.echo(f"wrote {output}: {n} records, head {head}")


@evidence_app.command(name="import")
def import_(
    store: StoreFile,
    source: Annotated[Path, typer.Argument(help="A file of export, or *.evidence.jsonl.")],
    head: Head = None,
    json: Json = False,
) -> None:
    """Take over evidence, or a whole chain into a new store, which is made if it is missing."""
    from reward_lens.evidence import EvidenceStore
    from reward_lens.evidence.transfer import import_records

    if not source.is_file():
        typer.echo(f"reward-lens: {source}: there is no such file", err=True)
        raise typer.Exit(2)
    with plain_errors(), EvidenceStore(store) as opened:
        n = import_records(opened, source, head=head)
        total, now = len(opened), opened.head
    if json:
        typer.echo(jsonlib.dumps({"added": n, "records": total, "head": now}))
    else:
        typer.echo(f"{n} records added; {store}: {total} records, head {now}")


@evidence_app.command()
def verify(store: StoreFile, head: Head = None, json: Json = False) -> None:
    """Compute every id and the chain anew. Exits 1 and names what was altered or is missing."""
    with plain_errors(), _open(store) as opened:
        found = opened.verify(head)
    if json:
        faults = [{"seq": f.seq, "id": f.id, "what": f.what} for f in found.faults]
        said = {"ok": found.ok, "records": found.records, "head": found.head, "faults": faults}
        typer.echo(jsonlib.dumps(said))
    else:
        typer.echo(str(found))
        if found.ok and head is None:
            typer.echo("note the head elsewhere and give it as --head later: only with it are a "
                       "cut tail and a chain that was written anew found")  # fmt: skip
    raise typer.Exit(0 if found.ok else 1)
