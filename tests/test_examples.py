"""The examples run as they stand, at reduced size, and say what they claim."""

import ast
import importlib.util
import json
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from simulator.running.run import simulate
from simulator.running.scenario import load_scenario, parse_yaml
from simulator.studies.alspec import ATLAS_CHIPS, atlas_gains
from simulator.studies.compare.command import compare

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture
def output_of(monkeypatch, capsys, project_root):
    """What a script prints, run in this process: starting another would take most of the time."""

    def run(script, *arguments):
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        monkeypatch.chdir(project_root)
        capsys.readouterr()
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_speculation_crossover(output_of):
    text = output_of("speculation_crossover.py", "--requests", 2)
    assert "The draft model pays below about" in text


@pytest.mark.parametrize("seed", [0, 7])
def test_lossless_sampling(seed, output_of):
    lines = output_of("lossless_sampling.py", "--seed", seed, "--draws", 3000).splitlines()
    verdicts = {line[:13].strip(): line.split("   ")[-1].strip() for line in lines[2:]}
    assert verdicts == {
        "no draft": "same distribution",
        "chain of 3": "same distribution",
        "tree 3x2x1": "same distribution",
        "forgetful": "another distribution",
    }


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        ("capacity_plan_azure.py", ("--requests", 150, "--growth", 2), "is the cheapest layout that holds the SLO"),
        ("agents_mooncake.py", ("--requests", 40), "On this traffic the prefix cache"),
        ("equal_cost_chips.py", ("--requests", 1500, "--usd-per-hour", 2.7), "For $2.70 an hour"),
        ("eagle3_on_or_off.py", ("--requests", 60), "EAGLE-3 pays"),
        ("adaptive_verification.py", ("--requests", 256), "Adaptive verification beats the best fixed K at 16, 64"),
        ("mtp_deepseek_v3.py", ("--requests", 1), "Best MTP depth of DeepSeek-V3"),
        ("draft_n150_verify_h100.py", ("--requests", 1), "Drafting on an N150"),
        ("reasoning_outputs.py", ("--requests", 8, "--longest", 9000), "serves"),
        ("usual_stack.py", ("--requests", 24), "All together give"),
        ("laptop_inference.py", ("--requests", 1), "all write faster than the 10 one reads"),
    ],
)
def test_studies(script, arguments, words, output_of):
    assert words in output_of(script, *arguments).splitlines()[-1]


def test_attention_level_speculation(output_of, tmp_path, project_root):
    page = tmp_path / "alspec.html"
    text = output_of("alspec_n150.py", "--output", page)
    assert "1.59x over TP 8 (published: 1.65x) and cuts attention overhead 4.9x (published: 5x)" in text
    assert "Other plausible parameters give 1.02x to 1.61x" in text
    assert "Today's kernels have left 1.22x of it (1.16 to 1.25)" in text
    best = re.search(r"The best S is (\d+) at lambda 0.02, (\d+) at lambda 0.05, (\d+) at lambda 0.1,", text)
    assert best is not None
    assert 64 < int(best[3]) < 2048, "an optimum inside"
    theory = (project_root / "docs" / "theory" / "attention-speculation.md").read_text(encoding="utf-8")
    message = f"{best[3]} at lambda 0.1 to 0.3, where few layers fail, {best[2]} at 0.05 and {best[1]} at 0.02"
    assert message in " ".join(theory.split())
    assert "TP 8 wins at 1K (1.10x); at 87.5% hits two groups pay from 19.4K tokens on (17.3K to 113K)" in text
    assert "consistency, not validation" in page.read_text(encoding="utf-8")


def test_study_of_attention_level_speculation(project_root):
    """What README and docs/trust.md quote, from the file and the command beside it; a bound wins nothing."""
    result = compare(EXAMPLES / "alspec-n150.yaml", replications=2, crossover="none", sensitivity=False, jobs=1)
    variants = {variant["name"]: variant["speedup"]["mean_tpot_ms"] for variant in result.document["variants"][1:]}
    by_hit_rate = [variants[name]["ratio"] for name in ("50 % hits", "62.5 % hits", "75 % hits", "87.5 % hits")]
    assert by_hit_rate == sorted(by_hit_rate)
    assert by_hit_rate[-1] == pytest.approx(1.65, rel=0.05), "as published"
    for ratio in variants.values():
        assert ratio["low"] < ratio["ratio"] < ratio["high"], "the range of the model, never one of no width"
    sentence = "87.5 % hits improves mean TPOT 1.59x over TP 8 (over the range of assumed costs 1.50x to 1.61x)"
    assert result.conclusion.startswith(sentence)
    assert sentence in " ".join((project_root / "docs" / "trust.md").read_text(encoding="utf-8").split())
    message = variants["87.5 % hits"]
    readme = " ".join((project_root / "README.md").read_text(encoding="utf-8").split())
    assert f"mean TPOT {message['ratio']:.2f}x over TP 8 ({message['low']:.2f}x to {message['high']:.2f}x)" in readme


def test_atlas_of_attention_level_speculation(output_of, tmp_path):
    """A stopped run goes on where it was; today's n150 pays from 64K on, an H100 nowhere."""
    lines, page = tmp_path / "atlas.jsonl", tmp_path / "atlas.html"
    few = ("--models", "llama-3.1-8b", "--groups", "8", "--output", lines)
    output_of("alspec_atlas.py", "--chips", "n150", *few)
    before = lines.read_text("utf-8")
    text = output_of("alspec_atlas.py", "--chips", "n150", "h100-sxm", *few, "--page", page)
    assert lines.read_text("utf-8").startswith(before)
    assert "llama-3.1-8b on 8 x n150, lambda 0.1, S 128: batch 1: pays from 64K tokens of context, at most" in text
    assert "llama-3.1-8b on 8 x h100-sxm, lambda 0.1, S 128: batch 1: pays nowhere" in text
    assert "atlas-8-01-128-plain" in page.read_text("utf-8")


def test_the_how_to_says_where_the_atlas_pays(project_root):
    """The table's largest gain of every chip, and 70B on p150, priced again."""
    text = (project_root / "docs" / "how-to" / "attention-speculation.md").read_text(encoding="utf-8")
    case = {"lambda": 0.1, "window_tokens": 128, "speculation": None}
    rows = re.findall(r"\| ([\w.-]+) \| \d+ of \d+ \|.*\| (\S+x \(.*\)) \| (\S+) on (\d+) at (\d+)K \| (\w+) \|", text)
    assert [row[0] for row in rows] == list(ATLAS_CHIPS)
    for chip, message, model, chips, context, basis in rows:
        (result,) = atlas_gains(
            [case | {"chip": chip, "model": model, "chips": int(chips)}], [1], [int(context) * 1024]
        )
        (gain,) = result["gains"]
        figures = [float(figure) for figure in re.findall(r"\d+\.\d+", message)]
        assert_allclose([gain["speedup"], gain["low"], gain["high"]], figures, atol=0.03)
        assert basis in ("datasheet", "calibrated", "extrapolated")
    words = " ".join(text.split())
    for chips in (8, 16, 32):
        (result,) = atlas_gains([case | {"chip": "p150", "model": "llama-3.1-70b", "chips": chips}], [1], [131072])
        (gain,) = result["gains"]
        message = f"{gain['speedup']:.2f}x ({gain['low']:.2f} to {gain['high']:.2f}) on {chips}"
        assert message in words.split("Llama-3.1-70B on p150")[1]


def test_hit_rates_of_a_model_s_own_attention():
    """The recipe on a made-up model: attention is causal and exact, and a chunk that covers the text misses nothing."""
    spec = importlib.util.spec_from_file_location("alspec_hit_rates", EXAMPLES / "alspec_hit_rates.py")
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    generator = np.random.default_rng(0)

    def drawn(*shape):
        return (generator.standard_normal(shape) * 0.3).astype(np.float32)

    width, inner = 32, 48
    sizes = {"attn_q": (32, width), "attn_k": (16, width), "attn_v": (16, width), "attn_output": (width, 32)}
    sizes |= {"ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner)}
    tensors = {f"blk.{layer}.{name}.weight": drawn(*size) for layer in (0, 1) for name, size in sizes.items()}
    norms = [f"blk.{layer}.{name}" for layer in (0, 1) for name in ("attn_norm", "ffn_norm")]
    tensors |= {f"{name}.weight": np.ones(width, np.float32) for name in (*norms, "output_norm")}
    model = recipe.Model(tensors | {"token_embd.weight": drawn(50, width)}, 2, 4, 2, 1e4, 1e-5, [], [])
    errors = recipe.errors_of(model, generator.integers(0, 50, 1100).tolist(), 3, generator)
    assert list(errors) == [1024]
    assert errors[1024].shape == (2, 3, len(recipe.WINDOWS))
    assert (errors[1024][:, :, recipe.WINDOWS.index(512) :] == 0).all()
    assert (errors[1024][:, :, 0] > 0).all()
    q, k, v = drawn(70, 4, 8), drawn(70, 2, 8), drawn(70, 2, 8)
    assert_allclose(
        recipe.attended(q, k, v, block=16)[40], recipe.attention_outputs(q[40], k[:41], v[:41], [1])[0], rtol=1e-4
    )
    assert_allclose(np.linalg.norm(recipe.rotated(q, 1e4), axis=-1), np.linalg.norm(q, axis=-1), rtol=1e-5)


def plain_scenarios():
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(EXAMPLES.glob("*.yaml"))}
    return [name for name, text in texts.items() if "scenario" not in parse_yaml(text, name)]


@pytest.mark.parametrize("name", plain_scenarios())
def test_scenarios(name):
    result = simulate(load_scenario(EXAMPLES / name, ["workload.num_requests=40"]))
    assert len(result.requests) == 40
    assert not result.requests.failed.any()


def run_notebook(name):
    """Cell by cell, as a kernel would: the names at its end, and what cells ended with."""
    cells = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))["cells"]
    names, shown = {}, []
    for source in ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]:
        tree = ast.parse(source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    return names, shown


def test_speculation_for_my_model(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names, shown = run_notebook("speculation_for_my_model.ipynb")
    assert "eagle3 is best" in shown[0]
    assert "--speculative-config" in names["tuned"].flags
    assert len(names["tuned"].to_arrow()) >= 8
    assert [variant["name"] for variant in names["found"].document["variants"]][1] == "EAGLE-3, K = 3"
    assert all("<div" in value._repr_html_() for value in shown if hasattr(value, "_repr_html_"))
    assert not list(tmp_path.iterdir())


def test_my_chip(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names, shown = run_notebook("my_chip.ipynb")
    assert names["run"].basis == "datasheet"
    table = next(value for value in shown if hasattr(value, "loc"))
    assert (table["my-chip.yaml"] < table["h100-sxm"]).all(), "twice the bandwidth writes faster at every load"
    assert names["beside"].conclusion.startswith("my chip")


def test_what_if(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names, shown = run_notebook("what_if.ipynb")
    assert not list(tmp_path.iterdir())
    pages = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    assert len(pages) >= 5
    assert all("<table" in page or "<div" in page for page in pages)
    assert "mean_ttft_ms" in repr(names["run"].summary)
    table = shown[5]
    assert table.shape == (3, 3)
    assert table.loc[0.9, 3] < table.loc[0.5, 3], "higher acceptance must not cost time"
    assert names["plan"].best is not None
