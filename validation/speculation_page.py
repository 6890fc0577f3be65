"""The page of published speculation: every row beside its prediction, failures left in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from validation.facts import facts, fitted_words
from validation.speculation import (
    ALL,
    FITTED_DEPTH,
    RESEARCH,
    Comparison,
    CurveScore,
    GroupScore,
    Unpredicted,
    adaptive_tables_of,
    group_score,
    group_scores,
    load_published,
)

HEAD = f"""# Speculation against published measurements

Written by `python -m validation speculation` of Forerun VERSION; failures are left in.

A published speedup is predicted as (plain step) / (verify step / acceptance length): step times from the
chip's profile, acceptance length from the same source (else of the same drafter on the same model in the
catalogue). Where prompt and output lengths are given, each request also pays its prompt. Rows without
lengths are taken in the middle of 128 + 256 tokens, and several streams then pay such prompts too; papers
that name no chip, on an A100; research code runs as framework `{RESEARCH}`, bound by kernel launches. Rows
under open-loop arrivals are two simulated runs of one stream of requests, compared in the source's own
metric. llama.cpp's rows name no chip either, and one of their two formats: its rate without drafts, two
thirds of Q4_K_M's, is that of Q8_0. MagicDec's rows take the acceptance of LLaMA-3.1-8B drafting for
itself from 512 tokens of KV, TinyLlama's too.

Engines of their time: rows of vLLM in 2024, and of EAGLE-3's table 5, run framework `vllm-2024`, which
verifies each draft token as a sequence of its own; SGLang's rows pay the host work of a drafting step that
its scheduler did not overlap. What remains: SGLang's gains at 48 and 64 streams come out too small, because 80
questions do not keep so many busy to the end; under overload (`vllm_blog2024` at 8 requests/s, n-gram) both
runs queue and their ratio says little.

`specforge339` and `angelslim163` (EAGLE-3 on Qwen3-30B-A3B) stay misses. At one stream a drafting step took 1.8 to
3.9 ms longer than predicted on two H100s and 4.3 to 5.2 ms on four, whether the head ran 3 or 8 passes and 3 or 63
draft tokens were verified. Two causes were tried. A head that runs without captured graphs adds time for each pass:
0.5 ms a pass would halve the errors (11 % each, signs 15 of 16), but leaves +19 % at 3 passes and -16 % at 7, and makes
`dflash_t3` (14.9 to 19.2 %) and `eagle3_t3` (9.4 to 10.9 %) worse. Verified tokens that touch as many experts as
they can leave 18 and 21 % (signs 6 of 16), and their share grows with the draft tokens, which the gap does not. What
is left has the shape of host work between ranks that the scheduler does not hide; the only measurement of it
(DeepSeek-R1 on eight ranks, 2.0 ms) says nothing of ranks, so nothing was set. Beyond one stream plain decoding
itself took 1.2 to 5.7 times what is predicted (28 and 52 ms a token for 32 and 64 streams on four H100s), so that
those ratios say little of drafts.

Constants fitted to rows of these tables, as the files say in which they stand:
"""

OVER_LOAD = """Also `forerun validate adaptive`. Misses that remain: verification by confidence at 128 and 256
streams on MI355X gains less than it did (the largest graph there, 2,048, was chosen among three with these cells
in view, so that they are no hold-out). Half of the gap at 256 is the plain step, predicted 12 % too fast; the other
half lies in 12.5 of the 58 ms of a step: 49 us of host time per sequence, measured in vLLM's V1 runner, while DSpark
runs in the V2 runner, which keeps the state of sequences on the device. Without it these cells are 1 % above and 7 %
below (median of the table 4.9 %), but K = 7 at 256 streams then gains 1.09x where it lost (0.88x), and DeepSeek-V4-Pro
goes from 5.7 to 7.1 %: its time per drafted token in that runner is not published, so nothing was changed. Acceptance
that falls with depth as DeepSeek-V4-Pro's does changes nothing, graphs to 1,024 make all six cells at 64 streams and
more worse (K = 7 by 20 to 29 %). TokenSpeed's first DSpark (`kimi_k3_mi355x`, one stream) was slower
than plain decoding though 2.00 tokens were accepted; the same machine gained 39 to 106 % two weeks later
(lightseekorg/tokenspeed#1132), and a verify step at 128K took 1.78 plain steps where 1.30 are predicted. Of
`gemma4_26b_gb10` its author says that the figures at 8 streams are noisy. `qwen_27b_strix_halo`: llama.cpp verifies
recurrent models one slot after the other (ggml-org/llama.cpp#25004), which gives the loss at 4 slots; at 2 slots a
step took 2.7 times that of one, for which neither drafts of one slot after the other nor products of more than 8 rows
account. Of two RTX 5060 Ti with the same kind of model ([local](local.md), nothing set by them) both signs are
right: 0.88 and 0.99 measured, 0.99 and 0.86 predicted.

Ranges: the card limit of `dsv4_flash_rtx_pro_6000` moves both depths alike, its acceptance was not published, and its
author calls the 10.3 % "only moderately larger than the noise". AReno's engine spends some 4 ms of a step on the host,
under which 64 sequences hide (8.2 to 8.8 ms; vLLM is predicted at 4.9 and 7.1). Not scored, as the stored text names
no chip or no architecture: vllm-project/vllm-metal#650 (grammar, 1.22 to 1.82x) and marin-community/marin#9079 and
#9114 (EAGLE-3 for an MoE of its own, 1.50x and 1.61x a stream at 2.53 to 2.56 tokens a step).

Dynamic K at 0 drafts: two constants (0.775 ms and 84 us a stream) were set by the cells at 400 tokens of context; the
cost is not linear in the batch (1.7 times too high at 26 streams), and an older build paid half of it at 192. Full
graphs are not the cause: in vLLM's V2 runner, which keeps them, the same schedule cost 16.6 % at 192 streams."""


def speculation_page(
    comparisons: Sequence[Comparison],
    left: Sequence[Unpredicted],
    curves: Sequence[CurveScore],
    over_load: Mapping[str, Any],
    version: str,
) -> str:
    """The page in Markdown; ``over_load`` is the document of ``compare_adaptive``."""
    lines = (*_tables(comparisons), *_over_load(over_load), *_curves(curves), *_rows(comparisons), *_refused(left))
    sources = sorted({item.row.source for item in comparisons} | {item.row.source for item in left})
    return "\n".join([HEAD.replace("VERSION", version), *lines, "## Sources", "", *(f"* {s}" for s in sources)]) + "\n"


def _tables(comparisons: Sequence[Comparison]) -> Iterator[str]:
    groups = {row.group for row in load_published()}
    for fact in facts():
        if fact.table in groups:
            yield f"* `{fact.table}`, {fact.rows}: {fact.constant}."
    yield from ("", "## By source", "")
    yield "| table | rows | MAPE | bias | side of 1 right | fitted |"
    yield "|---|---:|---:|---:|---:|---|"
    used: dict[str, set[str]] = {}
    for item in comparisons:
        used.setdefault(item.row.group, set()).update(item.constants)
    for score in group_scores(comparisons):
        yield f"{_score(score, score.group)} {fitted_words(score.group, used[score.group])} |"
    if comparisons:
        yield f"{_score(group_score(ALL, comparisons), f'**{ALL}**')} |"
    yield ""


def _score(score: GroupScore, name: str) -> str:
    return f"| {name} | {score.rows} | {score.mape:.1f} % | {score.bias:+.1f} % | {score.right_sign:.0f} % |"


def _over_load(document: Mapping[str, Any]) -> Iterator[str]:
    yield from ("## Plain decoding, fixed K and verification by confidence over the load", "")
    yield from (OVER_LOAD, "")
    for table in adaptive_tables_of(document):
        yield from (f"**{table.title}**", "", table.markdown(), "")
    yield from (
        f"* `{name}`: {source}. Assumed: {document['assumed'][name]}." for name, source in document["sources"].items()
    )
    yield ""


def _curves(curves: Sequence[CurveScore]) -> Iterator[str]:
    yield from (f"## Acceptance beyond the fitted depths (fitted on K = 1 to {FITTED_DEPTH})", "")
    if not curves:
        return
    errors = [abs(curve.error) for curve in curves]
    yield f"{len(curves)} curves; median error {100 * np.median(errors):.1f} %, worst {100 * max(errors):.1f} %."
    yield from ("", "| curve | K | published | predicted | error |", "|---|---:|---:|---:|---:|")
    for curve in sorted(curves, key=lambda c: -abs(c.error)):
        lengths = f"{curve.published:.2f} | {curve.predicted:.2f}"
        yield f"| {curve.curve} | {curve.depth} | {lengths} | {100 * curve.error:+.1f} % |"
    yield ""


def _rows(comparisons: Sequence[Comparison]) -> Iterator[str]:
    yield from ("## Every row", "")
    yield "| id | model | hardware | engine | method | K or nodes | load | length | published | predicted | error |"
    yield "|---|---|---|---|---|---|---|---:|---:|---:|---:|"
    for item in comparisons:
        row = item.row
        hardware = f"{row.chips or ''}{' x ' if row.chips else ''}{row.hardware or 'not stated'}"
        yield (
            f"| {row.id} | {row.model} | {hardware} | {row.engine or 'own code'} | {row.method} | "
            f"{row.tokens or row.nodes or ''} | {row.load_type} {row.load} | {item.acceptance_length:.2f} | "
            f"{row.speedup:.2f} | {item.predicted:.2f} | {100 * item.error:+.0f} % |"
        )
    yield ""


def _refused(left: Sequence[Unpredicted]) -> Iterator[str]:
    yield from ("## Not predicted", "", "| rows | reason |", "|---:|---|")
    for reason, count in Counter(item.reason for item in left).most_common():
        yield f"| {count} | {reason} |"
    yield ""
