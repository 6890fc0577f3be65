"""The catalogue: every profile is valid and sourced, bad ones are refused in one line that names file and field."""

import csv
import re
from importlib import resources

import pytest
import yaml

from hwprofiles import AttentionShape, KernelLibrary, ProfileError, chip_names, link_names, load_chip, load_link
from hwprofiles.catalogue import load_defaults, named_chip
from hwprofiles.choice import UNFITTED_INTERVALS, unfitted_interval
from hwprofiles.dtypes import DTYPES, dtype_bytes, math_dtype
from hwprofiles.kernels.recurrent import RecurrentShape
from hwprofiles.kernels.sparse import SparseShape
from hwprofiles.parameters import FAMILIES
from hwprofiles.schema import KINDS

CONTRACT_CHIPS = """h100-sxm h100-pcie h200-sxm b200-sxm a100-sxm-80gb a100-sxm-40gb a100-pcie-80gb l40s mi300x
    rtx-4090 rtx-pro-6000 apple-m3-max n150 n150-v0.55 n300 p150 cpu mi355x gb300 h20 rtx-5090 apple-m1-max apple-m4
    apple-m4-pro apple-m3-ultra"""
CONTRACT_LINKS = """nvlink2 nvlink3 nvlink4 nvlink5 pcie3-x16 pcie4-x16 pcie5-x16 ethernet-100g ethernet-400g
    infiniband-ndr infiniband-hdr tenstorrent-ethernet infinity-fabric"""


def catalogue_text(folder: str, name: str) -> str:
    return resources.files("hwprofiles").joinpath(folder, f"{name}.yaml").read_text("utf-8")


def test_contract_names_exist():
    assert set(CONTRACT_CHIPS.split()) <= set(chip_names())
    assert set(CONTRACT_LINKS.split()) <= set(link_names())


@pytest.mark.parametrize("name", chip_names())
def test_every_chip_is_valid_sourced_and_linked(name):
    chip = load_chip(name)
    assert chip.name == name
    for group in ("compute", "memory", "on_chip", "links", "power", *(["host"] if chip.kind == "tensix" else [])):
        assert chip.sources[group].reference
    for link in (chip.links.scale_up, chip.links.scale_out, chip.links.host):
        assert link is None or link in link_names()
    assert chip.like is None or chip.like in chip_names()
    for families in chip.kernels.values():
        for sets in families.values():
            for parameters in sets.values():
                assert parameters.source.reference


@pytest.mark.parametrize("name", chip_names())
def test_every_chip_predicts_every_family(name):
    """No family is faster than its bytes pass and its products compute, nor a thousand times slower."""
    kernels = KernelLibrary(name)
    dtype = "bf16"
    link = kernels.chip.links.scale_up or "pcie4-x16"
    shape = AttentionShape(32, 8, 128, 128, 4096.0, dtype)
    state = RecurrentShape(16, 48, 128, 128, dtype)
    sparse = SparseShape(64, 1, 576, 512, 1152.0, dtype, most=2048)
    times = {
        "gemm": kernels.gemm(512, 4096, 4096),
        "attention_prefill": kernels.attention_prefill(
            shape, seqs=1, q_tokens=2048, pairs=2048 * 2049 / 2, kv_tokens=2048
        ),
        "attention_decode": kernels.attention_decode(shape, seqs=32, q_len=1, kv_tokens=32 * 2048),
        "moe": kernels.moe(tokens=512, num_experts=8, experts_per_token=2, hidden=4096, intermediate=4096),
        "elementwise": kernels.elementwise(1e8),
        "recurrent_prefill": kernels.recurrent_prefill(state, seqs=4, q_tokens=8192),
        "recurrent_decode": kernels.recurrent_decode(state, seqs=32, q_len=1),
        "sparse_prefill": kernels.sparse_prefill(sparse, seqs=1, q_tokens=8192, pairs=8192 * 2048, kv_tokens=8192),
        "sparse_decode": kernels.sparse_decode(sparse, seqs=256, q_len=1, kv_tokens=256 * 2048),
    }
    assert set(UNFITTED_INTERVALS) < set(FAMILIES)
    assert all(low < 1 < high for low, high in map(unfitted_interval, FAMILIES))
    for family in FAMILIES:
        assert kernels.basis(family) in {"datasheet", "calibrated", "extrapolated"}
    for family, time in times.items():
        bound = max(time.flops / kernels.chip.peak_flops(dtype), time.bytes / kernels.chip.memory.bandwidth_bytes_per_s)
        assert bound <= time.seconds < 1000 * bound, family
    assert kernels.collective("all_reduce", 1e8, 2, link).seconds > 1e8 / load_link(link).bandwidth_bytes_per_s
    assert set(FAMILIES) == {*times, "collective"}


@pytest.mark.parametrize("name", link_names())
def test_every_link_is_valid(name):
    link = load_link(name)
    assert link.name == name
    assert 1e9 < link.bandwidth_bytes_per_s < 2e12
    assert 1e-8 < link.latency_s < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_every_class_has_defaults_for_all_families(kind):
    assert set(load_defaults(kind)) == set(FAMILIES)


def test_dense_figures_never_sparse():
    # figures of the vendors' data sheets without sparsity; the sparse ones are twice as large
    assert load_chip("h100-sxm").peak_flops("bf16") == pytest.approx(989e12, rel=2e-3)
    assert load_chip("h100-sxm").peak_flops("fp8") == pytest.approx(1979e12, rel=2e-3)
    assert load_chip("a100-sxm-80gb").peak_flops("bf16") == pytest.approx(312e12)
    assert load_chip("l40s").peak_flops("fp8") == pytest.approx(733e12)
    assert load_chip("b200-sxm").peak_flops("fp4") == pytest.approx(9e15)


def test_catalogue_agrees_with_published_figures(shared_data):
    text = (shared_data / "published" / "hardware.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    others = {"RTX-PRO-6000-Server": "rtx-pro-6000", "RTX4090": "rtx-4090", "P150a": "p150"}
    checked = 0
    for row in rows:
        name = others.get(row["device"], row["device"].lower())
        if name not in chip_names():
            continue
        chip = load_chip(name)
        if row["field"] == "mem_bw":
            assert chip.memory.bandwidth_bytes_per_s == pytest.approx(float(row["value"]) * 1e9, rel=0.01), row
        elif row["field"] in {"bf16", "fp8", "fp4"} and row["unit"].startswith("TFLOPS"):
            assert chip.compute.dense_flops_per_s[row["field"]] == pytest.approx(
                float(row["value"]) * 1e12, rel=0.02
            ), row
        elif row["field"] == "cores":
            assert chip.compute.cores == int(row["value"]), row
        elif row["field"] == "tdp":
            assert chip.power.tdp_w == float(row["value"]), row
        elif row["field"] == "mem_gb":
            assert chip.memory.capacity_bytes == pytest.approx(float(row["value"]) * 1e9, rel=0.09), row
        else:
            continue
        checked += 1
    assert checked > 50


LOCAL_NAMES = {
    "Tesla V100": "v100-pcie", "Tesla P40": "p40", "Radeon AI PRO R9700": "r9700", "RTX A6000": "rtx-a6000",
    "RTX 6000 Ada": "rtx-6000-ada", "RTX PRO 6000 Blackwell": "rtx-pro-6000", "Radeon 8060S": "strix-halo",
    "RTX PRO 6000 Blackwell Max-Q": "rtx-pro-6000-max-q", "M4 Max 36GB": "apple-m4-max-32",
}  # fmt: skip


def test_local_chips_have_the_bandwidth_that_was_collected(shared_data):
    """Memory bandwidth decides single-stream decoding; the collected sheets round, by 2 % for the H100 PCIe."""
    compared = 0
    with open(shared_data / "local" / "chips.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            plain = row["chip"].lower().replace(" ", "-")
            name = LOCAL_NAMES.get(row["chip"], f"apple-{plain}" if row["vendor"] == "Apple" else plain)
            if name in chip_names() and row["memory_bandwidth_gb_s"]:
                bandwidth = float(row["memory_bandwidth_gb_s"]) * 1e9
                assert load_chip(name).memory.bandwidth_bytes_per_s == pytest.approx(bandwidth, rel=0.025), name
                compared += 1
    assert compared >= 40


def test_a_sister_of_the_catalogue_extends_another():
    """What it does not state is the other's; kernels fitted on the other stand in as those of its architecture."""
    sister, base = load_chip("rtx-5090"), load_chip("rtx-pro-6000")
    assert sister.host == base.host
    assert sister.price is None
    assert (sister.like, sister.kernels) == ("rtx-pro-6000", {})
    assert sister.compute.cores == 170


def test_weights_of_16_bits_run_where_there_are_no_tensor_cores():
    assert load_chip("p40").peak_flops("bf16") == load_chip("p40").compute.dense_flops_per_s["fp32"]


def test_announced_figures_are_labelled():
    rubin = load_chip("rubin")
    assert "announced" in rubin.description
    assert {rubin.sources[group].kind for group in ("compute", "memory", "on_chip", "power")} == {"assumed"}


def test_unknown_names_suggest():
    with pytest.raises(ProfileError, match="no chip 'h10-sxm'; did you mean 'h100-sxm'"):
        load_chip("h10-sxm")
    with pytest.raises(ProfileError, match="no link 'nvlnk4'; did you mean 'nvlink4'"):
        load_link("nvlnk4")


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("bandwidth_bytes_per_s: 3.35e+12", "bandwidth_bytes_per_s: -3.35e+12", "memory.bandwidth_bytes_per_s"),
        ("bandwidth_bytes_per_s: 3.35e+12", "bandwidth_bytes_per_s: .nan", "memory.bandwidth_bytes_per_s"),
        ("bandwidth_bytes_per_s: 3.35e+12", "bandwidth_bytes_per_s: .inf", "memory.bandwidth_bytes_per_s"),
        ("bandwidth_bytes_per_s: 3.35e+12", "bandwidth_bytes_per_s: 0", "memory.bandwidth_bytes_per_s"),
        ("bandwidth_bytes_per_s: 3.35e+12", "bandwidth_bytes_per_s: 3.35 TB/s", "memory.bandwidth_bytes_per_s"),
        ("bandwidth_bytes_per_s: 3.35e+12", "bandwidth_bytes_per_s: 3350", "memory.bandwidth_bytes_per_s"),
        ("bandwidth_bytes_per_s: 3.35e+12", "bandwith_bytes_per_s: 3.35e+12", "memory.bandwith_bytes_per_s"),
        ("    bf16: 9.894e+14", "    bf61: 9.894e+14", "compute.dense_flops_per_s"),
        ("    bf16: 9.894e+14", "    bf16: 989", "compute.dense_flops_per_s.bf16"),
        ("  cores: 132", "  cores: 0", "compute.cores"),
        ("  cores: 132", "  cores: true", "compute.cores"),
        ("memory_efficiency: 0.75", "memory_efficiency: 1.7", "generic.elementwise.any.memory_efficiency"),
        ("kind: gpu-datacenter", "kind: gpu-datacentre", "kind"),
        ("vendor: nvidia\n", "", "vendor"),
        ("kind: datasheet, ", "", "source.kind"),
        ("date: 2023-03}", "date: yesterday}", "date"),
        ("vendor: nvidia\n", "vendor: nvidia\nvendor: amd\n", "given twice"),
        ("vendor: nvidia\n", "vendor: [\n", "not valid YAML"),
    ],
)
def test_bad_profiles_are_refused_in_one_line(tmp_path, old, new, place):
    text = catalogue_text("chips", "h100-sxm")
    assert old in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ProfileError) as caught:
        load_chip(path)
    message = str(caught.value)
    assert "\n" not in message
    assert "mine.yaml" in message
    assert place in message


def test_own_file_and_missing_file(tmp_path):
    path = tmp_path / "chip.yaml"
    path.write_text(catalogue_text("chips", "n150"), encoding="utf-8")
    assert load_chip(path) == load_chip("n150")
    with pytest.raises(ProfileError, match="no such file"):
        load_chip(tmp_path / "nothing.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ProfileError, match="a mapping of fields is needed"):
        load_chip(tmp_path / "list.yaml")


@pytest.mark.parametrize("name", ["h100-sxm", "n150", "b200-sxm"])
def test_profiles_survive_being_written_and_read(tmp_path, name):
    chip = load_chip(name)
    path = tmp_path / "copy.yaml"
    path.write_text(yaml.safe_dump(chip.model_dump(mode="json")), encoding="utf-8")
    assert load_chip(path) == chip


def test_kernels_fall_back_by_library_then_dtype_then_class():
    h100 = load_chip("h100-sxm")
    vllm, unknown = KernelLibrary(h100, "vllm"), KernelLibrary(h100, "nccl")
    assert vllm.parameters("gemm") == h100.kernels["vllm"]["gemm"]["bf16"]
    assert unknown.parameters("gemm") == h100.kernels["generic"]["gemm"]["bf16"]
    assert vllm.basis("gemm", "fp16") == "calibrated"
    assert vllm.basis("gemm", "int4") == "extrapolated"
    assert KernelLibrary("l40s").basis("gemm") == "datasheet"
    assert KernelLibrary("h100-pcie").basis("gemm") == "datasheet"


def test_class_times_scale_with_the_clock():
    base = load_defaults("gpu-datacenter")["gemm"]["bf16"]
    l40s = KernelLibrary("l40s").parameters("gemm")
    clock = load_chip("l40s").compute.clock_hz
    assert l40s.launch_s == pytest.approx(base.launch_s * base.reference_clock_hz / clock)
    assert l40s.compute_efficiency == base.compute_efficiency


def test_dtypes():
    assert dtype_bytes("bfp8") == 1.0625
    assert dtype_bytes("mxfp4") == 0.53125
    assert math_dtype("int4", ["bf16", "int8"]) == "bf16"
    assert math_dtype("fp8", ["bf16"]) == "bf16"
    with pytest.raises(ProfileError, match="no dtype 'bf61'; did you mean"):
        dtype_bytes("bf61")
    with pytest.raises(ProfileError, match="h100-sxm: dtype 'bfp8' cannot be computed here"):
        load_chip("h100-sxm").peak_flops("bfp8")
    assert load_chip("a100-sxm-80gb").peak_flops("fp8") == 312e12
    assert set(DTYPES) >= {"fp32", "tf32", "fp16", "bf16", "fp8", "int8", "int4", "fp4", "mxfp4", "bfp8", "bfp4"}


def test_an_unknown_kernel_library_is_refused():
    with pytest.raises(ProfileError, match=r"no kernel library 'vlm'; did you mean 'vllm'\?"):
        KernelLibrary("h100-sxm", "vlm")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("compute.dense_flops_per_s", {}, "dense_flops_per_s needs at least one dtype"),
        ("compute.worker_cores", 500, "worker_cores 500 exceeds cores 132"),
        ("on_chip.bandwidth_bytes_per_s", 1e10, "below memory.bandwidth_bytes_per_s; wrong unit?"),
        ("on_chip.capacity_bytes", 1e12, "on_chip.capacity_bytes is above memory.capacity_bytes; wrong unit?"),
        ("compute.dense_flops_per_s.fp8", 1e14, "dense_flops_per_s.fp8 1e+14 is below bf16's 9.894e+14"),
        ("power.tdp_w", 30.0, "power: idle_w 70 is not below tdp_w 30"),
        ("host", {"launch_s": 5e-6}, "host.launch_s: engines bring launch times of their own; remove it"),
        ("host", {"graph_launch_s": 5e-6}, "host.graph_launch_s: engines bring launch times of their own; remove it"),
        ("power.source.date", "2026-13", "power.source.date: is no date such as 2023, 2023-03 or 2023-03-21"),
        ("links.scale_up", "nvlnk4", "links.scale_up: no link 'nvlnk4'; did you mean 'nvlink4'"),
        ("like", "h10-sxm", "like: no chip 'h10-sxm'; did you mean 'h100-sxm'? (forerun chips list)"),
        ("kind", "gpu", "kind: must be 'gpu-datacenter', 'gpu-consumer'"),
        ("kernels", [1], "a mapping library -> family -> dtype is needed"),
        ("kernels.generic", 3, "generic: a mapping family -> dtype is needed"),
        ("kernels.generic.gem", {}, "generic.gem: no such kernel family; did you mean 'gemm'"),
        ("kernels.generic.gemm", 3, "generic.gemm: a mapping dtype -> parameters is needed"),
        ("kernels.generic.elementwise.any.launchs", 1.0, "any.launchs: unknown field; did you mean 'launch_s'"),
        ("kernels.generic.elementwise.bf61", {}, "generic.elementwise: no dtype 'bf61'; did you mean 'bf16'"),
    ],
)
def test_profiles_that_contradict_themselves_are_refused(tmp_path, place, value, message):
    data = yaml.safe_load(catalogue_text("chips", "h100-sxm"))
    *way, last = place.split(".")
    holder = data
    for key in way:
        holder = holder[key]
    holder[last] = value
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    with pytest.raises(ProfileError) as caught:
        load_chip(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


DEVICES = {
    "h100-sxm": ("NVIDIA H100 80GB HBM3", "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)", "nvidia-h100-mega-80gb",
                 "p5.48xlarge", "ND_H100_v5", "Standard_ND96isr_H100_v5", "a3-highgpu-8g", "NVIDIA-H100-80GB-HBM3"),
    "h100-nvl": ("NVIDIA H100 NVL", "Standard_NC40ads_H100_v5"),
    "h100-pcie": ("NVIDIA H100 PCIe",),
    "h200-sxm": ("NVIDIA H200", "nvidia-h200-141gb", "p5e.48xlarge", "p5en.48xlarge"),
    "a100-sxm-40gb": ("NVIDIA A100-SXM4-40GB", "nvidia-tesla-a100", "p4d.24xlarge"),
    "a100-pcie-80gb": ("NVIDIA A100 80GB PCIe",),
    "a800": ("NVIDIA A800-SXM4-80GB",),
    "gh200": ("NVIDIA GH200 480GB",),
    "gb10": ("NVIDIA GB10", "dgx-spark"),
    "rtx-pro-6000": ("NVIDIA RTX PRO 6000 Blackwell Server Edition",),
    "rtx-pro-6000-max-q": ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",),
    "rtx-6000-ada": ("NVIDIA RTX 6000 Ada Generation",),
    "rtx-3070-laptop": ("NVIDIA GeForce RTX 3070 Laptop GPU",),
    "l40s": ("g6e.12xlarge", "NVIDIA L40S"),
    "v100-sxm": ("Tesla V100-SXM2-32GB", "p3dn.24xlarge"),
    "mi300x": ("AMD Instinct MI300X OAM", "AMD Instinct MI300X VF"),
    "rx-7900-xtx": ("AMD Radeon RX 7900 XTX",),
    "strix-halo": ("gfx1151", "AMD Radeon 8060S Graphics", "AMD RYZEN AI MAX+ 395 w/ Radeon 8060S"),
    "n300-chip": ("n300 L", "n300 R"),
    "p150": ("p150a", "p150b"),
    "gaudi-3": ("HL-325L",),
}  # fmt: skip


@pytest.mark.parametrize("chip", DEVICES)
def test_a_device_name_that_means_one_chip_is_that_chip(chip):
    assert {named_chip(name) for name in DEVICES[chip]} == {chip}
    assert load_chip(DEVICES[chip][0]).name == chip


def test_a_name_of_another_memory_generation_or_vendor_is_never_read_as_a_chip():
    """Every alias and chip with another memory, number or vendor, and cards without a profile: none is read."""
    names = [*chip_names(), *(name for names in DEVICES.values() for name in names)]
    vendors = {"nvidia": "AMD", "amd": "NVIDIA", "apple": "NVIDIA", "tenstorrent": "NVIDIA", "intel": "AMD"}
    for name in names:
        chip = load_chip(named_chip(name) or name)
        memory = round(chip.memory.capacity_bytes / 1e9)
        plain = re.sub(r"\b\d+ ?gb\b", "", name, flags=re.IGNORECASE)
        if "large" not in name:
            assert named_chip(f"{plain} {3 * memory}GB") is None, name
        if chip.vendor in vendors and name in chip_names():
            assert named_chip(f"{vendors[chip.vendor]} {name.replace('-', ' ')}") is None, name
        for number in re.finditer(r"\d+", re.sub("uuid.*", "", name, flags=re.IGNORECASE)):
            other = f"{name[: number.start()]}97{name[number.end() :]}"
            assert named_chip(other) in (None, chip.name), other
    absent = """NVIDIA GeForce RTX 4090 D, NVIDIA L40, NVIDIA A10G, NVIDIA A30, NVIDIA H20-3e, NVIDIA H200 NVL
        g5.12xlarge, Tesla V100-SXM2-16GB, Quadro RTX 6000, AMD Instinct MI300A, AMD Radeon Graphics, HL-225, gfx90a
        NVIDIA A100-PCIE-40GB, NVIDIA A100-SXM4-80GB MIG 1g.10gb, p3.2xlarge, inf2.xlarge"""
    assert [name for name in re.split(r"(?:, |\n) *", absent) if named_chip(name)] == []


def test_assumed_kernels_are_not_called_fitted():
    assert load_chip("mi300x").kernels
    assert load_chip("mi300x").fitted_libraries == []
    assert "vllm" in load_chip("h100-sxm").fitted_libraries
