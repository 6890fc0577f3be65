"""Short runs of every engine on every chip, with every switch and choice of ``engine``: they keep every invariant.

FORERUN_GRID=6660 pytest -n 0 tests/simulator/running/test_engine_grid.py    # every chip with every engine four times
"""

import os
import random
from contextlib import suppress

import pytest

from forerun.errors import ForerunError, NothingServedError
from forerun.yaml_files import packaged
from hwprofiles import chip_names
from simulator.running.build import build_run
from simulator.running.run import simulate
from simulator.running.scenario import scenario_from
from simulator.serving.engine_config import EngineConfig

RUNS = int(os.environ.get("FORERUN_GRID", "333"))
PARTS = 9
CHIPS, FRAMEWORKS = chip_names(), list(packaged("simulator.timing", "frameworks.yaml"))
MODELS = ("llama-3.2-1b", "llama-3.2-1b", "gemma-3-4b", "gpt-oss-20b", "qwen3-next-80b-a3b")
DRAFTS = (None, None, "ngram", "eagle", "parallel-draft")
STEPS = {"num_scheduler_steps": (1, 8)}
"""Numbers that switch a rule on."""


def choices():
    """Values of each switch and choice of ``engine``, by field."""
    values = dict(STEPS)
    for name, field in EngineConfig.model_json_schema()["properties"].items():
        for kind in field.get("anyOf", [field]):
            values[name] = [*values.get(name, ()), *kind.get("enum", [True, False] * (kind.get("type") == "boolean"))]
    values["prefix_cache_eviction"].remove("session-aware")  # no cell has sessions
    return {name: some for name, some in values.items() if some}


CHOICES = choices()


def drawn(number):
    """The scenario of a cell: a chip, an engine, and those of the drawn fields that the two take."""
    rng = random.Random(number)
    data = {
        "model": rng.choice(MODELS),
        "hardware": {"chip": CHIPS[number % len(CHIPS)], "tensor_parallel": rng.choice((1, 1, 2))},
        "engine": {"framework": FRAMEWORKS[(number + number // len(CHIPS)) % len(FRAMEWORKS)]},
        "workload": {
            "arrivals": {"process": "closed-loop", "max_concurrency": 3},
            "input_tokens": rng.choice((70, 400)),
            "output_tokens": {"distribution": "uniform", "min": 2, "max": 24},
            "num_requests": 5,
        },
    }
    drafts = {"num_speculative_tokens": 3, "acceptance": {"alpha": 0.7}}
    if (method := rng.choice(DRAFTS)) is not None and taken(data | {"speculation": drafts | {"method": method}}):
        data["speculation"] = drafts | {"method": method}
    for name in rng.sample(sorted(CHOICES), 6):
        engine = data["engine"] | {name: rng.choice(CHOICES[name])}
        if taken(data | {"engine": engine}):
            data["engine"] = engine
    return data


def taken(data):
    with suppress(ForerunError):
        return build_run(scenario_from(data, "grid"), 0)
    return None


def served(data):
    """The run of a scenario; None where the chip or the engine cannot serve the model."""
    if taken(data):
        with suppress(NothingServedError):
            return simulate(scenario_from(data, "grid"), 0)
    return None


@pytest.mark.parametrize("part", range(PARTS))
def test_every_cell_of_the_grid_runs(part):
    """Invariants are part of every run: prompts that a step does not have took time on 20 chips."""
    runs = [served(drawn(number)) for number in range(part, RUNS, PARTS)]
    done = [run for run in runs if run is not None]
    assert all(run.summary["completed"] + run.summary["failed"] == 5 for run in done)
    assert len(done) > 0.4 * len(runs), "too many are refused"
