"""Profiles that extend a chip of the catalogue."""

import pytest

from hwprofiles import KernelLibrary, ProfileError, load_chip

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
    assert mine.memory.bandwidth_bytes_per_s == base.memory.bandwidth_bytes_per_s
    assert mine.compute == base.compute
    own, other = (KernelLibrary(chip, "vllm") for chip in (mine, base))
    assert own.parameters("moe", "mxfp4").launch_s == 1.0e-5
    assert own.parameters("moe", "mxfp4").fit is None, "a set is replaced as a whole"
    assert own.parameters("moe", "bf16") == other.parameters("moe", "bf16")
    assert own.basis("moe", "mxfp4") == "calibrated"


def test_an_unknown_base_is_refused(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: h20-sxm\nname: mine\n")
    with pytest.raises(ProfileError, match="extends: no chip 'h20-sxm'; did you mean"):
        load_chip(path)
