"""Makes traces/samples/agents.jsonl: six agents that plan, call helpers at once, wait for them and report.

AIPerf's dag_jsonl, with filler text. ``python tests/traces/agent_sample.py`` writes it anew; nothing is random.
"""

import json
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "traces" / "samples" / "agents.jsonl"
WORDS = ["read", "the", "file", "find", "what", "calls", "it", "change", "one", "thing", "run", "the", "tests", "again"]
WORDS += ["and", "say", "which", "of", "them", "fail", "now"]


def text(tokens: int, first: int) -> str:
    """Filler of about so many tokens, four characters each."""
    words = []
    while len(" ".join(words)) < 4 * tokens:
        words.append(WORDS[(first + 5 * len(words)) % len(WORDS)])
    return " ".join(words)[: 4 * tokens]


def message(role: str, tokens: int, first: int) -> dict:
    return {"role": role, "content": text(tokens, first)}


def helper(name: str, number: int) -> dict:
    """Searches, waits for its tool, answers."""
    requested = [message("system", 200, 1), message("user", 40 + 10 * (number % 4), 20 + number)]
    turns = [{"messages": requested, "max_tokens": 60}]
    for step in range(1 + number % 3):
        result = message("user", 80 + 40 * ((number + step) % 3), 40 + number + step)
        turns.append({"messages": [result], "max_tokens": 50 + 25 * step, "delay": 300.0 + 200 * ((number + step) % 4)})
    return {"session_id": name, "turns": turns}


def agent(number: int) -> list[dict]:
    """Plans, calls helpers, goes on while a slower one works, joins, and hands its report to a reviewer."""
    name = f"agent-{number}"
    helpers = [f"{name}-helper-{one}" for one in range(2 + number % 3)]
    slow = f"{name}-slow"
    turns = [
        {
            "messages": [message("system", 400, 0), message("user", 60 + 20 * number, 3 * number)],
            "max_tokens": 120,
            "spawns": [*helpers, {"children": [slow], "join_at": 2}],
        },
        {"messages": [message("user", 90, 7 + number)], "max_tokens": 100, "delay": 50.0},
        {"messages": [message("user", 150, 9 + number)], "max_tokens": 200, "forks": [f"{name}-review"]},
    ]
    review = {"session_id": f"{name}-review", "turns": [{"messages": [message("user", 30, 2)], "max_tokens": 150}]}
    children = [helper(child, 3 * number + place) for place, child in enumerate([*helpers, slow])]
    return [{"session_id": name, "turns": turns}, *children, review]


def sample() -> str:
    return "".join(json.dumps(line) + "\n" for number in range(6) for line in agent(number))


if __name__ == "__main__":
    FILE.write_text(sample(), encoding="utf-8")
