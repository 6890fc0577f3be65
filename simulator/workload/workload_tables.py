"""Statistics of a trace, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.tables import Table, duration, number, pairs

if TYPE_CHECKING:
    from traces import RequestStatistics


def statistics_tables(statistics: RequestStatistics) -> list[Table]:
    """Tables of arrivals, sessions and skipped rows, then of token counts."""
    rows = [("Requests", number(statistics.requests)), ("Format", statistics.format)]
    arrivals = statistics.arrivals
    if arrivals is not None:
        rows += [
            ("Span", duration(arrivals.span_s)),
            ("Mean rate (req/s)", number(arrivals.mean_rps)),
            ("CV of inter-arrival times", number(arrivals.iat_cv)),
            *((f"Peak over mean, bins of {w} s", number(value)) for w, value in arrivals.peak_over_mean.items()),
        ]
    if statistics.sessions is not None:
        rows.append(("Sessions", number(statistics.sessions)))
    rows += [(f"Skipped: {reason}", number(count)) for reason, count in statistics.skipped.items()]
    both = (statistics.input_tokens, statistics.output_tokens)
    figures = {name: [getattr(one, name) for one in both] for name in ("mean", "std", "min")}
    figures |= {name.replace("p999", "p99.9"): [one.percentiles[name] for one in both] for name in both[0].percentiles}
    figures["max"] = [one.max for one in both]
    tokens = Table("Tokens", ("", "input", "output"), [[name, *values] for name, values in figures.items()])
    return [pairs("", rows), tokens]
