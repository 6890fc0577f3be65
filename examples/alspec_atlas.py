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
from pathlib import Path

from alspec_report import atlas_html
from dashboards.figures.attention import region_words
from simulator.studies.alspec import (
    ATLAS_BATCHES,
    ATLAS_CHIPS,
    ATLAS_GROUPS,
    ATLAS_MODELS,
    atlas_gains,
    atlas_layouts,
)


def main() -> None:
    """Price what is missing, print the regions, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chips", nargs="+", default=ATLAS_CHIPS, help="catalogue names")
    parser.add_argument("--models", nargs="+", default=ATLAS_MODELS, help="catalogue names")
    parser.add_argument("--groups", nargs="+", type=int, default=ATLAS_GROUPS, help="chips in both groups together")
    parser.add_argument("--output", type=Path, required=True, help="JSON lines; what it holds is not priced again")
    parser.add_argument("--page", type=Path, help="HTML page with the maps")
    options = parser.parse_args()
    written = options.output.read_text(encoding="utf-8").splitlines() if options.output.exists() else []
    done = [json.loads(line) for line in written]
    keys = ("chip", "model", "chips", "lambda", "window_tokens", "speculation")
    known = {tuple(case[key] for key in keys) for case in done}
    with options.output.open("a", encoding="utf-8") as file:
        for group in atlas_layouts(options.chips, options.models, options.groups):
            missing = [case for case in group if tuple(case[key] for key in keys) not in known]
            result = atlas_gains(missing) if missing else []
            file.writelines(json.dumps(case) + "\n" for case in result)
            file.flush()
            done += result
    for case in done:
        name = (
            f"{case['model']} on {case['chips']} x {case['chip']}, lambda {case['lambda']:g}, S {case['window_tokens']}"
        )
        name += f", {case['speculation']}" if case["speculation"] else ""
        message = case.get("refused") or "; ".join(
            f"batch {batch}: {region_words(case, batch)}" for batch in ATLAS_BATCHES
        )
        print(f"{name}: {message}")
    if options.page is not None:
        options.page.write_text(atlas_html(done), encoding="utf-8")
        print(options.page)


if __name__ == "__main__":
    main()
