"""``forerun compare``, ``plan``, ``tune`` and the other studies: commands made of their declarations."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from typer import Argument, Context, Option, Typer

from forerun.errors import ArgumentError
from simulator.cli.output import (
    STDOUT,
    FullOption,
    JsonOption,
    NoProgressOption,
    Progress,
    SetOption,
    ShortcutOptions,
    checked_outputs,
    chosen,
    mapping_of,
    out_to,
    show,
    written,
)
from simulator.studies import public

if TYPE_CHECKING:
    from simulator.studies.frame import Option as StudyOption
    from simulator.studies.frame import StudyCommand


def register(commands: Typer) -> None:
    """Add a command for each study of the public face."""
    add_studies(commands, [getattr(public, name).declared for name in dir(public) if name.islower()])


def add_studies(commands: Typer, declared: Iterable[StudyCommand]) -> None:
    """Add a command for the studies of each name."""
    studies_of: dict[str, list[StudyCommand]] = {}
    for study in declared:
        studies_of.setdefault(study.name, []).append(study)
    for name, studies in studies_of.items():
        main, *others = sorted(studies, key=lambda one: one.chosen is not None)
        summary = str(main.function.__doc__).partition("\n")[0]
        commands.command(name, epilog=main.examples, help=main.help or summary)(_command(main, others))


def _command(main: StudyCommand, others: list[StudyCommand]) -> Callable[..., int]:
    """The function of a command, with the signature that declares its command: the options of all its studies."""
    options = main.options
    for study in others:
        options |= {name: one for name, one in study.options.items() if name not in options}
    source = next(iter(signature(main.function).parameters))
    several = source == "scenarios"
    free = {
        name: None if name in options else kind
        for name, kind in vars(ShortcutOptions).items()
        if name in ("chip", "trace", "rate", "router", "measured") and name not in {study.switch for study in others}
    }

    def call(**values: Any) -> int:
        from simulator.running.scenario import place_of

        typed = written(values["line"])
        arguments = {
            name: mapping_of(value) if name == "columns" else value is not True if one.default is True else value
            for name, one in options.items()
            if (key := _key(one)) in typed and (value := values[key]) is not None
        }
        switched = {study.switch: True for study in others if study.switch_help and study.switch in typed}
        files = values[source] if several else [values[source]]
        with _options_named(options), checked_outputs(values["out"], values["json_file"]):
            subject, used = _subject(
                files,
                chosen(values["set_values"], **{name: values[name] for name, kind in free.items() if kind is not None}),
                arguments,
                "columns" in options,
            )
            choice = arguments | switched
            study = next((one for one in others if one.chosen and one.chosen(choice, subject)), main)
            for name in arguments.keys() - study.options.keys() - {study.switch}:
                raise ArgumentError(name, f"has no effect {study.words}; remove it")
            given = {name: value for name, value in arguments.items() if name in study.options.keys() - used}
            for name, one in study.options.items():
                if name not in given and (unset := _option(one).unset) is not None:
                    given[name] = unset(Path(place_of(files[0])))
            with Progress(not values["no_progress"], main.progress) as progress:
                if "progress" in signature(study.function).parameters:
                    given["progress"] = progress.update
                result = study.call(subject, **given)
            emitted = result.document.get("artefact", result.document.get("emit"))
            last = emitted if isinstance(emitted, str) else None
            show(result, values["json_file"], values["out"], last, values["full"])
        if store := result.document.get("store"):
            print(f"Results are kept in {store}", file=sys.stderr if values["json_file"] == STDOUT else sys.stdout)
        return study.finish(result)

    shown = [Parameter("line", Parameter.KEYWORD_ONLY, annotation=Context)]
    files = Argument(metavar="SCENARIO..." if several else "SCENARIO", help=main.source, show_default=False)
    shown.append(_parameter(source, list[str] if several else str, files))
    last: list[Parameter] = []
    for name in [*options, *({"seed"} - set(options))]:  # --set stands before --seed, or last
        if name == "seed":
            shown.append(_parameter("set_values", SetOption, default=None))
            shown += [_parameter(one, kind, default=None) for one, kind in free.items() if kind is not None]
        if name in options:
            (last if name == "jobs" else shown).append(_typed(options[name]))
    for study in others:
        if study.switch_help:
            switch = Option(f"--{study.switch}", help=study.switch_help)
            shown.append(_parameter(study.switch, bool, switch, False))
    shown.append(_parameter("out", Path | None, out_to(main.files), None))
    shown += [_parameter("json_file", JsonOption, default=None), _parameter("full", FullOption, default=False)]
    shown += [*last, _parameter("no_progress", NoProgressOption, default=False)]
    call.__signature__ = Signature(shown)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in shown}
    return call


def _subject(
    files: Sequence[str], overrides: Sequence[str], arguments: dict[str, Any], takes_logs: bool
) -> tuple[Any, set[str]]:
    """The subject of a study by its files, ``--set``, ``--vary`` and ``--map``, and the options used up."""
    from simulator.running.scenario import is_log
    from simulator.studies.compare.comparison import variants_from_files
    from simulator.studies.study_file import load_study_and_logs, study_of_log

    vary = arguments.get("vary") or ()
    if len(files) > 1:
        return variants_from_files(files, overrides, vary), {"vary"}
    if takes_logs and is_log(files[0]):
        return study_of_log(files[0], overrides, vary, arguments.get("columns")), {"vary", "columns"}
    return load_study_and_logs(files[0], arguments.get("logs") or (), overrides, vary), {"vary"}


@contextmanager
def _options_named(options: dict[str, Parameter]) -> Iterator[None]:
    """Name the option in errors about a parameter of another name."""
    try:
        yield
    except ArgumentError as error:
        if error.argument not in options:
            raise
        raise ArgumentError(_flag(options[error.argument]).lstrip("-").replace("-", "_"), error.message) from None


def _option(parameter: Parameter) -> StudyOption:
    declared: StudyOption = parameter.annotation.__metadata__[0]
    return declared


def _flag(parameter: Parameter) -> str:
    return _option(parameter).flag_of(parameter.name, parameter.default)


def _key(parameter: Parameter) -> str:
    return f"no_{parameter.name}" if parameter.default is True else parameter.name


def _typed(parameter: Parameter) -> Parameter:
    """The option of a study's parameter, as a command declares it."""
    one, default = _option(parameter), parameter.default
    kind = one.text or get_args(parameter.annotation)[0]
    if default is True or kind == list[str] or kind == list[Path]:
        default = False if default is True else None
    declared = Option(_flag(parameter), help=one.help, metavar=one.metavar, min=one.min, max=one.max)
    return _parameter(_key(parameter), kind | None if default is None else kind, declared, default)


def _parameter(name: str, kind: Any, declared: Any = None, default: Any = Parameter.empty) -> Parameter:
    annotation = kind if declared is None else Annotated[kind, declared]
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
