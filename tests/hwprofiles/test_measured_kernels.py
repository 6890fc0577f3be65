"""The shipped fits against kernels that ``simulator/replay/test_real_kernels.py`` leaves out: those of an H200, of
libraries without a fit of their own, experts, and collectives of every kind."""

import csv

import numpy as np
import pytest

from hwprofiles import AttentionShape, KernelLibrary, load_chip, load_link
from simulator.replay import Split, replay_kernels
from traces.kernels import read_kernels
from validation import tables as tables  # lets read_kernels read them

SPLIT = Split(0.7, 1)
GEMM = ("dtype=bf16", "n>=1024", "k>=1024")
ATTENTION = ("dtype=bf16", "kv_dtype=bf16", "head_dim=128", "window=0")
EXPERTS = ("dtype=bf16", "routing=balanced")


@pytest.mark.parametrize(
    ("chip", "table", "library", "where", "limit"),
    [
        ("h200-sxm", "gemm/vllm/0.24.0/gemm", "vllm", GEMM, 7.5),
        ("h200-sxm", "attention/vllm/0.24.0/generation_attention", "vllm", ATTENTION, 6),
        ("h200-sxm", "attention/vllm/0.24.0/context_attention", "vllm", ATTENTION, 8),
        ("h100-sxm", "gemm/vllm/0.24.0/gemm", "generic", GEMM, 7.5),
        ("a100-sxm", "gemm/sglang/0.5.10/gemm", "generic", GEMM, 8),
        ("a100-sxm", "attention/trtllm/1.0.0/context_attention", "trtllm", ATTENTION, 8),
        ("h100-sxm", "moe/vllm/0.24.0/moe", "vllm", EXPERTS, 15),
        ("h100-sxm", "moe/sglang/0.5.14/moe", "sglang", EXPERTS, 21),
        ("h100-sxm", "moe/trtllm/1.3.0rc20/moe", "trtllm", EXPERTS, 17),
        ("h100-sxm", "comm/vllm/0.24.0/custom_allreduce", "vllm", ("message_bytes<=8388608",), 10),
        ("b200-sxm", "comm/nccl/2.29.2/nccl", "nccl", ("op=all_reduce",), 10),
        ("b200-sxm", "comm/nccl/2.29.2/nccl", "nccl", ("op=all_to_all",), 11),
        ("a100-sxm", "linear_attention/sglang/0.5.10/gdn", "sglang", ("op=elementwise",), 13),
        ("b200-sxm", "moe/sglang/0.5.10/wideep_generation_moe", "sglang", (), 15),
        ("b200-sxm", "moe/sglang/0.5.10/wideep_context_moe", "sglang", (), 13),
        ("b200-sxm", "moe/trtllm/1.3.0rc10/wideep_moe", "trtllm", (), 16),
    ],
)
def test_held_out_shapes(shared_data, chip, table, library, where, limit):
    path = shared_data / "kernels" / "aiconfigurator" / chip.replace("-", "_") / f"{table}_perf.parquet"
    kernels = KernelLibrary({"a100-sxm": "a100-sxm-80gb"}.get(chip, chip), library)
    assert replay_kernels(read_kernels(path), kernels, SPLIT, where).overall.mape <= limit


@pytest.mark.parametrize(
    ("chip", "share", "measured_us"),
    [
        ("tpu-v7", 1 / 2, {(16, 8192, 8192): 43.3, (2048, 2048, 2048): 22.7, (8192, 8192, 8192): 1243.2}),
        ("trainium3", 1 / 4, {(2048, 4096, 1024): 135.2, (4096, 4096, 4096): 927.6, (8192, 10240, 7168): 7908.8}),
    ],
)
def test_products_of_systolic_arrays_fill_no_tile_anew(chip, share, measured_us):
    """Device times of InferenceX, summer of 2026: a chiplet (half) of TPU7x, two of eight cores of Trainium3."""
    whole = load_chip(chip)
    peaks = {name: peak * share for name, peak in whole.compute.dense_flops_per_s.items()}
    part = {"cores": round(whole.compute.cores * share), "dense_flops_per_s": peaks}
    memory, on_chip = (
        group.model_copy(update={"bandwidth_bytes_per_s": group.bandwidth_bytes_per_s * share})
        for group in (whole.memory, whole.on_chip)
    )
    compute = whole.compute.model_copy(update=part)
    kernels = KernelLibrary(whole.model_copy(update={"compute": compute, "memory": memory, "on_chip": on_chip}))
    errors = [kernels.gemm(*sizes).seconds / (us * 1e-6) - 1 for sizes, us in measured_us.items()]
    assert np.max(np.abs(errors)) < 0.2


@pytest.mark.parametrize(("chip", "version"), [("h100-sxm", "2.29.2"), ("a100-sxm", "2.27.3"), ("h200-sxm", "2.29.2")])
def test_nccl_collectives_of_a_megabyte_and_more(shared_data, chip, version):
    folder = shared_data / "kernels" / "aiconfigurator" / chip.replace("-", "_")
    table = read_kernels(folder / "comm" / "nccl" / version / "nccl_perf.parquet")
    kernels, errors = KernelLibrary({"a100-sxm": "a100-sxm-80gb"}.get(chip, chip), "nccl"), []
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for chips in (2, 4, 8):
            where = [f"op={op}", f"world_size={chips}", "message_bytes>=1048576"]
            errors.append(replay_kernels(table, kernels, where=where).overall.mape)
            assert errors[-1] < 12, (op, chips)
    assert np.mean(errors) < 8


@pytest.mark.parametrize(
    ("chips", "measured_us"),
    [
        (2, {1 << 10: 30.6, 1 << 14: 40.3, 1 << 16: 52.0, 1 << 18: 68.4, 1 << 20: 93.7}),
        (16, {1 << 10: 43.7, 1 << 14: 53.7, 1 << 16: 65.5, 1 << 18: 63.4, 1 << 20: 77.2, 1 << 25: 277.0, 1 << 26: 461}),
    ],
)
def test_all_reduce_between_two_servers(chips, measured_us):
    """nccl-tests, NCCL 2.30, H200 of two servers over 400 Gb/s RoCE: one chip of each, and eight of each."""
    network = load_link("ethernet-400g")
    if chips > 2:
        network = network.model_copy(update={"server": load_link("nvlink4"), "server_chips": chips // 2})
    times = [KernelLibrary("h200-sxm").collective("all_reduce", size, chips, network) for size in measured_us]
    errors = [time.seconds / (us * 1e-6) - 1 for time, us in zip(times, measured_us.values(), strict=True)]
    assert np.mean(np.abs(errors)) < 0.11
    assert np.max(np.abs(errors)) < 0.2


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"])
def test_servers_of_several_chips_share_their_network_adapters(op):
    """Chips of one server keep its link; 16 chips of two servers are faster than 16 of a chip each, never faster than
    what leaves the server."""
    flat, inner = load_link("infiniband-ndr"), load_link("nvlink4")
    both = flat.model_copy(update={"server": inner, "server_chips": 8})
    kernels = KernelLibrary("h100-sxm", "vllm")
    inside, inner_only, joined, alone = (
        kernels.collective(op, 1 << 24, chips, link).seconds
        for chips, link in ((8, both), (8, inner), (16, both), (16, flat))
    )
    assert inside == inner_only < joined <= alone
    assert both.between_groups(8).server_chips == 1


def test_tenstorrent_collectives(shared_data):
    text = (shared_data / "published" / "tenstorrent_ccl.csv").read_text(encoding="utf-8")
    errors = []
    for row in csv.DictReader(text.splitlines()):
        if row["op"] != "all_reduce":
            continue
        link = "tenstorrent-ethernet" if row["topology"] == "ring" else "tenstorrent-warp100"
        time = KernelLibrary("n150").collective("all_reduce", float(row["bytes"]), int(row["n_dev"]), link)
        errors.append(abs(time.seconds / (float(row["time_us"]) * 1e-6) - 1))
    assert len(errors) > 10
    assert np.mean(errors) < 0.25


def test_blis_decode_reaches_the_bandwidth(shared_data):
    """Another benchmark of the same chip: long decodes reach 2.8-3.2 TB/s; neither faster nor much slower is right."""
    text = (shared_data / "kernels" / "blis" / "h100_attention_decode.csv").read_text(encoding="utf-8")
    ratios = []
    for row in csv.DictReader(text.splitlines()):
        heads, kv_heads = (int(row[key]) // int(row["tp"]) for key in ("model_heads", "model_kv_heads"))
        batch, length = int(row["batch_size"]), int(row["kv_len"])
        if batch * length < 1 << 20 or not kv_heads:
            continue
        shape = AttentionShape(heads, kv_heads, 128, 128, 512.0 * kv_heads, "bf16")
        time = KernelLibrary("h100-sxm", "vllm").attention_decode(shape, seqs=batch, q_len=1, kv_tokens=batch * length)
        ratios.append(time.seconds / (float(row["latency_us"]) * 1e-6))
    assert len(ratios) > 20
    assert 0.95 < np.median(ratios) < 1.12
