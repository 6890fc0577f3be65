"""Controls as data: one declaration gives the widget and the values accepted in a URL and from a browser.

The query string of the URL contains the value of every control: read when a page opens, updated on change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import isfinite
from typing import Any
from urllib.parse import parse_qsl

import dash_mantine_components as dmc
from dash import html

from dashboards.app.served import SAMPLE_CHIP, ServedFolders
from forerun.document import Json
from forerun.errors import ForerunError, did_you_mean
from forerun.tables import definition
from hwprofiles import chip_names
from simulator.llm import architecture_names
from simulator.speculation.methods import METHODS as SPECULATION
from simulator.studies.study_file import parse_pairs

Component = Any
"""A Dash component; the component libraries are not typed."""
Identity = dict[str, str]
Values = Json
Offer = Callable[[ServedFolders], Sequence[str]]
GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")
LONGEST_QUERY = 4000
LONGEST_WORD = 80
LONGEST_PAIRS = 400
NONE = "-"
"""Text of an empty choice of several, in a URL."""


def part_id(kind: str, page: str, name: str) -> Identity:
    """Id of a part of a page; callbacks find all parts of one kind by it."""
    return {"kind": kind, "page": page, "name": name}


def term(words: str) -> Component:
    """A label, with the glossary definition of its term as a tooltip."""
    meaning = definition(words)
    return words if meaning is None else html.Abbr(words, title=meaning)


state_id = partial(part_id, "state")
"""Id of the input of a control; its value is part of the URL."""
control_id = partial(part_id, "control")
"""Id of the element that contains a control and its label."""
slider_id = partial(part_id, "slider")
"""Id of the slider of a number control."""


@dataclass(frozen=True, slots=True)
class Control:
    """Base class of all controls."""

    name: str
    """Name of the control in the URL and in the values of a page."""
    label: str
    when: tuple[str, Callable[[object], bool]] | None = None
    """Condition for showing the control: name of another control, and a test of its value; None = always."""

    def default_in(self, served: ServedFolders) -> object:
        raise NotImplementedError

    def read(self, text: str, served: ServedFolders) -> object:
        return self.checked(text, served)

    def checked(self, value: object, served: ServedFolders) -> object:
        """Validate a value that a browser sent, and return it as pages use it."""
        raise NotImplementedError

    def widget(self, page: str, value: object, served: ServedFolders) -> Component:
        raise NotImplementedError

    def place(self, page: str, value: object, served: ServedFolders) -> Component:
        return html.Div(self.widget(page, value, served), id=control_id(page, self.name))


@dataclass(frozen=True, slots=True)
class ChoiceField(Control):
    """Choice of one of several texts; others are refused, because they could be read as file paths."""

    options: Sequence[str] | Offer = ()
    default: str | None = None
    """Default option; None: the first option, if any."""
    placeholder: str = ""

    def offered(self, served: ServedFolders) -> list[str]:
        """Currently available options, in display order."""
        return list(self.options(served) if callable(self.options) else self.options)

    def default_in(self, served: ServedFolders) -> str | None:
        offered = self.offered(served)
        return self.default if self.default in offered else next(iter(offered), None)

    def checked(self, value: object, served: ServedFolders) -> str | None:
        offered = self.offered(served)
        if value is None and not offered:
            return None
        if not isinstance(value, str) or value not in offered:
            word = str(value)[:LONGEST_WORD]
            raise ForerunError(f"{self.label}: '{word}' is not offered{did_you_mean(word, offered)}")
        return value

    def widget(self, page: str, value: object, served: ServedFolders) -> Component:
        offered = self.offered(served)
        return dmc.Select(
            id=state_id(page, self.name),
            label=term(self.label),
            data=offered,
            value=value,
            searchable=len(offered) > 8,
            selectFirstOptionOnChange=True,
            allowDeselect=False,
            placeholder=self.placeholder,
            size="sm",
            maxDropdownHeight=320,
        )


@dataclass(frozen=True, slots=True)
class Several(ChoiceField):
    """Choice of several texts, separated by commas in a URL."""

    defaults: Sequence[str] | Offer = ()
    least: int = 1
    most: int = 4

    def default_in(self, served: ServedFolders) -> Any:
        return list(self.defaults(served) if callable(self.defaults) else self.defaults)

    def read(self, text: str, served: ServedFolders) -> object:
        return self.checked([word for word in text.split(",") if word not in ("", NONE)], served)

    def checked(self, value: object, served: ServedFolders) -> Any:
        if not isinstance(value, list) or not self.least <= len(value) <= self.most:
            raise ForerunError(f"{self.label}: choose {self.least} to {self.most}")
        for one in value:
            ChoiceField.checked(self, one, served)
        return value

    def widget(self, page: str, value: object, served: ServedFolders) -> Component:
        return dmc.MultiSelect(
            id=state_id(page, self.name),
            label=term(self.label),
            data=self.offered(served),
            value=value,
            maxValues=self.most,
            searchable=True,
            size="sm",
        )


@dataclass(frozen=True, slots=True)
class Number(Control):
    """Number control: the slider has the values ``stops``, the text field accepts every value from ``low`` to ``high``.

    Without stops there is no slider, and the number may be empty.
    """

    stops: Sequence[float] = ()
    default: float | None = None
    unit: str = ""
    low: float = 0.0
    high: float = 0.0
    whole: bool = True
    live: bool = True
    """True if results are updated while the slider moves, not only when it is released."""
    says: str = ""

    def default_in(self, served: ServedFolders) -> float | None:
        return self.default

    def checked(self, value: Any, served: ServedFolders) -> int | float | None:
        if value in (None, "") and self.default is None:
            return None
        typed = value
        if isinstance(value, str):
            try:
                value = number_in(value)
            except ValueError:
                hint = "; decimals have a point, as in 2.5" if "," in typed else ""
                raise ForerunError(f"{self.label}: '{typed[:LONGEST_WORD]}' is not {self._wanted()}{hint}") from None
        known = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
        if not known or not self.low <= value <= self.high or (self.whole and value != int(value)):
            raise ForerunError(f"{self.label}: '{str(typed)[:LONGEST_WORD]}' is not {self._wanted()}")
        return int(value) if self.whole else float(value)

    def _wanted(self) -> str:
        return f"{'a whole number' if self.whole else 'a number'} from {self.low:,g} to {self.high:,g}"

    def widget(self, page: str, value: object, served: ServedFolders) -> Component:
        if not self.stops:
            return self._field(page, value, {"label": term(self.label), "description": self.says, "size": "sm"})
        field = self._field(page, value, {"aria-label": self.label, "size": "xs", "w": 132})
        shown = sorted({0, len(self.stops) // 2, len(self.stops) - 1})
        slider = dmc.Slider(
            id=slider_id(page, self.name),
            min=0,
            max=len(self.stops) - 1,
            step=1,
            value=nearest(self.stops, value),
            updatemode="drag" if self.live else "mouseup",
            marks=[{"value": index, "label": short(self.stops[index])} for index in shown],
            label=None,
            size="md",
            mb="lg",
            mt=6,
            px="lg",
            thumbLabel=self.label,
        )
        head = dmc.Group([dmc.Text(term(self.label), size="sm", fw=500), field], justify="space-between", wrap="nowrap")
        return [head, slider]

    def _field(self, page: str, value: object, more: Json) -> Component:
        """Text input for the number: an HTML number field drops unknown characters, so that ``2,5`` would become 25."""
        unit = {"rightSection": dmc.Text(self.unit, size="xs", c="dimmed", mr=6), "rightSectionWidth": 48}
        return dmc.TextInput(
            id=state_id(page, self.name),
            value="" if value is None else f"{value:.12g}",
            debounce=150,
            inputProps={"inputMode": "decimal"},
            **(unit if self.unit else {}),
            **more,
        )


@dataclass(frozen=True, slots=True)
class Pairs(Control):
    """Optional text control of the form ``word=value,...``."""

    says: str = ""
    example: str = ""

    def default_in(self, served: ServedFolders) -> str:
        return ""

    def checked(self, value: object, served: ServedFolders) -> str:
        if value is None:
            return ""
        if not isinstance(value, str) or len(value) > LONGEST_PAIRS:
            word = str(value)[:LONGEST_WORD]
            raise ForerunError(f"{self.label}: '{word}' is no text of at most {LONGEST_PAIRS} letters")
        self.read_pairs(value)
        return value

    def read_pairs(self, text: str) -> dict[str, str]:
        return parse_pairs(text, f"{self.label}:", self.example)

    def widget(self, page: str, value: object, served: ServedFolders) -> Component:
        return dmc.TextInput(
            id=state_id(page, self.name),
            label=term(self.label),
            description=self.says,
            placeholder=self.example,
            value=value,
            debounce=600,
            size="sm",
        )


def number_in(text: str) -> float:
    """Parse a number such as ``12``, ``1,000``, ``2.5`` or ``1e3``."""
    return float(text.replace(",", "") if GROUPED.fullmatch(text.strip()) else text)


def nearest(stops: Sequence[float], value: Any) -> int:
    return min(range(len(stops)), key=lambda index: abs(stops[index] - float(value or 0.0)))


def short(value: float) -> str:
    """Short label of a number on a slider: 131072 is ``128k``."""
    return f"{value / 1024:g}k" if value >= 1024 and value % 1024 == 0 else f"{value:g}"


def values_of(controls: Sequence[Control], search: str | None, served: ServedFolders) -> tuple[Values, list[str]]:
    """Value of each control from a URL's query string, and messages about parts of it that cannot be used."""
    query = dict(parse_qsl((search or "").lstrip("?")[:LONGEST_QUERY]))
    values: Values = {control.name: control.default_in(served) for control in controls}
    changed = []
    for control in controls:
        if (text := query.pop(control.name, None)) is None:
            continue
        try:
            values[control.name] = control.read(text, served)
        except ForerunError as error:
            shown = values[control.name]
            words = (", ".join(shown) if isinstance(shown, list) else str(shown or "")) or "nothing"
            changed.append(f"{error}; shown is {words}.")
    known = [control.name for control in controls]
    changed += [
        f"'{name[:LONGEST_WORD]}' is nothing that this page knows{did_you_mean(name, known)}." for name in query
    ]
    return values, changed


def checked_fields(controls: Mapping[str, Control], values: Values, served: ServedFolders) -> Values:
    """Validate values that a browser sent, each by its control; values without a control are unchanged."""
    return {
        name: controls[name].checked(value, served) if name in controls else value for name, value in values.items()
    }


# What the controls of several pages offer.

DTYPES = ("checkpoint", "bf16", "fp8", "int8", "int4", "fp4", "mxfp4")
"""Formats of weights; ``checkpoint`` is the format of the model's checkpoint."""
METHODS = tuple(method for method in SPECULATION if method not in ("eagle2", "grammar"))
"""Speculation methods, without EAGLE-2 (trees) and grammar (share of forced tokens), which have no controls here."""
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
TTFT_MS = (100, 200, 500, 1000, 2000, 5000, 10000)
TPOT_MS = (5, 10, 15, 20, 30, 40, 60, 80, 100, 200)
DRAFT_TOKENS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
LENGTH_CV = 0.8
"""Coefficient of variation (standard deviation over mean) of log-normal prompt and output lengths."""


@cache
def _chips() -> tuple[str, ...]:
    return tuple(chip_names())


@cache
def _models() -> tuple[str, ...]:
    return tuple(architecture_names())


CHIP = ChoiceField("chip", "Chip", options=lambda _: _chips(), default="h100-sxm")
ANY_CHIP = replace(CHIP, options=lambda _: (*_chips(), SAMPLE_CHIP))
"""Choice of any chip, including the machine on which the shipped kernel trace was measured."""
MODEL = ChoiceField("model", "Model", options=lambda _: _models(), default="llama-3.1-8b")
TENSOR_PARALLEL = ChoiceField("tp", "Tensor parallel", options=("1", "2", "4", "8", "16"), default="1")
WEIGHTS = ChoiceField("dtype", "Weights", options=DTYPES, default=DTYPES[0])
DRAFT = replace(
    MODEL,
    name="draft",
    label="Draft model",
    default="llama-3.2-1b",
    when=("method", lambda method: method == "draft-model"),
)
PROMPT = Number("prompt", "Mean prompt", stops=CONTEXTS[:9], default=512, unit="tokens", low=1, high=1e6)
TTFT = Number("ttft", "TTFT", stops=TTFT_MS, default=1000, unit="ms", low=1, high=1e6, whole=False)
TPOT = Number("tpot", "TPOT", stops=TPOT_MS, default=30, unit="ms", low=0.1, high=1e5, whole=False)
OUTPUT = Number("output", "Mean output", stops=CONTEXTS[:6], default=256, unit="tokens", low=1, high=1e5)

COLUMNS = Pairs(
    "columns",
    "Columns of the log",
    says="where their names leave open what they mean; else recognised or guessed, with a note",
    example="arrival=ts,input=prompt_toks,output=out_toks",
)


def lengths(mean: float) -> Json:
    """Scenario data of log-normal prompt or answer lengths with a given mean."""
    return {"distribution": "lognormal", "mean": mean, "cv": LENGTH_CV}


def poisson_workload(values: Values, request_rate: float | str, num_requests: int | str) -> Json:
    """Poisson arrivals of requests with lengths around the means of the controls."""
    return {
        "arrivals": {"process": "poisson", "request_rate": float(request_rate)},
        "input_tokens": lengths(values["prompt"]),
        "output_tokens": lengths(values["output"]),
        "num_requests": int(num_requests),
    }


ONE_REQUEST = {"arrivals": {"process": "burst"}, "input_tokens": 1, "output_tokens": 1, "num_requests": 1}
"""Workload of a scenario whose single steps are priced."""


def deployment(values: Values, **more: object) -> Json:
    """Scenario data of the model and chips that the controls select, with the sections ``more``."""
    hardware = {"chip": values["chip"], "tensor_parallel": int(values["tp"])}
    return {"model": values["model"], **weights_of(values), "hardware": hardware, **more}


def speculation_of(values: Values, draft_tokens: int, acceptance: Json) -> Json:
    """The scenario's ``speculation``, with the draft model if the method has one."""
    method = {"method": values["method"], "num_speculative_tokens": draft_tokens, "acceptance": acceptance}
    return method | ({"draft": {"model": values["draft"]}} if values["method"] == "draft-model" else {})


def weights_of(values: Values) -> Json:
    """The scenario's ``weights_dtype``; empty if the control is set to the checkpoint's format."""
    return {} if values["dtype"] == DTYPES[0] else {"weights_dtype": values["dtype"]}
