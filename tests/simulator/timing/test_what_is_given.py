"""Descriptions: immutable, complete, and refusing what no machine can be; every limit tried on both sides."""

import importlib
import inspect
import pkgutil
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError
from test_drafters import made
from test_step import decode, deployment

import simulator.speculation
import simulator.timing
from hwprofiles import load_link
from simulator.timing import (
    DraftOverhead,
    Framework,
    HardwareConfig,
    HeadsDrafter,
    HostDrafter,
    ParallelDrafter,
    RemoteDrafter,
    SequentialDrafter,
    StepTimer,
    load_draft_overhead,
    load_framework,
)


def classes():
    """Every class of the two rooms, once."""
    found = {}
    for room in (simulator.timing, simulator.speculation):
        for info in pkgutil.walk_packages(room.__path__, room.__name__ + "."):
            module = importlib.import_module(info.name)
            for name, kind in inspect.getmembers(module, inspect.isclass):
                if kind.__module__ == info.name:
                    found[f"{info.name}.{name}"] = kind
    return found


CLASSES = classes()
MODELS = {name: kind for name, kind in CLASSES.items() if issubclass(kind, BaseModel)}


@pytest.mark.parametrize("name", MODELS)
def test_models_take_no_unknown_field_and_never_change(name):
    """A misspelt field must not be ignored, and catalogue entries are shared between runs."""
    assert MODELS[name].model_config["frozen"] is True
    assert MODELS[name].model_config["extra"] == "forbid"


def test_shared_catalogue_entries_cannot_be_changed():
    framework, overhead = load_framework("vllm"), load_draft_overhead("vllm", "eagle3")
    assert load_framework("vllm") is framework
    assert load_draft_overhead("vllm", "eagle3") is overhead
    for entry, field in (
        (framework, "step_s"),
        (overhead, "step_s"),
        (framework.source, "kind"),
        (overhead.source, "date"),
    ):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(entry, field, getattr(entry, field))


WITH_STATE = {"Costs", "AdjustedDrafter", "TokenTable", "ModelTimer", "PipelineTimer", "StepTimer", "Goodput"}
WITH_STATE |= {
    "MovingAverageSlot",
    "MovingAverage",
    "SequentialDrafter",
    "ParallelDrafter",
    "HeadsDrafter",
    "RemoteDrafter",
}
"""Dataclasses that keep tables or learn; all others describe something and cannot change."""


@pytest.mark.parametrize("name", [name for name, kind in CLASSES.items() if is_dataclass(kind)])
def test_described_things_do_not_change(name):
    kind = CLASSES[name]
    one = object.__new__(kind)
    field = fields(kind)[0].name
    if kind.__name__ in WITH_STATE:
        setattr(one, field, None)
    else:
        with pytest.raises(FrozenInstanceError):
            setattr(one, field, None)


@pytest.mark.parametrize("model", [Framework, DraftOverhead])
def test_times_and_sizes_are_not_negative(model):
    """Zero and a nanosecond are fine, less than nothing is not."""
    for name, field in model.model_fields.items():
        if field.annotation in (float, int):
            kind = TypeAdapter(field.rebuild_annotation())
            for good in (0, 1) if field.annotation is int else (0.0, 1e-9, 0.5, 3.0):
                kind.validate_python(good)
            with pytest.raises(ValidationError):
                kind.validate_python(-1 if field.annotation is int else -1e-9)
            assert name


@pytest.mark.parametrize(("replicas", "good"), [(0, False), (-1, False), (1, True), (10_000, True), (10_001, False)])
def test_replicas_are_counted_from_one(replicas, good):
    if good:
        assert HardwareConfig(chip="h100-sxm", replicas=replicas).replicas == replicas
    else:
        with pytest.raises(ValidationError, match="replicas"):
            HardwareConfig(chip="h100-sxm", replicas=replicas)


def test_chips_of_a_copy_multiply():
    plain = HardwareConfig(chip="h100-sxm")
    assert (plain.chips_per_stage, plain.chips_per_replica, plain.replicas) == (1, 1, 1)
    spread = HardwareConfig(chip="h100-sxm", tensor_parallel=2, attention_data_parallel=3, pipeline_parallel=5)
    assert (spread.chips_per_stage, spread.chips_per_replica) == (6, 30)


def test_what_a_drafter_cannot_be_given():
    """What follows from the method is no argument of it."""
    step = StepTimer(deployment("llama-3.2-1b"), 64)
    target = deployment("llama-3.2-1b")
    chain = SequentialDrafter(step, 1, (), 0.0, 0.0)
    makers = {
        HostDrafter: (1e-4, 1e-5),
        HeadsDrafter: (target, 2, 8),
        SequentialDrafter: (step, 1, (), 0.0, 0.0),
        ParallelDrafter: (step, 2, 0.0, 0.0),
        RemoteDrafter: (chain, load_link("infiniband-ndr")),
    }
    for kind, given in makers.items():
        one = kind(*given)
        for name in ("runs_on", "windows", "pass_tokens", "weight_bytes", "kv_bytes_per_token"):
            if name not in inspect.signature(kind).parameters or kind not in (SequentialDrafter, ParallelDrafter):
                with pytest.raises(TypeError, match="unexpected keyword"):
                    kind(*given, **{name: getattr(one, name)})
    assert HostDrafter(0.0, 0.0).runs_on == "host"
    assert {kind(*given).runs_on for kind, given in makers.items() if kind is not HostDrafter} == {"device"}
    apart = RemoteDrafter(chain, load_link("infiniband-ndr"))
    assert (apart.weight_bytes, apart.kv_bytes_per_token) == (0.0, 0.0)
    assert made("medusa").pass_tokens == (1,)


def test_graphs_are_captured_unless_refused():
    """A step outside graphs waits for every launch of every layer."""
    usual = deployment("llama-3.2-1b")
    slow = usual.framework.model_copy(update={"eager_launch_s": 1e-3})
    usual = replace(usual, framework=slow)
    refused = replace(usual, cuda_graphs=False)
    work = decode(1, 100)
    assert StepTimer(usual, 64).seconds(work) < StepTimer(refused, 64).seconds(work)
    launches = slow.kernels_per_layer * 16 * 1e-3
    assert StepTimer(refused, 64).seconds(work) == pytest.approx(launches)
