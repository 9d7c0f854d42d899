"""What checks report: one outcome each, and all of them as a table."""

from __future__ import annotations

from dataclasses import dataclass

from reward_lens.errors import ConformanceError


@dataclass(frozen=True)
class Check:
    """One check's outcome.

    Attributes
    ----------
    name : str
    passed : bool
    measured, allowed : str
        As printed.
    meaning : str
        What a failure means for the user of the scores.
    """

    name: str
    passed: bool
    measured: str
    allowed: str
    meaning: str


@dataclass(frozen=True, repr=False)
class ConformanceReport:
    """All checks of one signal, and what it was judged by."""

    signal: str
    checks: tuple[Check, ...]
    judge: str = "its checkpoint does"

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(c.passed for c in self.checks)

    @property
    def failed(self) -> list[str]:
        """Names of the checks that failed."""
        return [c.name for c in self.checks if not c.passed]

    def __getitem__(self, name: str) -> Check:
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(name)

    def __str__(self) -> str:
        width = max(len(c.name) for c in self.checks)
        lines = [f"conformance of {self.signal}"]
        for c in self.checks:
            mark = "ok    " if c.passed else "FAILED"
            lines.append(f"  {mark} {c.name:<{width}}  {c.measured} (allowed: {c.allowed})")
            if not c.passed:
                lines.append(f"         {c.meaning}")
        return "\n".join(lines)

    __repr__ = __str__

    def raise_if_failed(self) -> None:
        """Raise unless every check passed.

        Raises
        ------
        ConformanceError
            With the table.
        """
        if not self.passed:
            raise ConformanceError(
                f"the signal does not behave as {self.judge}: {', '.join(self.failed)}\n{self}"
            )
