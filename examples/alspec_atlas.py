"""Where attention-level speculation pays: gain by chip, model, group size, context, batch, lambda, S and drafter.

Prices single decode steps of two groups of half the chips against one group of all of them, with published hit rates
(gsm8k) moved by lambda and S, and with every assumed cost of the mechanism at both ends of its range. Each layout is
written to a file as it is done, so that a stopped run goes on where it was; then a table of the regions where it pays
and a page with a map per number of chips.

    python examples/alspec_atlas.py --output atlas.jsonl --page atlas.html        # some twenty minutes on one core
    python examples/alspec_atlas.py --output few.jsonl --chips n150 p150 --models llama-3.1-70b --groups 16
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from dashboards.attention_report import atlas_html, region_words
from simulator.errors import ForerunError
from simulator.studies.alspec import gains, layout

CHIPS = ("n150", "n150-v0.55", "n300", "p150", "h100-sxm", "h200-sxm", "a100-sxm-80gb", "b200-sxm")
MODELS = ("llama-3.2-1b", "llama-3.1-8b", "qwen3-30b-a3b", "llama-3.1-70b", "gpt-oss-120b", "llama-3.1-405b")
GROUPS = (2, 4, 8, 16, 32)
CONTEXTS = tuple(2**power for power in range(10, 21))
BATCHES = (1, 8)
LEVERS = ((0.10, 128), (0.05, 128), (0.20, 128), (0.10, 1024), (0.05, 1024))
"""lambda and S; the first is the published rule."""
EAGLE3 = {"method": "eagle3", "num_speculative_tokens": 3, "acceptance": {"per_position": [0.73, 0.52, 0.35]}}


def cases(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every layout: levers and token speculation are varied where the published rule stands alone first."""
    for chip, model, chips in product(options.chips, options.models, options.groups):
        for (tolerance, window), speculation in product(LEVERS, (None, "eagle3")):
            if speculation is None or (tolerance, window) == LEVERS[0]:
                case = {"chip": chip, "model": model, "chips": chips, "lambda": tolerance, "window_tokens": window}
                yield case | {"speculation": speculation}


def priced(case: dict[str, Any]) -> dict[str, Any]:
    """The case with its gains by batch and context, or with the reason why there are none."""
    base: dict[str, Any] = {"model": case["model"], "engine": {"max_num_seqs": 16, "max_num_batched_tokens": 256}}
    if case["chip"].startswith(("n150", "n300", "p150")):
        base |= {"weights_dtype": "bfp8", "kv_cache_dtype": "bfp8"}
    if case["speculation"]:
        base["speculation"] = EAGLE3
    half = case["chips"] // 2
    levers = {"task": "gsm8k", "lambda": case["lambda"], "window_tokens": case["window_tokens"]}
    hardware = {"chip": case["chip"], "tensor_parallel": half, "speculative_parallel": 2}
    try:
        one = layout(base, hardware={"chip": case["chip"], "tensor_parallel": case["chips"]})
        rows = gains(one, layout(base, hardware=hardware, attention_speculation=levers), BATCHES, CONTEXTS)
    except ForerunError as error:
        return case | {"refused": str(error)}
    return case | {"gains": [row._asdict() for row in rows]}


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
        for case in cases(options):
            if tuple(case[key] for key in keys) not in known:
                done.append(priced(case))
                file.write(json.dumps(done[-1]) + "\n")
                file.flush()
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
