"""GGUF headers: the model, its formats by tensor with exact bits, and one clear line for what is damaged."""

import builtins
import json

import numpy as np
import pytest

from forerun.errors import ForerunError
from hwprofiles.dtypes import DTYPES, GGUF_BLOCKS, math_dtype
from simulator.cli import main
from simulator.llm import load_architecture

gguf = pytest.importorskip("gguf", reason="reading GGUF files needs the extra 'local'")
Kind = gguf.GGMLQuantizationType

HIDDEN, WIDTH, VOCABULARY, HEADS, KV_HEADS, HEAD = 256, 512, 1024, 4, 2, 64


def write(path, architecture, metadata, tensors, **extra):
    """A file of zeros with the package's own writer: ``tensors`` are (name, (outputs, inputs), type)."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (metadata | extra).items():
        if isinstance(value, list):
            writer.add_array(f"{architecture}.{key}", value)
        else:
            writer.add_uint32(key if key.startswith("split.") else f"{architecture}.{key}", value)
    for name, shape, kind in tensors:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        if kind in (Kind.F32, Kind.F16):
            writer.add_tensor(name, np.zeros(shape, np.float32 if kind == Kind.F32 else np.float16))
        else:
            data = np.zeros((*shape[:-1], shape[-1] // block * size), np.uint8)
            writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


METADATA = {
    "block_count": 2,
    "embedding_length": HIDDEN,
    "feed_forward_length": WIDTH,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.key_length": HEAD,
    "context_length": 4096,
}


def llama(layers=2, quantised=Kind.Q4_K, more=Kind.Q6_K, tied=False):
    """The tensors of a Llama as a common recipe mixes them: half of the down-projections finer."""
    result = [("token_embd.weight", (VOCABULARY, HIDDEN), quantised), ("output_norm.weight", (HIDDEN,), Kind.F32)]
    result += [] if tied else [("output.weight", (VOCABULARY, HIDDEN), more)]
    result += [("rope_freqs.weight", (HEAD // 2,), Kind.F32)]
    for layer in range(layers):
        result += [
            (f"blk.{layer}.attn_norm.weight", (HIDDEN,), Kind.F32),
            (f"blk.{layer}.attn_q.weight", (HEADS * HEAD, HIDDEN), quantised),
            (f"blk.{layer}.attn_k.weight", (KV_HEADS * HEAD, HIDDEN), quantised),
            (f"blk.{layer}.attn_v.weight", (KV_HEADS * HEAD, HIDDEN), more),
            (f"blk.{layer}.attn_output.weight", (HIDDEN, HEADS * HEAD), quantised),
            (f"blk.{layer}.ffn_norm.weight", (HIDDEN,), Kind.F32),
            (f"blk.{layer}.ffn_gate.weight", (WIDTH, HIDDEN), quantised),
            (f"blk.{layer}.ffn_up.weight", (WIDTH, HIDDEN), quantised),
            (f"blk.{layer}.ffn_down.weight", (HIDDEN, WIDTH), more if layer % 2 else quantised),
        ]
    return result


PARAMETERS = 2 * VOCABULARY * HIDDEN + HIDDEN + 2 * (2 * HIDDEN + HIDDEN * (2 * 256 + 2 * 128) + 3 * WIDTH * HIDDEN)


def test_a_mixed_file_is_read_with_its_formats_by_tensor(tmp_path):
    path = write(tmp_path / "tiny-Q4_K_M.gguf", "llama", METADATA, llama())
    architecture = load_architecture(path)
    assert architecture.parameters().total == PARAMETERS
    assert architecture.kv_elements_per_token == 2 * 2 * KV_HEADS * HEAD
    assert architecture.max_position == 4096
    dtypes = architecture.checkpoint_dtypes
    assert (dtypes["embedding"], dtypes["lm_head"], dtypes["attention"], dtypes["mlp"], dtypes["norm"]) == (
        "q4_k", "q6_k", "q4_k:0.8333+q6_k:0.1667", "q4_k:0.8333+q6_k:0.1667", "fp32",
    )  # fmt: skip
    fine = VOCABULARY * HIDDEN + 2 * HIDDEN * 128 + HIDDEN * WIDTH
    plain = HIDDEN + 4 * HIDDEN + HEAD // 2
    rest = PARAMETERS + HEAD // 2 - fine - plain
    bits = (fine * 6.5625 + rest * 4.5 + plain * 32) / (PARAMETERS + HEAD // 2)
    assert any(f"{bits:.3f} bits per weight" in note for note in architecture.notes)
    assert any("Q6_K (6.5625)" in note for note in architecture.notes)


def test_the_command_prints_and_writes_what_the_contract_names(tmp_path, capsys):
    path = write(tmp_path / "tiny.gguf", "llama", METADATA, llama(tied=True))
    assert main(["models", "check", str(path), "--json", str(tmp_path / "out.json")]) == 0
    assert "bits per weight" in " ".join(capsys.readouterr().out.split())
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["parameters_total"] == PARAMETERS - VOCABULARY * HIDDEN
    assert document["tie_word_embeddings"]
    assert document["kv_bytes_per_token"] == 2 * 2 * 2 * KV_HEADS * HEAD
    assert document["state_bytes_per_sequence"] == 0
    assert document["family"] == "llama"


@pytest.mark.parametrize("name", sorted(GGUF_BLOCKS))
def test_bits_per_weight_are_those_of_the_package(name):
    weights, size = gguf.GGML_QUANT_SIZES[Kind[name.upper()]]
    assert DTYPES[name] == size / weights
    assert math_dtype(name, {"fp16"}) == "fp16"


def test_every_type_of_the_package_has_a_format():
    plain = {"F32", "F16", "BF16", "F64", "MXFP4", "NVFP4", "I8", "I16", "I32", "I64"}
    assert {kind.name for kind in gguf.GGML_QUANT_SIZES} - plain == {name.upper() for name in GGUF_BLOCKS}
    for kind, name in (("MXFP4", "mxfp4"), ("NVFP4", "fp4"), ("BF16", "bf16")):
        weights, size = gguf.GGML_QUANT_SIZES[Kind[kind]]
        assert DTYPES[name] == size / weights


def test_experts_and_hybrids_are_distinguished(tmp_path):
    """A Qwen3-Next of two layers: a gated delta net and attention, experts in both."""
    metadata = METADATA | {
        "attention.key_length": 64, "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 256,
        "expert_shared_feed_forward_length": 256, "ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 2,
        "ssm.time_step_rank": 4, "ssm.inner_size": 128, "full_attention_interval": 2,
    }  # fmt: skip
    tensors = [("token_embd.weight", (VOCABULARY, HIDDEN), Kind.Q8_0), ("output_norm.weight", (HIDDEN,), Kind.F32)]
    for layer in range(2):
        tensors += [
            (f"blk.{layer}.ffn_gate_inp.weight", (4, HIDDEN), Kind.F32),
            (f"blk.{layer}.ffn_gate_exps.weight", (4, 256, HIDDEN), Kind.IQ3_XXS),
            (f"blk.{layer}.ffn_up_exps.weight", (4, 256, HIDDEN), Kind.IQ3_XXS),
            (f"blk.{layer}.ffn_down_exps.weight", (4, HIDDEN, 256), Kind.IQ3_XXS),
            (f"blk.{layer}.ffn_gate_shexp.weight", (256, HIDDEN), Kind.Q8_0),
            (f"blk.{layer}.ffn_up_shexp.weight", (256, HIDDEN), Kind.Q8_0),
            (f"blk.{layer}.ffn_down_shexp.weight", (HIDDEN, 256), Kind.Q8_0),
        ]
    tensors += [
        ("blk.0.attn_qkv.weight", (2 * 64 + 128, HIDDEN), Kind.Q8_0),
        ("blk.0.attn_gate.weight", (128, HIDDEN), Kind.Q8_0),
        ("blk.0.ssm_ba.weight", (8, HIDDEN), Kind.Q8_0),
        ("blk.0.ssm_out.weight", (HIDDEN, 128), Kind.Q8_0),
        ("blk.1.attn_q.weight", (2 * HEADS * 64, HIDDEN), Kind.Q8_0),
        ("blk.1.attn_k.weight", (KV_HEADS * 64, HIDDEN), Kind.Q8_0),
        ("blk.1.attn_v.weight", (KV_HEADS * 64, HIDDEN), Kind.Q8_0),
        ("blk.1.attn_output.weight", (HIDDEN, HEADS * 64), Kind.Q8_0),
        ("blk.1.attn_q_norm.weight", (64,), Kind.F32),
    ]
    architecture = load_architecture(write(tmp_path / "next.gguf", "qwen3next", metadata, tensors))
    assert architecture.kv_elements_per_token == 2 * KV_HEADS * 64
    assert architecture.state_bytes_per_sequence == 4 * 32 * 32 * 4 + 3 * (2 * 64 + 128) * 2
    assert architecture.checkpoint_dtypes["expert"] == "iq3_xxs"
    assert architecture.checkpoint_dtypes["attention"] == "q8_0"


def test_a_header_alone_is_enough(tmp_path):
    path = write(tmp_path / "tiny.gguf", "llama", METADATA, llama())
    whole = load_architecture(path)
    path.write_bytes(path.read_bytes()[:4096])
    assert load_architecture(path).layer_groups == whole.layer_groups


def test_a_split_file_needs_its_parts_and_starts_with_the_first(tmp_path):
    tensors = llama()
    parts = [tmp_path / f"tiny-0000{part}-of-00002.gguf" for part in (1, 2)]
    write(parts[0], "llama", METADATA, tensors[:8], **{"split.count": 2})
    with pytest.raises(ForerunError, match=r"tiny-00002-of-00002\.gguf: no such file"):
        load_architecture(parts[0])
    write(parts[1], "llama", {}, tensors[8:], **{"split.count": 2})
    assert load_architecture(parts[0]).parameters().total == PARAMETERS
    with pytest.raises(ForerunError, match=r"not the first part.*tiny-00001"):
        load_architecture(parts[1])
    whole = write(tmp_path / "renamed.gguf", "llama", METADATA, tensors, **{"split.count": 2})
    with pytest.raises(ForerunError, match="its name does not say which"):
        load_architecture(whole)


@pytest.mark.parametrize("kept", [0, 3, 4, 8, 20, 30, 100, 200, 400])
def test_a_file_that_ends_in_its_header_is_one_line(tmp_path, kept):
    path = write(tmp_path / "tiny.gguf", "llama", METADATA, llama())
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ForerunError, match="is not a GGUF file, or is damaged") as caught:
        load_architecture(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_damage_anywhere_in_the_header_ends_in_a_model_or_one_line(tmp_path):
    """Every 7th byte of the header set to 255, lengths among them: none hangs, none escapes as a traceback."""
    path = write(tmp_path / "tiny.gguf", "llama", METADATA, llama(layers=2))
    sound = path.read_bytes()[:2500]
    for place in range(0, 2400, 7):
        path.write_bytes(sound[:place] + b"\xff" + sound[place + 1 :])
        refusal = refused(path)
        assert refusal is None or (refusal.startswith(str(path)) and "\n" not in refusal)


def refused(path):
    """Why a file is refused; None where it is read."""
    try:
        load_architecture(path)
    except ForerunError as error:
        return str(error)
    return None


def test_tensors_that_are_not_the_described_model_are_refused(tmp_path):
    path = write(tmp_path / "tiny.gguf", "llama", METADATA | {"feed_forward_length": 2 * WIDTH}, llama())
    with pytest.raises(ForerunError, match=r"its tensors hold .* but its metadata describe"):
        load_architecture(path)


def test_unknown_architectures_and_missing_fields_are_named(tmp_path):
    with pytest.raises(ForerunError, match=r"general\.architecture 'rwkv7' is not read here \(one of .*llama"):
        load_architecture(write(tmp_path / "a.gguf", "rwkv7", METADATA, llama()))
    without = {key: value for key, value in METADATA.items() if key != "embedding_length"}
    with pytest.raises(ForerunError, match=r"b\.gguf: hidden_size is missing"):
        load_architecture(write(tmp_path / "b.gguf", "llama", without, llama()))
    with pytest.raises(ForerunError, match="no such file"):
        load_architecture(tmp_path / "c.gguf")


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "tiny.gguf", "llama", METADATA, llama())
    real = builtins.__import__

    def missing(name, *rest, **more):
        if name == "gguf":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ForerunError, match=r"pip install 'forerun\[local\]'$"):
        load_architecture(path)
