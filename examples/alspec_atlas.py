"""Where attention-level speculation pays: gain by chip, model, group size, context, batch, lambda, S and drafter.

Prices single decode steps of two groups of half the chips against the fastest single group of all of them or fewer,
with published hit rates (gsm8k) moved by lambda and S, and with every assumed cost of the mechanism at both ends of its
range. Each layout is written to a file as it is done, so that a stopped run goes on where it was; then a table of the
regions where it pays and a page with a map per number of chips.

    python examples/alspec_atlas.py --output atlas.jsonl --page atlas.html        # about a minute on one core
    python examples/alspec_atlas.py --output few.jsonl --chips n150 p150 --models llama-3.1-70b --groups 16
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from dashboards.attention_report import atlas_html, region_words
from simulator.errors import ForerunError
from simulator.studies.alspec import StepPricer, layout, lever_gains

CHIPS = ("n150", "n150-v0.55", "n300", "p150", "h100-sxm", "h200-sxm", "a100-sxm-80gb", "b200-sxm")
MODELS = ("llama-3.2-1b", "llama-3.1-8b", "qwen3-30b-a3b", "llama-3.1-70b", "gpt-oss-120b", "llama-3.1-405b")
GROUPS = (2, 4, 8, 16, 32)
CONTEXTS = tuple(2**power for power in range(10, 21))
BATCHES = (1, 8)
LEVERS = ((0.10, 128), (0.05, 128), (0.20, 128), (0.10, 1024), (0.05, 1024))
"""lambda and S; the first is the published rule."""
EAGLE3 = {"method": "eagle3", "num_speculative_tokens": 3, "acceptance": {"per_position": [0.73, 0.52, 0.35]}}


def layouts(options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Every layout, those together that share chips, model and drafter: levers are varied where nothing drafts."""
    for chip, model, chips, drafter in product(options.chips, options.models, options.groups, (None, "eagle3")):
        levers = LEVERS if drafter is None else LEVERS[:1]
        case = {"chip": chip, "model": model, "chips": chips}
        yield [case | {"lambda": x, "window_tokens": s, "speculation": drafter} for x, s in levers]


def base_of(case: dict[str, Any]) -> dict[str, Any]:
    """What a layout's scenarios have in common."""
    base: dict[str, Any] = {"model": case["model"], "engine": {"max_num_seqs": 16, "max_num_batched_tokens": 256}}
    if case["chip"].startswith(("n150", "n300", "p150")):
        base |= {"weights_dtype": "bfp8", "kv_cache_dtype": "bfp8"}
    return base | ({"speculation": EAGLE3} if case["speculation"] else {})


@lru_cache(maxsize=256)
def one_group(chip: str, model: str, speculation: str | None, chips: int) -> StepPricer | None:
    """One group of chips without attention-level speculation; None where the model does not fit."""
    base = base_of({"chip": chip, "model": model, "speculation": speculation})
    try:
        return StepPricer(layout(base, hardware={"chip": chip, "tensor_parallel": chips}))
    except ForerunError:
        return None


def priced(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cases that differ in lambda and S alone, with their gains by batch and context or why there are none."""
    case = cases[0]
    hardware = {"chip": case["chip"], "tensor_parallel": case["chips"] // 2, "speculative_parallel": 2}
    levers = [{name: one[name] for name in ("lambda", "window_tokens")} for one in cases]
    sizes = [case["chips"] // 2**halvings for halvings in range(case["chips"].bit_length())]
    alone = [one_group(case["chip"], case["model"], case["speculation"], chips) for chips in sizes]
    try:
        two = layout(base_of(case), hardware=hardware, attention_speculation={"task": "gsm8k"})
        found = lever_gains([group for group in alone if group], two, BATCHES, CONTEXTS, levers)
    except ForerunError as error:
        return [one | {"refused": str(error)} for one in cases]
    return [one | {"gains": [row._asdict() for row in rows]} for one, rows in zip(cases, found, strict=True)]


def main() -> None:
    """Price what is missing, print the regions, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chips", nargs="+", default=CHIPS, help="catalogue names")
    parser.add_argument("--models", nargs="+", default=MODELS, help="catalogue names")
    parser.add_argument("--groups", nargs="+", type=int, default=GROUPS, help="chips in both groups together")
    parser.add_argument("--output", type=Path, required=True, help="JSON lines; what it holds is not priced again")
    parser.add_argument("--page", type=Path, help="HTML page with the maps")
    options = parser.parse_args()
    done = [json.loads(line) for line in options.output.open(encoding="utf-8")] if options.output.exists() else []
    keys = ("chip", "model", "chips", "lambda", "window_tokens", "speculation")
    known = {tuple(case[key] for key in keys) for case in done}
    with options.output.open("a", encoding="utf-8") as file:
        for group in layouts(options):
            missing = [case for case in group if tuple(case[key] for key in keys) not in known]
            found = priced(missing) if missing else []
            file.writelines(json.dumps(case) + "\n" for case in found)
            file.flush()
            done += found
    for case in done:
        name = (
            f"{case['model']} on {case['chips']} x {case['chip']}, lambda {case['lambda']:g}, S {case['window_tokens']}"
        )
        name += f", {case['speculation']}" if case["speculation"] else ""
        told = case.get("refused") or "; ".join(f"batch {batch}: {region_words(case, batch)}" for batch in BATCHES)
        print(f"{name}: {told}")
    if options.page is not None:
        options.page.write_text(atlas_html(done), encoding="utf-8")
        print(options.page)


if __name__ == "__main__":
    main()
