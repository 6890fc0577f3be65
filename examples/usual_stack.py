"""Where does 5-10x come from? The usual stack of an LLM server, each part alone, each left out, and all together.

Four agents at a time on one A100: long shared prompts, outputs of uneven length. Factors of parts that remove the same
seconds multiply to more than they give together; where one part's seconds only count once another's are gone, to less.

Run: python examples/usual_stack.py [--requests N] [--concurrency C]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

from simulator.running.metrics import summarise
from simulator.running.run import simulate
from simulator.running.scenario import Scenario
from simulator.studies.study_file import load_study

STUDY = Path(__file__).with_name("usual-stack.yaml")


def throughput(base: Scenario, settings: Iterable[dict[str, Any]]) -> float:
    """Output tokens per second with the given parts."""
    merged = {path: value for part in settings for path, value in part.items()}
    return float(summarise(simulate(base.with_values(merged)))["output_throughput"])


def main() -> None:
    """Print one row per part and the conclusion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, help="only the first N requests")
    parser.add_argument("--concurrency", type=int, default=4, help="agents at a time")
    arguments = parser.parse_args()
    study = load_study(STUDY)
    base, *variants = study.variants
    changes: dict[str, Any] = {"workload.arrivals.max_concurrency": arguments.concurrency}
    if arguments.requests is not None:
        changes["workload.num_requests"] = arguments.requests
    scenario = base.scenario.with_values(changes)
    parts = {variant.name: dict(variant.set) for variant in variants}
    plain = throughput(scenario, [])
    together = throughput(scenario, parts.values()) / plain
    single = {name: throughput(scenario, [part]) / plain for name, part in parts.items()}
    last = {
        name: together / (throughput(scenario, [part for other, part in parts.items() if other != name]) / plain)
        for name in parts
    }
    print(f"{base.name}: {plain:.0f} output tokens/s\n")
    print(f"{'part':<24}{'alone':>8}{'added last':>12}{'interaction':>13}")
    for name in parts:
        print(f"{name:<24}{single[name]:>7.2f}x{last[name]:>11.2f}x{last[name] / single[name]:>12.2f}x")
    product = prod(single.values())
    print(f"{'product of the parts':<24}{product:>7.2f}x")
    print(f"{'all together':<24}{together:>7.2f}x{'':>12}{together / product:>12.2f}x\n")
    most = max(parts, key=lambda name: single[name])
    gaining, losing = (pick(parts, key=lambda name: last[name] / single[name]) for pick in (max, min))
    less = (
        f"{losing} gives {single[losing]:.2f}x alone and {last[losing]:.2f}x as the last"
        if last[losing] < single[losing]
        else "no part gives less beside the others"
    )
    print(
        f"All together give {together:.1f}x, where the single factors multiply to {product:.1f}x: {most} gives most "
        f"alone ({single[most]:.2f}x); {gaining} gives {single[gaining]:.2f}x alone and {last[gaining]:.2f}x once the "
        f"rest is there, because its seconds are then a larger share; {less}."
    )


if __name__ == "__main__":
    main()
