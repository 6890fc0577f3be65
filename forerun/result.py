"""Base classes of the results of runs and studies: a document, its tables and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol

import numpy as np
from typing_extensions import TypeVar

from forerun.document import Json, plain_json, read_document
from forerun.errors import ForerunError, did_you_mean
from forerun.tables import ABSENT, Table, arrow_column, number, pairs

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go
    import pyarrow as pa

Data = TypeVar("Data", default=Any)

_STYLE = (
    "<style>.forerun table{border-collapse:collapse;margin:.4em 0}.forerun td,.forerun th{padding:.1em .8em .1em 0;"
    "text-align:right}.forerun td:first-child,.forerun th:first-child,.forerun .words{text-align:left}"
    ".forerun .faint,.forerun .aside{opacity:.65}.forerun .strong{font-weight:600}"
    ".forerun .good{color:light-dark(#176c36,#6fd68f)}.forerun .bad{color:light-dark(#b3261e,#ff9a92)}</style>"
)


class ReportModule(Protocol):
    """Interface of a module that draws and saves the results of one kind."""

    def figure_data(self, result: Any) -> Mapping[str, tuple[Any, object]]:
        """Figures of a result by name with their data, the main figure first."""

    def save(self, result: Any, folder: Path) -> None:
        """Write the files that ``--out`` writes, all or none."""


class Summary(Json):
    """Most important values of a result by name; prints one value per line."""

    def __repr__(self) -> str:
        width = max(map(len, self), default=0)
        return "\n".join(f"{key:<{width}}  {_words(value)}" for key, value in self.items())

    def _repr_html_(self) -> str:
        return f'{_STYLE}<div class="forerun">{pairs("", [(k, _words(v)) for k, v in self.items()]).html()}</div>'

    def __reduce__(self) -> tuple[type[Summary], tuple[Json]]:
        return Summary, (dict(self),)


class LatencyStatistics(NamedTuple):
    """Statistics of one latency over the requests of a run; None if it was not measured."""

    mean: float | None
    median: float | None
    std: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None


class Result:
    """A finished run or study.

    * ``summary``: the most important values, a dict with a readable printout;
    * ``document``: what ``--json`` writes, plain JSON values;
    * ``tables()``, ``table(name)``: what the command prints, as :class:`forerun.tables.Table`;
    * ``to_arrow(name)``, ``to_pandas(name)``: the result's rows as a data frame;
    * ``figure(name)``: one of ``figures``, a Plotly figure;
    * ``save(folder)``: the JSON and the report as HTML and Markdown, as ``--out`` writes them.

    A result renders itself in a notebook, can be pickled, and equals another result of the same content. A subclass
    says ``kind`` and ``document``, builds its tables once in ``tables()`` and its rows in ``records()``.
    """

    kind: ClassVar[str]
    """Command that produces the result: ``run``, ``compare``, ``plan``, ``tune``, ``sweep`` ..."""

    report: ClassVar[str] = "dashboards.study_report"
    """Name of the result's :class:`ReportModule`, imported when a figure or a report is requested."""

    @property
    def document(self) -> Json:
        """Content of the file that ``--json`` writes."""
        raise NotImplementedError

    @property
    def summary(self) -> Summary:
        """Most important values of the result, by name."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """Short title of the result."""
        raise NotImplementedError

    def tables(self) -> list[Table]:
        """Tables of the result, the main table first."""
        raise NotImplementedError

    def records(self) -> list[Json]:
        """Rows of the result's data frame."""
        raise NotImplementedError

    @property
    def facts(self) -> str:
        """Text about evidence level and settings, shown next to the title."""
        return f"basis: {self.document['basis'] or ABSENT} · seed {self.document['seed']}"

    legend: ClassVar[str] = ""
    """Definitions of the terms in the result's tables, in one or two lines."""

    @property
    def conclusion(self) -> str:
        """The answer in one sentence; may be empty."""
        return str(self.document.get("conclusion") or "")

    def table(self, name: str = "") -> Table:
        """The main table, or the table ``name``.

        Raises:
            ForerunError: no table has this name.
        """
        tables = self.tables()
        if not name:
            return tables[0]
        names = [table.name or table.title for table in tables]
        if name not in names:
            raise ForerunError(f"name: no table '{name}'{did_you_mean(name, names)} (there are {', '.join(names)})")
        return tables[names.index(name)]

    def to_arrow(self, name: str = "") -> pa.Table:
        """Rows of the result, or of its table ``name``, as a pyarrow table.

        Raises:
            ForerunError: there is no such table.
        """
        if name:
            return self.table(name).to_arrow()
        import pyarrow as pa

        records = self.records()
        keys = dict.fromkeys(key for record in records for key in record)
        return pa.table({key: arrow_column([record.get(key) for record in records]) for key in keys})

    def to_pandas(self, name: str = "") -> pd.DataFrame:
        """:meth:`to_arrow` as a pandas DataFrame.

        Raises:
            ForerunError: pandas is not installed.
        """
        try:
            import pandas  # noqa: F401
        except ImportError:
            text = "to_pandas: pandas is not installed (pip install pandas); to_arrow() needs nothing more"
            raise ForerunError(text) from None
        return self.to_arrow(name).to_pandas()

    def _report(self) -> ReportModule:
        module: Any = import_module(self.report)
        return module  # type: ignore[no-any-return]

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of figures for ``figure``, the main figure first."""
        return tuple(self._report().figure_data(self))

    def figure(self, name: str = "") -> go.Figure:
        """A Plotly figure: the main one, or figure ``name``.

        Raises:
            ForerunError: no figure has this name.
        """
        figures = self._report().figure_data(self)
        if name and name not in figures:
            hint = did_you_mean(name, figures)
            raise ForerunError(f"name: no figure '{name}'{hint} (there are {', '.join(figures) or 'none'})")
        if not figures:
            raise ForerunError(f"{self.kind}: this result has no figures")
        figure, data = figures[name or next(iter(figures))]
        return figure.draw(data)

    def save(self, folder: str | Path) -> Path:
        """Write the same files as ``--out`` into ``folder``, all or none.

        A run: summary.json, Parquet tables, trace.json and report.html; a study or a replay: its document and its
        report as HTML, a study's also as Markdown; a calibration: the profile.

        Raises:
            ForerunError: the folder cannot be written.
        """
        try:
            self._report().save(self, Path(folder))
        except OSError as error:
            raise ForerunError(f"{folder}: cannot be written: {error.strerror or error}") from None
        return Path(folder)

    @property
    def remarks(self) -> Sequence[str]:
        """Notes on the results."""
        return self.document["notes"]  # type: ignore[no-any-return]

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and alike(vars_of(self), vars_of(other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        name = type(self).__name__
        answer = self.conclusion or ", ".join(f"{key}={_words(value)}" for key, value in [*self.summary.items()][:6])
        return f"<{name}: {self.title}; {answer}>"[:1000]

    def _repr_html_(self) -> str:
        heading = f"<p><b>{escape(self.title)}</b> <span class='faint'>{escape(self.facts)}</span></p>"
        parts = [f"<p><b>{escape(table.title)}</b></p>{table.html()}" for table in self.tables() if table.rows]
        end = f"<p><b>{escape(self.conclusion)}</b></p>" if self.conclusion else ""
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.remarks)
        return f'{_STYLE}<div class="forerun">{heading}{"".join(parts)}{end}<ul class="faint">{notes}</ul></div>'


class StudyResult(Result, Generic[Data]):
    """A finished study; its document contains all of its results.

    ``data`` is the document as a ``document_type``, a :class:`forerun.document.StudyDocument`; a study without such a
    type has plain JSON values there too.

    Args:
        document: a ``document_type``, or JSON values with ``scenario``, ``seed``, ``version``, ``basis``, ``notes`` and
            ``conclusion``.
        command: shell command that repeats the study in the folder that ``save`` wrote; may be empty.
        files: texts by file name that ``save`` writes besides document and report, such as the study of ``command``.
    """

    drawn_in: ClassVar[str] = ""
    """Module whose ``FIGURES`` draw the result, imported at the first figure; for studies of other distributions."""

    document_type: ClassVar[type[Any] | None] = None

    def __init__(
        self, document: Data | Mapping[str, Any], command: str = "", files: Mapping[str, str] | None = None
    ) -> None:
        kind = self.document_type
        self.data: Data = document if kind is None else read_document(kind, document)  # type: ignore[assignment]
        self._document: Json = document if kind is None else plain_json(self.data)  # type: ignore[assignment]
        self.command, self._files = command, dict(files or {})

    @property
    def document(self) -> Json:
        return self._document

    @property
    def files(self) -> dict[str, str]:
        return self._files

    @property
    def marks(self) -> Sequence[str]:
        """Short texts about the study's settings, shown as badges on a page."""
        return ()

    @property
    def model(self) -> str:
        return model_words(self.document["scenario"])


def model_words(scenario: Json) -> str:
    return scenario["model"] if isinstance(scenario["model"], str) else "inline model"


def vars_of(value: object) -> Json:
    """Fields of a dataclass by name; for other objects, the instance's attributes."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value) if field.compare}
    return dict(vars(value))


def alike(one: Any, other: Any) -> bool:
    """True if two values are equal: arrays are compared by element, dataclasses by field, NaN equals NaN."""
    if isinstance(one, np.ndarray):
        if not isinstance(other, np.ndarray) or one.dtype != other.dtype:
            return False
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if type(one) is not type(other):
        return False
    if is_dataclass(one):
        return alike(vars_of(one), vars_of(other))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other or one != one)


def _words(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        return str(value)
    return number(value)
