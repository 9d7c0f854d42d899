"""The options of a command from a TOML file: ``--config audit.toml``."""

from __future__ import annotations

import difflib
import inspect
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args, get_type_hints

import typer

#: Tables of the file that hold limits; see :mod:`reward_lens.cli_limits`.
LIMITS = {"fail_under": "fail-under", "fail_over": "fail-over"}
#: What a type of an option is in TOML, in words.
_WORDS = {int: "a whole number", float: "a number", bool: "true or false"}
#: Options that can be given several times.
_SEVERAL = ("columns",)
_META = "reward_lens.limits"


def read_config(ctx: typer.Context, param: typer.CallbackParam, value: Path | None) -> Path | None:
    """Take options from a file, as defaults that those on the command line replace."""
    if value is None:
        return None
    given = _read(value)
    limits = {k: given.pop(k) for k in list(given) if k in LIMITS}
    ctx.meta[_META] = {k: _limits(value, LIMITS[k], v) for k, v in limits.items()}
    hints = get_type_hints(inspect.unwrap(ctx.command.callback or read_config))
    known = {n: _kind(hints[n]) for n in hints if n not in ("ctx", "return", param.name)}
    for name, found in list(given.items()):
        if name not in known or name in LIMITS:
            options = [n.replace("_", "-") for n in (*known, *LIMITS)]
            near = difflib.get_close_matches(name.replace("_", "-"), options, n=1, cutoff=0.5)
            said = f"did you mean {near[0]}?" if near else f"there are {', '.join(options)}"
            _refuse(f"{value}: there is no option {name.replace('_', '-')!r}; {said}")
        if not _fits(known[name], found):
            what = _WORDS.get(known[name], "a text in quotes")
            _refuse(f"{value}: {name} = {found!r}: give {what}")
        if name in _SEVERAL:
            given[name] = [found]  # one text is one of several, not a list of letters
    ctx.default_map = {**(ctx.default_map or {}), **given}
    return value


def configured_limits(ctx: typer.Context) -> dict[str, dict[str, float]]:
    """The limits of the file, by table (``fail_under``, ``fail_over``) and name."""
    found: dict[str, dict[str, float]] = ctx.meta.get(_META, {})
    return {k: found.get(k, {}) for k in LIMITS}


def _read(path: Path) -> dict[str, Any]:
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        _refuse(f"{path}: cannot be read ({error.strerror})")
    except ValueError as error:  # of TOML, or of text that is not UTF-8
        _refuse(f"{path}: is no TOML ({error})")
    found: dict[str, Any] = {}
    for key, value in read.items():
        name = key.replace("-", "_")
        if name in found:
            _refuse(f"{path}: {key} is there twice, once with a dash and once with an underscore")
        found[name] = value
    return found


def _limits(path: Path, table: str, value: Any) -> dict[str, float]:
    """Name -> number; the dotted name of a limit is a table in a table to TOML."""
    if not isinstance(value, Mapping):
        _refuse(f"{path}: {table} is a table, such as [{table}] with accuracy = 0.7")
    found: dict[str, float] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            found |= {f"{key}.{k}": v for k, v in _limits(path, table, inner).items()}
        elif _fits(float, inner):
            found[key] = inner
        else:
            _refuse(f"{path}: [{table}] {key} = {inner!r}: a limit is a number")
    return found


def _kind(hint: Any) -> type:
    """The type of an option, which may also be none."""
    members = set(get_args(hint)) or {hint}
    return next((kind for kind in (bool, int, float) if kind in members), str)


def _fits(kind: type, value: Any) -> bool:
    """Whether a TOML value is what an option takes; nothing is rounded or read into it."""
    if kind is bool:
        return isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, str)


def _refuse(why: str) -> NoReturn:
    typer.echo(f"reward-lens: {why}", err=True)
    raise typer.Exit(2)


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        is_eager=True,
        callback=read_config,
        help="TOML file of these options, by name; what the command line gives wins. Limits as "
        "tables \\[fail-under] and \\[fail-over].",
    ),
]
