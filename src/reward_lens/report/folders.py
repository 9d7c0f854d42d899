"""Local paths on a page that is sent round: named by what they end in."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from reward_lens.evidence import Evidence

#: A local path of two folders or more. A comma before something else than a space is part of it.
_PATH = re.compile(r"(?<![\w/.:~])(?:file://|~)?(?:/(?:[^\s/;,:\"<>]|,(?=[^\s/]))+){2,}/?")


def followed(source: str) -> Path:
    """Where a model was loaded from; ``.`` and ``..`` are followed where the folder is there.

    A hub id stays as it is, and so does a link: its name is what the user calls the model.
    """
    return Path(os.path.abspath(source)) if Path(source).exists() else Path(source)


def short_command(arguments: Sequence[str]) -> str:
    """A command as it can be typed again where its files are: absolute paths by their ends."""
    return shlex.join(_short(argument) for argument in arguments)


def _short(argument: str) -> str:
    option, equals, value = (
        argument.rpartition("=") if argument.startswith("-") else ("", "", argument)
    )
    if value.startswith(("/", "~/", "file://")):
        value = PurePath(value).name
    return f"{option}{equals}{value}"


def by_folder(text: str, sources: Sequence[str] = ()) -> str:
    """Name local paths by what they end in: where a user keeps a model is nobody else's to read.

    Parameters
    ----------
    sources : sequence of str
        Paths that are known; others are told by their slashes, and end at a space.
    """
    for source in sources:
        text = text.replace(source, PurePath(source).name)
    return _PATH.sub(lambda found: PurePath(found[0]).name, text)


def sources_of(evidence: Mapping[str, Evidence]) -> list[str]:
    """Absolute paths of the models that were measured."""
    notes = [e.subject.notes for e in evidence.values()]
    both = [
        part for n in notes for part in (n, n.get("a"), n.get("b")) if isinstance(part, Mapping)
    ]
    found = {str(part["source"]) for part in both if "source" in part}
    return sorted((s for s in found if PurePath(s).is_absolute()), key=len, reverse=True)
