"""Runs the code of a documentation page and compares what it prints with what the page shows.

A page is one session in an empty folder. Fences with the languages that count:

- ``python``: run in the page's namespace; a ``text`` fence right behind it is what it prints.
- ``console``: each line that begins with ``$`` is run, the lines below it are what it prints.
- ``toml``, ``json``, ``csv`` with a title: written to a file of that name.

A title that begins with "Not run here:" is the reason why a block is not.

``python tests/docs_kit.py PAGE`` writes what is printed into the page, where nothing is shown yet.

In what is shown, ``...`` stands for anything, on a line of its own for any lines. Below the comment
``<!-- last digits may differ -->`` numbers may be two off in the last place shown, and what is
smaller than 1e-5 is rounding and need only be as small.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

NOT_RUN = "Not run here: "
SHELL_LANGUAGES = ("console", "bash", "sh", "shell")
LOOSE = "<!-- last digits may differ -->"
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<lang>[a-z]+)(?P<options>[^\n]*)\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")
_ROUNDING = 1e-5
#: What goes to a watching person and is no result: stages of progress, bars of transformers.
_PROGRESS = re.compile(r"^[\w ]+( \.\.\.|: [\d,]+ (of .* left|so far))$|it/s\]|^Loading weights")
_COLUMNS = "100"


@dataclass(frozen=True)
class Block:
    """One fence of a page that is run, or written to a file."""

    page: str
    line: int
    language: str
    title: str
    body: str
    shown: str | None
    loose: bool

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(text: str, page: str) -> list[Block]:
    """The blocks of a page, each with the text fence that follows it."""
    found: list[Block] = []
    last_end = 0
    for match in _FENCE.finditer(text):
        indent = len(match["indent"])
        body = "".join(line[indent:] or "\n" for line in match["body"].splitlines(True))
        between = text[last_end : match.start()]
        last_end = match.end()
        loose = LOOSE in between
        if match["lang"] == "text" and not between.replace(LOOSE, "").strip() and found:
            last = found[-1]
            if last.language == "python" and last.shown is None:
                found[-1] = Block(
                    page, last.line, "python", last.title, last.body, body, loose or last.loose
                )
                continue
        title = re.search(r'title="([^"]*)"', match["options"])
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, line, match["lang"], title[1] if title else "", body, None, loose))
    return found


class Session:
    """One reader who follows a page in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scope: dict[str, object] = {"__name__": "__main__"}
        self.code = 0

    def run(self, block: Block) -> list[tuple[str, str]]:
        """What was printed, beside what the page shows, piece by piece."""
        if block.title.startswith(NOT_RUN):
            return []
        if block.language == "python":
            printed = StringIO()
            with redirect_stdout(printed):
                exec(compile(block.body, block.place, "exec"), self.scope)
            return [(printed.getvalue(), block.shown or "")]
        if block.language == "console":
            return [(self.shell(c), shown) for c, shown in commands_of(block.body)]
        if block.language in ("toml", "json", "csv") and block.title:
            (self.folder / block.title).write_text(block.body, encoding="utf-8")
        return []

    def shell(self, command: str) -> str:
        """Run one command line; ours in this process, which spares an import of torch."""
        if command.strip() == "echo $?":
            said, self.code = f"{self.code}\n", 0
            return said
        if self.code:
            raise AssertionError(f"the command before {command!r} failed and nothing says so")
        ours = re.fullmatch(r"reward-lens ([^|<>;&$]+?)(?: > (\S+))?", command)
        if ours is not None:
            return self._ours(shlex.split(ours[1]), ours[2])
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=os.environ | {"PATH": path, "COLUMNS": _COLUMNS},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.code = done.returncode
        return _told(done.stderr) + done.stdout

    def _ours(self, arguments: list[str], target: str | None) -> str:
        from typer.testing import CliRunner

        from reward_lens.cli import app

        argv, sys.argv = sys.argv, ["reward-lens", *arguments]
        try:
            done = CliRunner().invoke(app, arguments, env={"COLUMNS": _COLUMNS})
        finally:
            sys.argv = argv
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        self.code = done.exit_code
        if target is None:
            return _told(done.stderr) + done.stdout
        (self.folder / target).write_text(done.stdout, encoding="utf-8")
        return _told(done.stderr)


def commands_of(body: str) -> Iterator[tuple[str, str]]:
    """Commands of a console block, each with the lines shown below it."""
    lines = body.splitlines()
    assert lines, "an empty console block"
    assert lines[0].startswith("$ "), f"a console block begins with a command, not {lines[0]!r}"
    command, shown, k = "", [], 0
    while k < len(lines):
        if lines[k].startswith("$ "):
            if command:
                yield command, "".join(shown)
            command, shown = lines[k][2:], []
            while command.endswith("\\"):
                k += 1
                command = command[:-1].rstrip() + " " + lines[k].strip().removeprefix("> ")
        else:
            shown.append(lines[k] + "\n")
        k += 1
    yield command, "".join(shown)


def _told(errors: str) -> str:
    lines = [line for line in errors.splitlines(True) if not _PROGRESS.search(line.strip())]
    return "".join(lines)


def differs(printed: str, shown: str, loose: bool) -> str:
    """Why what was printed is not what is shown; empty where it is."""
    pattern = re.compile(_pattern(shown, loose))
    match = pattern.fullmatch(_normal(printed))
    if match is None:
        return f"--- the page shows\n{shown}--- the code prints\n{printed}"
    if loose:
        for said, got in zip(_NUMBER.findall(_plain(shown)), match.groups(), strict=True):
            if not _near(said, got):
                return f"{said} is shown, {got} is printed\n{printed}"
    return ""


def _normal(text: str) -> str:
    return "".join(" ".join(line.split()) + "\n" for line in text.splitlines() if line.strip())


def _plain(shown: str) -> str:
    """What is shown, without what stands for anything."""
    return "".join(line + "\n" for line in _normal(shown).splitlines() if line != "...")


def _pattern(shown: str, loose: bool) -> str:
    """A pattern with one group for each number where numbers may differ."""
    out = []
    for line in _normal(shown).splitlines():
        if line == "...":
            out.append(r"(?:[^\n]*\n)*?")
            continue
        pieces = []
        for piece in line.split("..."):
            if loose:
                parts = _NUMBER.split(piece)
                pieces.append(rf"({_NUMBER.pattern})".join(re.escape(p) for p in parts))
            else:
                pieces.append(re.escape(piece))
        out.append(r"[^\n]*?".join(pieces) + r"\n")
    return "".join(out)


def _near(said: str, got: str) -> bool:
    a, b = float(said), float(got)
    if max(abs(a), abs(b)) < _ROUNDING:
        return True
    mantissa, _, exponent = said.partition("e")
    places = len(mantissa.partition(".")[2])
    unit = 10.0 ** (int(exponent or 0) - places)
    whole = places == 0 and not exponent
    return a == b if whole else abs(a - b) <= 2.001 * unit


def fill(path: Path) -> str:
    """The text of a page with what its code prints, where nothing is shown yet."""
    text = path.read_text(encoding="utf-8")
    session = Session(Path.cwd())
    for block in blocks_of(text, path.name):
        pieces = session.run(block)
        if block.language == "python" and block.shown is None and pieces and pieces[0][0]:
            old = f"```python\n{block.body}```\n"
            text = text.replace(old, f"{old}```text\n{pieces[0][0]}```\n", 1)
        elif block.language == "console" and pieces and not any(s for _, s in pieces):
            lines, told = iter(block.body.splitlines(True)), iter(p for p, _ in pieces)
            new = ""
            for line in lines:
                new += line
                while line.rstrip().endswith("\\"):
                    new += (line := next(lines))
                new += next(told)
            text = text.replace(block.body, new, 1)
    return text


if __name__ == "__main__":
    page = Path(sys.argv[1]).resolve()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # as in the tests
    os.chdir(tempfile.mkdtemp())
    page.write_text(fill(page), encoding="utf-8")
