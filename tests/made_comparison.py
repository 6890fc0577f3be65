"""Variants of a comparison, made up."""

from typing import Any


def made_variant(name: str, speedup: dict[str, Any], baseline: str = "a", **changes: Any) -> dict[str, Any]:
    """JSON of a variant that differs in nothing but its speedups."""
    plain = {"set": {}, "interval_of": "sampling", "ideal": False, "intervals": None, "slo": None, "scenario": {}}
    plain |= {"bottleneck": {}, "basis": "calibrated", "chips": 1, "energy_joules": None, "summary": {}}
    return {
        **plain,
        "name": name,
        "baseline": baseline,
        "speedup": speedup,
        "usd_per_million_output_tokens": None,
        **changes,
    }


def made_comparison(variants: list[dict[str, Any]], metric: str, **changes: Any) -> dict[str, Any]:
    """JSON of a comparison with variants against ``a``."""
    plain = {"baseline": "a", "level": 0.95, "crossover": None, "load_curves": None, "served_load": None}
    plain |= {"sensitivity": [], "replications": 4, "scenario": {}, "seed": 0, "version": "9.9", "notes": []}
    return {**plain, "basis": "calibrated", "variants": variants, "metric": metric, **changes}


def made_swing(says: str, flips: list[str], low: float = 1.0, high: float = 1.0, **changes: Any) -> dict[str, Any]:
    """JSON of an assumed parameter that moves variant ``b`` alone."""
    ratios = {"b": {"at_low": low, "at_high": high}, "c": {"at_low": 1.0, "at_high": 1.0}}
    plain = {"parameter": says, "unit": "factor", "low": 0.5, "high": 2.0, "source": "nobody", "ratios": ratios}
    return {**plain, "says": says, "flips": flips, **changes}
