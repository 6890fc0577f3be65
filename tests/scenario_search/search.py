"""Random scenarios over the whole schema, run with every invariant on; what goes wrong is made small and kept.

    python tests/scenario_search/search.py --count 100000 --seed 1        # make search COUNT=100000 SEED=1
    python tests/scenario_search/search.py --count 20000 --section speculation        # every scenario with that section

A scenario is made from the schema that ``Scenario`` declares, so that a field is searched the day it is born: known
good parts with some of their fields drawn anew. It may run, or be refused in one line; anything else is a finding, and
goes into ``corpus/`` as the smallest scenario that still shows it. The suite runs the corpus and a seeded round.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from forerun.yaml_files import packaged
from hwprofiles import chip_names

FOLDER = Path(__file__).resolve().parent
CORPUS = FOLDER / "corpus"
CPU_LIMIT_S = 60.0
"""Processor time after which a scenario counts as one that does not end."""
KNOWN = ("ok", "refused")
MADE_OF = yaml.safe_load((FOLDER / "parts.yaml").read_text("utf-8"))
MODELS, SMALL, LIKELY, PARTS = (MADE_OF[name] for name in ("models", "small", "likely", "parts"))
WORDS = MADE_OF["words"] | {
    "model": MODELS,
    "chip": [*MADE_OF["words"]["chip"], *chip_names()],
    "framework": list(packaged("simulator.timing", "frameworks.yaml")),
}
ONLY_TRACE = {"trace", "skip_requests", "columns", "format", "on_error"}
"""Fields of a workload that count only with a trace; a scenario that has none does not get them."""


@cache
def schema() -> dict[str, Any]:
    """What a scenario may hold."""
    from simulator.running.scenario import Scenario

    return Scenario.model_json_schema()


def scenario_of(seed: int, section: str | None = None) -> dict[str, Any]:
    """A random scenario, the same for the same seed; with a section that all should have, drawn anew more often.

    In five of six scenarios a draw that validation or the build refuses is repeated up to 12 times, so that most of
    them run; the sixth keeps whatever was drawn, for the refusals.
    """
    rng = random.Random(seed)
    draws = 12 if rng.random() < 5 / 6 else 1
    data = _accepted_draw(draws, partial(_sections, rng, section))
    for _ in range(rng.choice([0, 1, 1, 1, 2, 4])):
        data = _accepted_draw(draws, partial(_one_field_redrawn, data, rng, section), data)
    if rng.random() < 0.4:
        data = _accepted_draw(draws, partial(_short_of_memory, data, rng), data)
    if data["workload"].get("trace") is not None and data["workload"].get("num_requests") is None:
        data["workload"]["num_requests"] = 8  # a whole trace only takes longer
    return data


def _short_of_memory(data: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The scenario with replicas that hold little more than its longest request, and requests that all come at once."""
    from forerun.errors import ForerunError
    from simulator.running.scenario import scenario_from
    from simulator.workload import generate_requests

    together = {"arrivals": {"process": "burst"}, "num_requests": SMALL["num_requests"]}
    lengths = (
        {"output_tokens": {"distribution": "uniform", "min": 1, "max": 90}} if "trace" not in data["workload"] else {}
    )
    data = data | {"workload": data["workload"] | together | lengths}
    try:
        requests = generate_requests(scenario_from(placed(data), "search").workload, 0)
    except ForerunError:
        return data
    engine = data.get("engine", {})
    longest = int((requests.input_tokens + requests.output_tokens).max()) // (engine.get("block_size") or 16)
    kept = rng.choice(
        ({}, {}, {"preemption": "swap"}, {"kv_offloading_bytes": 1e8}, {"kv_stores": [PARTS["kv_stores"][1]]})
    )
    return data | {"engine": engine | {"num_kv_blocks": longest + rng.choice([2, 3, 5, 9, 20])} | kept}


def _accepted_draw(
    draws: int, draw: Callable[[], dict[str, Any]], otherwise: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The first of several draws that is not refused; else ``otherwise``, or the last. A single draw is not judged."""
    data = draw()
    while draws > 1 and _refused(data):
        draws -= 1
        data = draw() if draws > 1 or otherwise is None else otherwise
    return data


def _refused(data: dict[str, Any]) -> bool:
    """Whether validation or the build refuses a scenario. A crash is no refusal: the run has to show it."""
    from forerun.errors import ForerunError
    from simulator.running.build import build_run
    from simulator.running.scenario import scenario_from

    try:
        build_run(scenario_from(placed(data), "search"), 0)
    except ForerunError:
        return True
    except Exception:
        return False
    return False


def _sections(rng: random.Random, section: str | None) -> dict[str, Any]:
    """A scenario of sections that are sound by themselves."""
    data: dict[str, Any] = {"model": rng.choice(MODELS[:2] * 3 + MODELS if rng.random() < 0.75 else _catalogue())}
    for name, share in LIKELY.items():
        if rng.random() < share or name == section:
            data[name] = copy.deepcopy(rng.choice(PARTS[name]))
    if "speculative_parallel" in data["hardware"]:
        data["attention_speculation"] = copy.deepcopy(rng.choice(PARTS["attention_speculation"]))
    if any(pool.get("role") == "prefill" for pool in data.get("pools", {}).values()) and rng.random() < 0.5:
        data["kv_transfer"] = copy.deepcopy(rng.choice(PARTS["kv_transfer"]))
    return data


def _one_field_redrawn(original: dict[str, Any], rng: random.Random, section: str | None) -> dict[str, Any]:
    """A copy with one field anywhere drawn anew, mended where one value mostly needs another."""
    data = copy.deepcopy(original)
    nodes = list(_nodes(data, schema(), rng))
    if section is not None and rng.random() < 0.2:
        inner = list(_nodes(data[section], schema()["properties"][section], rng))
        nodes = inner or nodes
    node, described = rng.choice(nodes)
    fields = [name for name in described if name not in ONLY_TRACE or "trace" in node]
    name = rng.choice(fields)
    node[name] = drawn(described[name], name, rng)
    if data["hardware"]["chip"] == "gb300" and any(word in data["model"] for word in ("deepseek", "glm-5", "kimi")):
        data["hardware"] |= {"attention_data_parallel": 4, "expert_parallel": 8}
    drafter = data.get("speculation") or {}
    if drafter.get("method") == "mtp" and "deepseek" not in data["model"] and rng.random() < 0.8:
        drafter["method"] = "eagle3"  # few models have a module for it
    if not drafter and data.get("kv_transfer") and rng.random() < 0.8:
        data["kv_transfer"].pop("draft_kv", None)
    if "layers_on" in data["hardware"] and rng.random() < 0.8:
        data["engine"] = data.get("engine", {}) | {"framework": "llama.cpp"}
    return data


@cache
def _catalogue() -> list[str]:
    from simulator.llm import architecture_names

    return list(architecture_names())


def of_drafter(data: dict[str, Any], seed: int) -> dict[str, Any]:
    """The scenario for a study of a drafter on equal replicas."""
    kept = {name: part for name, part in data.items() if name not in ("pools", "faults", "router")}
    return kept | {"speculation": PARTS["speculation"][seed % len(PARTS["speculation"])]}


def placed(data: dict[str, Any]) -> Any:
    """A scenario with the folder of the files that it names."""
    return json.loads(json.dumps(data).replace('"FILES/', f'"{FOLDER}/files/'))


def _nodes(data: Any, described: dict[str, Any], rng: random.Random) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each mapping of a scenario with the fields that it may have."""
    described = _resolved(described, data)
    if not isinstance(data, dict):
        return
    fields = described.get("properties", {})
    if fields:
        yield data, fields
    for name, value in data.items():
        inner = fields.get(name) or next(iter(described.get("patternProperties", {}).values()), None)
        if name in ("hardware", "engine") and inner is not None and "properties" not in _resolved(inner, value):
            inner = {"$ref": f"#/$defs/{name.capitalize()}Config"}  # what a pool overrides
        if inner is not None:
            yield from _nodes(value, inner, rng)


def _resolved(described: dict[str, Any], value: Any) -> dict[str, Any]:
    """A description without references, the branch that fits a mapping where there are several."""
    if "$ref" in described:
        return _resolved(schema()["$defs"][described["$ref"].rsplit("/", 1)[1]], value)
    if "anyOf" in described and isinstance(value, dict):
        branches = [_resolved(branch, value) for branch in described["anyOf"]]
        return next((branch for branch in branches if branch.get("type") == "object"), described)
    return described


def drawn(described: dict[str, Any], name: str, rng: random.Random) -> Any:
    """A value that the schema allows, of a size that does not take long."""
    described = _resolved(described, None)
    if "enum" in described:
        return rng.choice(described["enum"])
    if "const" in described:
        return described["const"]
    if "anyOf" in described:
        return drawn(rng.choice(described["anyOf"]), name, rng)
    kind = described.get("type")
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "integer":
        return _whole(described, name, rng)
    if kind == "number":
        return _real(described, rng)
    if kind == "array":
        inner = described.get("items") or rng.choice(described.get("prefixItems", [{"type": "integer"}]))
        return [drawn(inner, name, rng) for _ in range(rng.randint(described.get("minItems", 0), 4))]
    if kind == "object":
        return _mapping(described, name, rng)
    return rng.choice(WORDS.get(name, ["x", "llama-3.2-1b"])) if kind == "string" else None


def _whole(described: dict[str, Any], name: str, rng: random.Random) -> int:
    low = described.get("minimum", described.get("exclusiveMinimum", -1) + 1)
    high = min(described.get("maximum", 10**6), SMALL.get(name, 10**6))
    spread = math.exp(rng.uniform(0.0, math.log(max(1, high - low) + 1.0)))
    end = high if name in SMALL else described.get("maximum", 10**18)
    return int(min(high, low + spread - 1)) if rng.random() < 0.9 else rng.choice([low, end])


def _real(described: dict[str, Any], rng: random.Random) -> float:
    low = described.get("minimum", described.get("exclusiveMinimum", 0.0))
    high = described.get("maximum", described.get("exclusiveMaximum", 1e4))
    if high <= 1.0:
        return rng.choice([low, high, rng.uniform(low, high)])
    if rng.random() < 0.15:
        return rng.choice([low, 5e-324, described.get("maximum", 1e300)])
    return min(high, max(low, 10 ** rng.uniform(-3.0, 4.0)))


def _mapping(described: dict[str, Any], name: str, rng: random.Random) -> dict[str, Any]:
    if name in PARTS and rng.random() < 0.75:
        return copy.deepcopy(rng.choice(PARTS[name]))
    result, needed = {}, set(described.get("required", ()))
    for field, inner in described.get("properties", {}).items():
        if field in needed or rng.random() < (0.05 if field in ONLY_TRACE else 0.25):
            result[field] = drawn(inner, field, rng)
    for inner in described.get("patternProperties", {}).values():
        result |= {pool: drawn(inner, "pool", rng) for pool in "abc"[: rng.randint(1, 3)]}
    return result


class _Endless(Exception):
    """A scenario has used up its processor time."""


def judged(
    data: dict[str, Any], seed: int = 0, limit_s: float | None = None, oracle: bool = False, intervals: bool = False
) -> tuple[str, str]:
    """What becomes of a scenario: ``ok``, ``refused`` or a kind of finding, and its message without numbers.

    Args:
        data: the scenario.
        seed: of its run.
        limit_s: processor time after which it counts as endless; None waits.
        oracle: whether it is run by the interpreted engine as well.
        intervals: whether the model's own error is looked for too, which takes five times as long.
    """
    from forerun.errors import ForerunError, InvariantError

    if limit_s is not None:
        signal.signal(signal.SIGPROF, _out_of_time)
        signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        return _run(data, seed, oracle, intervals)
    except ForerunError as error:
        text = str(error)
        return ("refused", text) if "\n" not in text and text.isprintable() else ("refused in several lines", text)
    except InvariantError as error:
        return "alarm", re.sub(r"\d[\d.e+-]*", "#", error.invariant)
    except _Endless:
        return "endless", ""
    except Exception as error:
        return "crash", f"{type(error).__name__}: {re.sub(r'[0-9.]+', '#', str(error))[:120]}"
    finally:
        if limit_s is not None:
            signal.setitimer(signal.ITIMER_PROF, 0.0)


def _run(data: dict[str, Any], seed: int, oracle: bool, intervals: bool) -> tuple[str, str]:
    """Run a scenario as it is, without step records as its own document reads back, and interpreted."""
    from golden.golden import differences

    from forerun.document import json_text
    from simulator.running.metrics import run_document
    from simulator.running.run import simulate
    from simulator.running.scenario import scenario_from
    from simulator.workload import generate_requests

    scenario = scenario_from(placed(data), "search")
    result = simulate(scenario, seed, intervals=intervals)
    document = run_document(result)
    again = json.loads(json_text(document))
    thin = run_document(simulate(scenario_from(again["scenario"], "read back"), seed, full_step_rows=0))
    for key in ("summary", "kv_cache", "basis", "chips"):
        if thin[key] != document[key]:
            return "differs", f"{key} without step records, or from the document's own scenario"
    if any(differences(thin["energy_joules"], document["energy_joules"])):
        return "differs", "energy without step records"
    summary = document["summary"]
    if summary["completed"] + summary["failed"] != len(result.requests.measured) or len(result.requests) != len(
        generate_requests(scenario.workload, seed)
    ):
        return "differs", "requests offered and requests accounted for"
    if oracle and (
        column := _differing(result, simulate(scenario.with_values({"engine.stepping": "exact-steps"}), seed))
    ):
        return "differs", f"{column} of the interpreted engine"
    return "ok", ""


def _differing(one: Any, other: Any) -> str | None:
    """What of two runs is not the same to the last bit."""
    for part in ("requests", "steps"):
        mine, others = (getattr(run, part).columns() for run in (one, other))
        order = [np.lexsort((c["start_s"], c["replica"])) if part == "steps" else slice(None) for c in (mine, others)]
        for name, column in mine.items():
            if column[order[0]].tobytes() != others[name][order[1]].tobytes():
                return f"{part}.{name}"
    return next((name for name in ("kv", "speculation") if getattr(one, name) != getattr(other, name)), None)


def _out_of_time(number: int, frame: Any) -> None:
    raise _Endless


def shrunk(data: dict[str, Any], same: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The smallest scenario on the way down from ``data`` for which ``same`` holds: fields dropped, numbers lowered."""
    again = True
    while again:
        again = False
        for candidate in _smaller(data):
            if same(candidate):
                data, again = candidate, True
                break
    return data


def _smaller(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in list(_paths(data)):
        candidate = copy.deepcopy(data)
        del _at(candidate, path[:-1])[path[-1]]
        yield candidate
    for path in list(_paths(data)):
        value = _at(data, path)
        if isinstance(value, int) and not isinstance(value, bool) and value > 1:
            for lower in dict.fromkeys((1, 2, value // 2, value - 1)):
                if lower < value:
                    candidate = copy.deepcopy(data)
                    _at(candidate, path[:-1])[path[-1]] = lower
                    yield candidate


def _paths(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (*at, key)
        yield from _paths(value, (*at, key))


def _at(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


def searched(seed: int, section: str | None = None) -> tuple[int, str, str]:
    """What becomes of one random scenario."""
    data = scenario_of(seed, section)
    return seed, *judged(data, limit_s=CPU_LIMIT_S, oracle=True, intervals=with_intervals(seed))


def with_intervals(seed: int) -> bool:
    """Whether a scenario is one of the eighth that is run with its intervals."""
    return seed % 8 == 0


def keep(seed: int, kind: str, message: str, section: str | None = None) -> Path:
    """Shrink a finding and put it in the corpus; one that does not end stays whole, for each try takes a minute."""
    small = scenario_of(seed, section)
    if kind != "endless":
        small = shrunk(
            small,
            lambda data: (
                judged(data, limit_s=CPU_LIMIT_S, oracle=True, intervals=with_intervals(seed)) == (kind, message)
            ),
        )
    file = CORPUS / f"{kind.replace(' ', '-')}-{seed}.json"
    file.write_text(json.dumps({"finding": f"{kind}: {message}", "scenario": small}, indent=1) + "\n", "utf-8")
    return file


def reason(message: str) -> str:
    """A refusal without its place in the document, its numbers and its quoted words."""
    text = re.sub(r"^(search|read back): ", "", message).replace("pools.a: ", "").replace("pools.b: ", "")
    return re.sub(r"\d[\d.,e+-]*", "#", re.sub(r"'[^']*'", "'..'", text))[:110]


def main() -> int:
    """Search, print counts and the most frequent refusals, keep one finding of each kind; 1 where there is any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--section", choices=LIKELY)
    requested = parser.parse_args()
    first = requested.seed * 10**7
    seeds = range(first, first + requested.count)
    counts: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    values: dict[tuple[str, str], int] = {}
    # A process keeps the price tables of every deployment that it has seen: gigabytes after thousands.
    with get_context("spawn").Pool(requested.jobs, maxtasksperchild=25) as pool:
        for number, kind, message in pool.imap(partial(searched, section=requested.section), seeds, chunksize=20):
            counts[kind] += 1
            if kind not in KNOWN:
                print(f"seed {number}: {kind}: {message}", flush=True)
                values.setdefault((kind, message), number)
            elif kind == "refused":
                refusals[reason(message)] += 1
            if not sum(counts.values()) % 1000:
                print(dict(counts), flush=True)
    print(dict(counts))
    for why, times in refusals.most_common(20):
        print(f"{times:8} refused: {why}")
    for (kind, message), number in values.items():
        print(f"seed {number}: {kind}: {message} -> {keep(number, kind, message, requested.section)}", flush=True)
    return int(bool(values))


if __name__ == "__main__":
    sys.path[:0] = [str(FOLDER.parent.parent), str(FOLDER.parent)]
    sys.exit(main())
