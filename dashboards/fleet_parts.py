"""Pools and replicas of a run as HTML tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from dashboards.report_parts import number, percent

MOST_REPLICAS = 64
"""Replicas up to which each has a row."""


def pool_table(document: dict[str, Any]) -> str:
    """One row per pool; empty where all replicas are equal."""
    rows = [
        [
            f"{pool['name']} ({pool['role']})",
            f"{pool['replicas']} on {pool['chips']} x {pool['chip']}",
            percent(pool["busy"]),
            percent(pool["peak_use"]),
            percent(pool["prefix_hit_rate"]),
            f"{percent(pool['utilisation']['mfu'])} / {percent(pool['utilisation']['mbu'])}",
        ]
        for pool in document.get("pools") or ()
    ]
    return _table(("Pool", "Replicas", "Busy", "Peak KV", "Prefix hits", "MFU / MBU"), rows)


def replica_table(document: dict[str, Any]) -> str:
    """One row per replica; empty where there is only one, or too many to read."""
    replicas = document.get("replicas") or []
    if not 1 < len(replicas) <= MOST_REPLICAS:
        return ""
    rows = [
        [
            f"{row['replica']} ({row['pool']})" if document.get("pools") else str(row["replica"]),
            number(row["requests"]),
            number(row["prompt_tokens"]),
            percent(row["prefix_hit_rate"]),
            percent(row["peak_use"]),
            percent(row["busy"]),
        ]
        for row in replicas
    ]
    return _table(("Replica", "Requests", "Prompt tokens", "Prefix hits", "Peak KV", "Busy"), rows)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr><th>{escape(row[0])}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row[1:])}</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
