"""Azure LLM inference traces: 2023 (7-digit fractions), 2024 (UTC, fraction missing when zero), multimodal 2025."""

from traces.requests.layout import Layout, columns

_COLUMNS = {
    "arrival_s": columns("TIMESTAMP"),
    "input_tokens": columns("ContextTokens"),
    "output_tokens": columns("GeneratedTokens"),
}

AZURE_LLM = Layout(
    "azure-llm",
    "Azure LLM inference traces 2023 and 2024 (TIMESTAMP, ContextTokens, GeneratedTokens)",
    _COLUMNS,
    signature=("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    options=frozenset(),
)
AZURE_LMM = Layout(
    "azure-lmm",
    "Azure LMM inference trace 2025 (TIMESTAMP, NumImages, ContextTokens with image tokens, GeneratedTokens)",
    _COLUMNS,
    signature=("TIMESTAMP", "NumImages", "ContextTokens", "GeneratedTokens"),
    options=frozenset(),
)
