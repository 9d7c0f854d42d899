"""Which rows of a table by subset are on a page: there may be as many subsets as pairs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

#: Subsets that a table or a figure shows; the evidence file has all of them.
MOST_SUBSETS = 24


@dataclass(frozen=True)
class SubsetRows:
    """The rows of a table that are shown, and how many subsets are not among them.

    Attributes
    ----------
    which : list of int
        Every row that is of no subset (of all pairs, of a part), and those of the largest subsets,
        in the order of the table.
    left : int
        Subsets that are not shown.
    """

    which: list[int]
    left: int

    @classmethod
    def of(cls, table: pd.DataFrame, column: str, general: pd.Series) -> SubsetRows:
        """Choose the rows.

        Parameters
        ----------
        table : DataFrame
            With a column ``pairs``.
        column : str
            Names the subset; a subset may have several rows.
        general : Series of bool, [row]
            The rows that are of no subset.
        """
        sizes = table[~general].groupby(column, sort=False)["pairs"].max()
        sizes = sizes.sort_values(ascending=False, kind="stable")
        shown = general | table[column].isin(sizes.index[:MOST_SUBSETS])
        return cls(np.flatnonzero(shown).tolist(), max(0, len(sizes) - MOST_SUBSETS))

    @classmethod
    def below_first(cls, table: pd.DataFrame, column: str) -> SubsetRows:
        """Choose the rows of a table whose first row is that of all pairs."""
        first = pd.Series(np.arange(len(table)) == 0, index=table.index)
        return cls.of(table, column, first)

    @property
    def more(self) -> str:
        """What is not shown, as the end of a title or caption; empty where all are."""
        if not self.left:
            return ""
        return f" (the {MOST_SUBSETS} largest subsets; {self.left:,} more in the evidence file)"
