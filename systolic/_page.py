"""One self-contained HTML page: headings, text, cards, tables, plots, code. Standard library only, no script, no URL.

The page follows the reader's light or dark setting, reads on a phone, and prints. All text given to it is escaped; what
is added as a plot is trusted and must come from ``line_plot``, ``area_plot`` or ``bar_plot``.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from systolic._format import format_value, nice_ticks
from systolic._page_style import STYLE
from systolic._plots import area_plot, bar_plot, downsample, line_plot

__all__ = ["Page", "area_plot", "bar_plot", "downsample", "format_value", "line_plot", "nice_ticks", "write_atomically"]

_TONES = ("", "muted", "note", "good", "warn", "bad")
_ALIGN = {"l": "", "r": ' class="r"', "c": ' class="c"'}


def write_atomically(path: str | os.PathLike[str], data: str | bytes) -> Path:
    """Write a whole file or nothing: a reader never sees half of it, whenever the writer dies.

    Raises:
        OSError: the folder cannot be made, or the file cannot be written; the old file is then still there.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
        raise
    return path


class Page:
    """A page built from top to bottom; each ``add_`` method returns the page, so that calls can be chained.

    Args:
        title: the heading and the title of the window.
        subtitle: one line below it.
        footer: one line at the end.

    Example:
        >>> page = Page("Run 7", "digits on cpu").add_cards([("accuracy", "97.8 %", "held-out")])
        >>> "97.8 %" in page.html()
        True
    """

    def __init__(self, title: str, subtitle: str = "", footer: str = "") -> None:
        self._title, self._subtitle, self._footer = title, subtitle, footer
        self._blocks: list[str] = []
        self._plots: list[str] = []  # neighbours, waiting to be laid side by side

    def _add(self, block: str) -> Page:
        self._close_plots()
        self._blocks.append(block)
        return self

    def _close_plots(self) -> None:
        if self._plots:
            self._blocks.append(f'<div class="plots">{"".join(self._plots)}</div>')
            self._plots = []

    def add_heading(self, text: str, level: int = 2) -> Page:
        """A heading of level 2 or 3 (the title is the only one of level 1).

        Raises:
            ValueError: another level.
        """
        if level not in (2, 3):
            raise ValueError(f"add_heading: level is {level}; it must be 2 or 3")
        return self._add(f"<h{level}>{escape(text)}</h{level}>")

    def add_text(self, text: str, tone: str = "") -> Page:
        """A paragraph; blank lines part paragraphs.

        Args:
            text: plain text.
            tone: "" for running text, "muted" for small print, or a box: "note", "good", "warn", "bad".

        Raises:
            ValueError: an unknown tone.
        """
        _check_tone(tone, "add_text")
        style = f' class="{tone if tone == "muted" else "box " + tone}"' if tone else ""
        paragraphs = "<br><br>".join(escape(p.strip()) for p in text.split("\n\n"))
        return self._add(f"<p{style}>{paragraphs}</p>")

    def add_cards(self, cards: Iterable[Sequence[str]]) -> Page:
        """The few numbers to see first: (label, value, note) or (label, value, note, tone)."""
        parts = []
        for label, value, note, *tone in cards:
            _check_tone(tone[0] if tone else "", "add_cards")
            style = f"card {tone[0]}" if tone and tone[0] else "card"
            below = f"<small>{escape(str(note))}</small>" if note else ""
            number = f"<span>{escape(str(label))}</span><strong>{escape(str(value))}</strong>"
            parts.append(f'<div class="{style}">{number}{below}</div>')
        return self._add(f'<div class="cards">{"".join(parts)}</div>')

    def add_table(
        self, headers: Sequence[str], rows: Iterable[Sequence[object]], align: str | Sequence[str] = ""
    ) -> Page:
        """A table; it scrolls sideways where it is too wide.

        Args:
            headers: one per column; none at all leaves the head row out.
            rows: cells, shown by ``str``; None is an empty cell.
            align: one letter per column, "l", "r" or "c"; missing ones are "l". Numbers want "r".

        Raises:
            ValueError: a row that has not as many cells as there are headers, or another letter.
        """
        rows = [list(row) for row in rows]
        columns = len(headers) or (len(rows[0]) if rows else 0)
        for number, row in enumerate(rows):
            if len(row) != columns:
                raise ValueError(f"add_table: row {number} has {len(row)} cells, the table has {columns} columns")
        letters = [*align, *"l" * columns][:columns]
        if any(letter not in _ALIGN for letter in letters):
            raise ValueError(f"add_table: align is {align!r}; each letter must be l, r or c")
        styles = [_ALIGN[letter] for letter in letters]
        head = "".join(f'<th scope="col"{style}>{escape(str(h))}</th>' for h, style in zip(headers, styles))
        head = f"<thead><tr>{head}</tr></thead>" if headers else ""
        body = "".join(
            "<tr>"
            + "".join(f"<td{s}>{escape('' if c is None else str(c))}</td>" for c, s in zip(row, styles))
            + "</tr>"
            for row in rows
        )
        return self._add(f'<div class="table"><table>{head}<tbody>{body}</tbody></table></div>')

    def add_plot(self, svg: str) -> Page:
        """What a plot function returned; plots that follow each other share a row where there is room."""
        self._plots.append(svg)
        return self

    def html(self) -> str:
        """The whole page as text."""
        self._close_plots()
        subtitle = f"<p>{escape(self._subtitle)}</p>" if self._subtitle else ""
        footer = f"<footer>{escape(self._footer)}</footer>" if self._footer else ""
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark">'
            f"<title>{escape(self._title)}</title><style>{STYLE}</style></head>\n"
            f"<body><header>{_mark()}<div><h1>{escape(self._title)}</h1>{subtitle}</div></header>\n<main>\n"
            + "\n".join(self._blocks)
            + f"\n</main>{footer}</body></html>\n"
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page as a file, whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        return write_atomically(path, self.html())


def _check_tone(tone: str, where: str) -> None:
    if tone not in _TONES:
        raise ValueError(f"{where}: tone is {tone!r}; it must be one of {', '.join(map(repr, _TONES))}")


def _mark() -> str:
    """A wave through a 4×4 array of cells: the picture of a systolic array."""
    cells = "".join(
        f'<rect x="{2 + 10 * column}" y="{2 + 10 * row}" width="8" height="8" rx="2" '
        f'opacity="{(0.22, 0.45, 0.72, 1.0, 0.72, 0.45, 0.22)[row + column]}"/>'
        for row in range(4)
        for column in range(4)
    )
    return f'<svg class="mark" viewBox="0 0 42 42" aria-hidden="true">{cells}</svg>'
