"""Options of an instrument from the command line: which there are, and text to typed values."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

#: Options that every command has a flag of its own for, or that are no option.
FLAGS = {"readout": "--readout", "position": "--position", "truncate": "--truncate",
         "batch_tokens": "--batch-tokens"}  # fmt: skip
_GIVEN = {"signal", "pairs", "progress", *FLAGS}
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_WORDS: dict[Any, str] = {
    NoneType: "none",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a word",
}


@dataclass(frozen=True)
class Choice:
    """One option of an instrument.

    Attributes
    ----------
    name : str
    kinds : tuple
        The types it may have, the strictest first.
    default : object
        ``inspect.Parameter.empty`` where it has to be given.
    said : str
        What its docstring says it may be.
    """

    name: str
    kinds: tuple[Any, ...]
    default: Any
    said: str

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is inspect.Parameter.empty

    def parse(self, text: str) -> Any:
        """Turn text into a value.

        Raises
        ------
        DataError
            If it is none of the types, or names a file that cannot be read.
        """
        if self.name in FILES:
            return FILES[self.name](Path(text))
        for kind in self.kinds:
            try:
                return _typed(kind, text.strip())
            except ValueError:
                continue
        from reward_lens.errors import DataError

        words = " or ".join(_words(kind) for kind in self.kinds)
        raise DataError(f"--set {self.name}={text}: give {words}")


def choices(instrument: Callable[..., Any]) -> dict[str, Choice]:
    """The options of an instrument that can be written on a command line."""
    hints = get_type_hints(instrument)
    found = {}
    for name, parameter in inspect.signature(instrument).parameters.items():
        kinds = _kinds(hints[name]) if name not in FILES else (str,)
        if name not in _GIVEN and kinds:
            said = _documented(instrument, name) or " or ".join(_words(k) for k in kinds)
            found[name] = Choice(name, kinds, parameter.default, said)
    return found


def parse_settings(instrument: Callable[..., Any], settings: Sequence[str]) -> dict[str, Any]:
    """Read ``key=value`` texts by the signature of an instrument.

    Raises
    ------
    DataError
        If one has no ``=``, an option is unknown or given twice, a value does not fit, or one that
        has no default is missing.
    """
    from reward_lens.errors import DataError

    known, values = choices(instrument), {}
    name = instrument.__name__
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise DataError(f"--set {setting}: write it as key=value")
        if key in FLAGS:
            raise DataError(f"--set {key}=: it has an option of its own, {FLAGS[key]}")
        if key not in known:
            there_is = ", ".join(f"{c.name}={_default(c)}" for c in known.values()) or "none"
            raise DataError(f"{name} has no option {key!r}; there is: {there_is}")
        if key in values:
            raise DataError(f"--set {key} is given twice")
        values[key] = known[key].parse(text)
    lacking = [c for c in known.values() if c.required and c.name not in values]
    if lacking:
        raise DataError(f"{name} needs --set {lacking[0].name}=…: {lacking[0].said}")
    return values


def option_rows(instrument: Callable[..., Any]) -> list[tuple[str, str, str]]:
    """Name, default and kind of every option, for a reader."""
    return [(c.name, _default(c), c.said) for c in choices(instrument).values()]


def read_concept(path: Path) -> list[Any]:
    """Rows of a file of labelled items or of pairs.

    Raises
    ------
    DataError
        If it cannot be read.
    """
    from reward_lens.data.formats import file_rows
    from reward_lens.errors import DataError

    if not path.is_file():
        raise DataError(f"{path}: there is no such file; a concept is a file of rows with a "
                        f"'label' of 1 or 0, or of pairs")  # fmt: skip
    return [row for _, row in file_rows(path)]


def _read_reference(path: Path) -> list[Any]:
    """Both sides of all pairs of a file."""
    from reward_lens.data import load_pairs

    pairs = load_pairs(path)
    return [*pairs.chosen, *pairs.rejected]


#: Options that name a file, and how it is read.
FILES: dict[str, Callable[[Path], Any]] = {
    "concept": read_concept,
    "reference": _read_reference,
}
_FILE_WORDS = {
    "concept": "a file of rows with a label of 1 or 0, or of pairs (chosen: positive)",
    "reference": "a file of pairs, whose both sides are the reference",
}


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The types of a hint that text can be turned into, the strictest first."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    order = [NoneType, bool, int, float, Sequence, tuple, str]
    known = [m for m in members if _family(m) in order]
    if not set(known) - {NoneType}:
        return ()
    return tuple(sorted(known, key=lambda m: order.index(_family(m))))


def _family(kind: Any) -> Any:
    return get_origin(kind) or kind


def _typed(kind: Any, text: str) -> Any:
    """Text as one type.

    Raises
    ------
    ValueError
        If it is not of that type.
    """
    family = _family(kind)
    if family is NoneType:
        if text.lower() != "none":
            raise ValueError(text)
        return None
    if family is bool:
        if text.lower() not in (*_TRUE, *_FALSE):
            raise ValueError(text)
        return text.lower() in _TRUE
    if family is Sequence:
        (member,) = get_args(kind)
        return [_typed(member, part.strip()) for part in text.split(",")]
    if family is tuple:
        parts = text.split(",")
        if len(parts) != len(get_args(kind)):
            raise ValueError(text)
        return tuple(_part(m, part.strip()) for m, part in zip(get_args(kind), parts, strict=True))
    if not text:
        raise ValueError(text)
    return family(text)


def _part(hint: Any, text: str) -> Any:
    """One entry of a tuple; an open end is empty."""
    kinds = _kinds(hint)
    if not text and NoneType in kinds:
        return None
    return _typed(kinds[-1], text)


def _words(kind: Any) -> str:
    family = _family(kind)
    if family is Sequence:
        one = _words(get_args(kind)[0]).removeprefix("a ")
        return f"{one}s with commas between"
    return "start,stop" if family is tuple else _WORDS[family]


def _documented(instrument: Callable[..., Any], name: str) -> str:
    """What the docstring says a parameter may be."""
    if name in _FILE_WORDS:
        return _FILE_WORDS[name]
    found = re.search(rf"^{name} : (.+)$", inspect.getdoc(instrument) or "", re.MULTILINE)
    return found[1].removesuffix(", optional") if found else ""


def _default(choice: Choice) -> str:
    value = choice.default
    if choice.required:
        return "(needed)"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return ",".join(f"{v:g}" if isinstance(v, float) else str(v) for v in value)
    return str(value)
