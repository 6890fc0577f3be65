"""Profiles that extend a chip of the catalogue."""

import pytest

from hwprofiles import BASES, KernelLibrary, ProfileError, load_chip

TEXT = """\
extends: h200-sxm
name: mine
memory: {capacity_bytes: 1.0e+11}
kernels:
  vllm:
    moe:
      mxfp4:
        launch_s: 1.0e-5
        compute_efficiency: 0.5
        memory_efficiency: 0.5
        on_chip_efficiency: 0.5
        scatter_efficiency: 0.5
        overlap: 2.0
        source: {kind: fitted, reference: "a test", date: 2026-11}
"""


def test_only_what_is_given_differs(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT)
    mine, base = load_chip(path), load_chip("h200-sxm")
    assert mine.name == "mine"
    assert mine.memory.capacity_bytes == 1.0e11
    assert mine.memory.field_sources["capacity_bytes"].kind == "assumed", "the datasheet does not have this number"
    assert "bandwidth_bytes_per_s" not in mine.memory.field_sources
    assert mine.memory.bandwidth_bytes_per_s == base.memory.bandwidth_bytes_per_s
    assert mine.compute == base.compute
    custom, other = (KernelLibrary(chip, "vllm") for chip in (mine, base))
    assert custom.parameters("moe", "mxfp4").launch_s == 1.0e-5
    assert custom.parameters("moe", "mxfp4").fit is None, "a set is replaced as a whole"
    assert custom.parameters("moe", "bf16") == other.parameters("moe", "bf16")
    assert custom.basis("moe", "mxfp4") == "calibrated"


def test_an_unknown_base_is_refused(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: h20-sxm\nname: mine\n")
    with pytest.raises(ProfileError, match="extends: no chip 'h20-sxm'; did you mean"):
        load_chip(path)


FASTER = """\
extends: {base}
name: faster
memory:
  bandwidth_bytes_per_s: 5.2e+12
  capacity_bytes: 1.41e+11
  source: {{kind: assumed, reference: "a test", date: 2026-11}}
"""


@pytest.mark.parametrize("base", ["h200-sxm", "b200-sxm"])
def test_kernels_fitted_under_other_limits_are_not_this_chips(tmp_path, base):
    """Other bandwidths were never measured: the base's parameters stand in, and say so.

    They keep the shapes they have seen and an interval, never narrower than the base's; nothing calls them calibrated.
    """
    path = tmp_path / "faster.yaml"
    path.write_text(FASTER.format(base=base))
    custom, other = KernelLibrary(load_chip(path), "vllm"), KernelLibrary(base, "vllm")
    for family, dtype in (("gemm", "bf16"), ("attention_decode", "bf16"), ("moe", "bf16"), ("collective", "any")):
        assert custom.basis(family, dtype) == "datasheet"
        carried, fit = custom.parameters(family, dtype).fit, other.parameters(family, dtype).fit
        assert other.basis(family, dtype) == "calibrated"
        assert carried.ranges == fit.ranges
        seen = {name: low for name, (low, _) in fit.ranges.items()}
        assert custom.basis_code(family, dtype, seen) == BASES.index("datasheet")
        assert other.basis_code(family, dtype, seen) == BASES.index("calibrated")
        assert custom.interval(family, dtype, seen, "memory") == (1.0, 1.0)
        low, high = custom.interval(family, dtype, seen, "memory", assumed=True)
        inner = fit.intervals.get("all", (1.0, 1.0))
        assert low < inner[0] <= inner[1] < high
        evidence = {"source", "fit", "reference_clock_hz"}
        sets = [one.parameters(family, dtype).model_dump(exclude=evidence) for one in (custom, other)]
        assert sets[0] == sets[1]
    assert KernelLibrary("h200-sxm", "vllm").basis("gemm", "bf16") == "calibrated"
