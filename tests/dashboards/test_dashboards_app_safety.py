"""What a forged request may reach: no file that is not served, whatever a control is made to say."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("dash")

from dashboards.app import create_app
from dashboards.app.pages import what_if
from dashboards.app.served import ServedFolders
from dashboards.app.server import LOCAL_NAMES
from dashboards.app.uploads import UploadTask
from forerun.errors import ForerunError

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
    result = [text.rsplit(".", 1) for text in output.strip(".").split("...")]
    return [{"id": json.loads(i) if i.startswith("{") else i, "property": p} for i, p in result]


def test_no_control_reads_a_file_that_is_not_served(app, secret):
    """Every callback of the server gets the path in place of every text that chooses something."""
    client = app[0].server.test_client()
    requested = 0
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
        requested += 1
    assert requested > 20


def answered(context, **forged):
    """The what-if page's stored state, as a browser sends it back."""
    return {"answered": {name: one.default_in(context.served) for name, one in what_if.FIELDS.items()} | forged}


def test_a_forged_answer_of_the_analytic_model_names_no_files(app, secret):
    assert what_if.compute_load(app[1], answered(app[1]))["load"] is not None
    unknown = {"scenario": {"model": secret}, "model": None}
    for forged in ({"model": secret}, {"chip": secret}, {"measured": [secret]}, unknown):
        with pytest.raises(ForerunError, match="is not offered"):
            what_if.compute_load(app[1], answered(app[1], **forged))


def test_a_forged_start_is_no_larger_than_an_honest_one(app):
    """The number of requests comes from a list; a tree cannot come at all."""
    client, started = app[0].server.test_client(), []
    app[1].jobs.start = lambda *task: started.append(task) or "token"
    fields = answered(app[1])["answered"]

    def start(**forged):
        [one] = [one for one in client.get("/_dash-dependencies").json if "simulate" in json.dumps(one["inputs"])]
        inputs = fields | forged
        body = {
            "output": one["output"],
            "outputs": ids(one["output"]),
            "inputs": [part(one["inputs"][0], 1)],
            "state": [part(each, inputs[json.loads(each["id"])["name"]]) for each in one["state"]],
            "changedPropIds": [f"{one['inputs'][0]['id']}.n_clicks"],
        }
        return client.post("/_dash-update-component", json=body).get_data(as_text=True)

    assert "token" in start()
    assert len(started) == 1
    for forged in (
        {"requests": "999999999"},
        {"requests": 10**9},
        {"method": {"tree": [[1] * 900] * 900}},
        {"k": 10**7},
        {"rate": 1e300},
        {"replicas": 10**6},
        {"prompt": 1e12},
    ):
        assert "is not" in start(**forged), forged
    assert len(started) == 1


def test_other_names_of_this_machine_may_be_requested(tmp_path):
    app, _ = create_app([], tmp_path, (*LOCAL_NAMES, "127.0.0.2"))
    client = app.server.test_client()
    assert client.get("/", headers={"Host": "127.0.0.2:8050"}).status_code == 200
    assert client.get("/", headers={"Host": "127.0.0.3:8050"}).status_code == 403


def test_a_loopback_address_is_served_under_its_own_name(monkeypatch):
    """``--host 127.0.0.2``: what ``serve`` hands to the app."""
    from dashboards.app import server

    arguments = {}

    class StopError(Exception):
        pass

    def made(_folders, _place, hosts, token, _measured):
        arguments.update(hosts=hosts, token=token)
        raise StopError

    monkeypatch.setattr(server, "create_app", made)
    monkeypatch.setattr(server, "check_free", lambda *_: None)
    for host, named, tokens in (("127.0.0.2", True, False), ("::1", True, False), ("0.0.0.0", False, True)):
        with pytest.raises(StopError):
            server.serve_dashboard([], host, 0)
        assert (host in arguments["hosts"]) == named
        assert (arguments["token"] is not None) == tokens


@pytest.mark.parametrize(
    "origin", ["http://[", "http://[::1", "[", "\x7f://", "null", "http://localhost:8050.evil.example"]
)
def test_a_malformed_origin_is_refused(app, origin):
    answer = (
        app[0]
        .server.test_client()
        .post("/_dash-update-component", json={}, headers={"Host": "localhost:8050", "Origin": origin})
    )
    assert answer.status_code == 403


@pytest.mark.parametrize("host", ["[", "[::1", "a]b", "a@b@c["])
def test_a_malformed_host_is_refused(app, host):
    assert app[0].server.test_client().get("/", headers={"Host": host}).status_code in (400, 403)


def test_with_a_token_nothing_is_stated_without_it(tmp_path):
    app, _ = create_app([], tmp_path, (), "secret-token")
    client = app.server.test_client()
    for path in ("/", "/_dash-layout", "/_dash-dependencies", "/assets/forerun.js", "/?token=", "/?token=secret"):
        answer = client.get(path)
        assert answer.status_code == 403, path
        assert "forerun dash printed" in answer.text
    opened = client.get("/what-if?token=secret-token")
    assert (opened.status_code, opened.headers["Location"]) == (302, "/what-if")
    assert "HttpOnly" in opened.headers["Set-Cookie"]
    assert "SameSite=Strict" in opened.headers["Set-Cookie"]
    assert client.get("/what-if").status_code == 200
    assert app.server.test_client().get("/what-if").status_code == 403


def test_every_answer_has_a_policy_without_foreign_or_inline_scripts(app):
    policy = app[0].server.test_client().get("/").headers["Content-Security-Policy"]
    scripts = re.search("script-src ([^;]*)", policy)[1]
    assert "unsafe" not in scripts
    assert "http" not in policy
    assert "default-src 'self'" in policy
    assert "'sha256-" in scripts


def test_a_session_sees_its_own_runs_alone(app, run_folder):
    made, context = app
    seen = []

    def see():
        seen.append(context.served.session)
        return str(list(context.served.runs()))

    made.server.add_url_rule("/seen", view_func=see)
    one, other = made.server.test_client(), made.server.test_client()
    one.get("/seen")
    shutil.copytree(run_folder, seen[0] / "mine")
    assert "this session/mine" in one.get("/seen").text
    assert "this session/mine" not in other.get("/seen").text
    assert len({*seen}) == 2


def test_a_run_may_not_take_all_memory(tmp_path):
    """In a process of its own, as runs are: more than it may have is one sentence."""
    code = "from dashboards.app import jobs; import numpy, pathlib; jobs.MOST_MEMORY_BYTES = 2**30; sent = []\n"
    code += "class Sender: send = staticmethod(sent.append)\n"
    code += "jobs.follow_parent = lambda _: None\n"
    code += "jobs.limit_memory(); jobs.work(Sender, lambda folder, tell: numpy.ones(2**28), pathlib.Path('x'))\n"
    code += "assert sent == [('failed', jobs.NO_MEMORY)], sent"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_deep_brackets_cost_nothing(tmp_path, monkeypatch):
    """They are counted, not parsed; and uploads are read where time and memory are bounded."""
    task = UploadTask("[" * 500_000, "deep.yaml", ServedFolders.of([], tmp_path))
    monkeypatch.setattr("yaml.scanner.Scanner.fetch_more_tokens", None)
    with pytest.raises(ForerunError, match="nested too deeply"):
        task(tmp_path / "run", lambda *_: None)


def test_what_threads_share_is_imported_before_them():
    """Plotly asks whether values are pandas' as soon as pandas is being imported by another thread."""
    code = "import sys, tempfile, pathlib; from dashboards.app import create_app; "
    code += "create_app([], pathlib.Path(tempfile.mkdtemp())); import importlib.util as u; "
    code += "assert 'pandas' in sys.modules or u.find_spec('pandas') is None"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
