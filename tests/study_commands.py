"""Checks of any command: its tables at every width, and an end in a result or one line."""

import io
import json

from rich.console import Console

from forerun.tables import Table, cell_text
from forerun.text_layout import pieces
from simulator.cli import main

WIDTHS = (60, 80, 100, 120, 160)


def printed(table, width):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(table.rich(width))
    return console.file.getvalue()


def same_at_every_width(command, monkeypatch, capsys):
    """Run a command; no cell of its tables is cut, whatever the width."""
    tables, rich = [], Table.rich
    monkeypatch.setattr(Table, "rich", lambda table, *width: (tables.append(table), rich(table, *width))[1])
    assert main(command.split()) in (0, 1), capsys.readouterr().err
    monkeypatch.undo()
    assert tables
    for table in tables:
        texts = [cell_text(cell) for row in table.rows[: table.shown] for cell in row] + list(table.columns)
        for width in WIDTHS:
            text = printed(table, width)
            assert all(len(line) <= width for line in text.splitlines()), (command, width)
            parts = {piece for one in texts for piece in pieces(one) if len(piece) <= width // 2}
            assert all(piece in text for piece in parts), (command, width, text)


def end_of(command, data, options, folder, capsys):
    """Exit code of a command of a scenario: 0, 1 (a verdict), or 2 with one line."""
    (folder / "s.json").write_text(json.dumps(data), "utf-8")
    code = main([command, str(folder / "s.json"), *options.split()])
    message = capsys.readouterr().err.strip()
    assert code in (0, 1, 2), message
    assert code != 2 or "\n" not in message, message
    return code


def refusal_of(words, capsys):
    """The only line that a refused command writes."""
    capsys.readouterr()
    assert main(words) == 2
    printed_text = capsys.readouterr()
    assert printed_text.out == ""
    lines = printed_text.err.splitlines()
    assert len(lines) == 1, printed_text.err
    return lines[0]
