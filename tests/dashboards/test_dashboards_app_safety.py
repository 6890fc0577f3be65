"""What a forged request may reach: no file that is not served, whatever a control is made to say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("dash")

from dashboards.app import choices, create_app
from dashboards.app.pages import what_if
from simulator.errors import ForerunError

SECRET = "the secret of this machine"


@pytest.fixture
def app(tmp_path, run_folder):
    (tmp_path / "session").mkdir()
    made, context = create_app([run_folder.parent], tmp_path / "session")
    yield made, context
    context.jobs.close()


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret.yaml"
    path.write_text(f"name: {SECRET}\n")
    return str(path)


def part(dependency, value):
    def parsed(text):
        return json.loads(text) if text.startswith("{") else text

    return {"id": parsed(dependency["id"]), "property": dependency["property"], "value": value}


def ids(output):
    found = [text.rsplit(".", 1) for text in output.strip(".").split("...")]
    return [{"id": json.loads(i) if i.startswith("{") else i, "property": p} for i, p in found]


def test_no_control_reads_a_file_that_is_not_served(app, secret):
    """Every callback of the server gets the path in place of every text that chooses something."""
    client = app[0].server.test_client()
    asked = 0
    for one in client.get("/_dash-dependencies").json:
        text = json.dumps([one["inputs"], one["state"]])
        if one.get("clientside_function") or "MATCH" in text or "ALL" in text:
            continue
        numbers = {"k", "alpha", "rate", "prompt", "output", "replicas", "batch", "context", "growth", "ttft", "tpot"}
        named = {"tp": "1", "requests": "500", "dtype": "checkpoint", "method": "none", "framework": "vllm"}

        def value(dependency, numbers=numbers, named=named):
            name = json.loads(dependency["id"]).get("name", "") if dependency["id"].startswith("{") else ""
            return 1 if name in numbers else named.get(name, secret)

        outputs = ids(one["output"])
        body = {
            "output": one["output"],
            "outputs": outputs if one["output"].startswith("..") else outputs[0],
            "inputs": [part(dependency, value(dependency)) for dependency in one["inputs"]],
            "state": [part(dependency, value(dependency)) for dependency in one["state"]],
            "changedPropIds": [f"{one['inputs'][0]['id']}.{one['inputs'][0]['property']}"],
        }
        answer = client.post("/_dash-update-component", json=body)
        assert answer.status_code in (200, 204), one["output"]
        assert SECRET not in answer.get_data(as_text=True), one["output"]
        asked += 1
    assert asked > 20


@pytest.mark.parametrize("name", ["chip", "runs-chip", "model", "draft", "chips"])
def test_only_what_is_offered_is_taken(name, secret):
    offered = {"model": "llama-3.1-8b", "draft": "llama-3.2-1b"}.get(name, "h100-sxm")
    choices.checked({name: offered, "other": secret})
    for forged in (secret, [offered, secret], {"name": "x"}):
        with pytest.raises(ForerunError, match="not in the catalogue"):
            choices.checked({name: forged})


def test_a_forged_answer_of_the_analytic_model_names_no_files(app, secret):
    scenario = {"model": secret, "hardware": {"chip": "h100-sxm"}, "workload": {"arrivals": {"request_rate": 1.0}}}
    with pytest.raises(ForerunError, match="no file of the served folders"):
        what_if.compute_load(app[1], {"answered": {"scenario": scenario, "basis": "datasheet"}})


def test_what_threads_share_is_imported_before_them():
    """Plotly asks whether values are pandas' as soon as pandas is being imported by another thread."""
    code = "import sys, tempfile, pathlib; from dashboards.app import create_app; "
    code += "create_app([], pathlib.Path(tempfile.mkdtemp())); import importlib.util as u; "
    code += "assert 'pandas' in sys.modules or u.find_spec('pandas') is None"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
