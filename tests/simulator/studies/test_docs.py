"""The study file of the documentation is one."""

import re

import yaml
from scenario_parts import drafts
from tiny_scenario import tiny_data

from simulator.studies import Range, load_study


def test_the_documented_study_file(project_root, tmp_path):
    text = (project_root / "docs" / "sweeps.md").read_text()
    block = re.search(r"```yaml title=\"study.yaml\"\n(.*?)```", text, re.DOTALL)[1]
    speculation = drafts("ngram", 3, acceptance={"per_position": [0.5, 0.3, 0.2]})
    (tmp_path / "chat.yaml").write_text(yaml.safe_dump(tiny_data() | {"speculation": speculation}))
    (tmp_path / "study.yaml").write_text(block)
    study = load_study(tmp_path / "study.yaml")
    assert study.vary["workload.arrivals.request_rate"] == Range(1.0, 50.0, log=True)
    assert [variant.name for variant in study.variants] == ["plain", "eagle"]
    assert study.variants[1].scenario.speculation.method == "eagle3"
