"""Models from files and inline fields."""

import io
import json
from urllib.error import HTTPError

import pytest
from test_llm_hf_config import LLAMA

from forerun.errors import ForerunError
from simulator.llm import load_architecture
from simulator.llm.hub import hub_folder

CONFIG = {name: value for name, value in LLAMA.items() if name not in ("architectures", "num_key_value_heads")}
OWN = {
    "name": "mine",
    "hidden_size": 256,
    "vocab_size": 1000,
    "layers": [
        {
            "count": 3,
            "attention": {"num_heads": 8, "num_kv_heads": 2, "head_dim": 32, "window": 64},
            "mlp": {"intermediate_size": 512},
        },
        {
            "attention": {
                "kind": "mla",
                "num_heads": 8,
                "kv_lora_rank": 32,
                "qk_nope_head_dim": 16,
                "qk_rope_head_dim": 8,
                "v_head_dim": 16,
            },
            "mlp": {"num_experts": 8, "experts_per_token": 2, "intermediate_size": 64},
        },
    ],
}


def test_a_file_is_read_once_as_long_as_it_says_the_same(tmp_path):
    """Studies ask for the model of a file at every run: with 184 excluded patterns that took most of a plan."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    first = load_architecture(path)
    assert load_architecture(str(path)) is first
    path.write_text(json.dumps(CONFIG | {"num_hidden_layers": 5}))
    assert load_architecture(path).num_layers == 5
    other = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(other))
    assert load_architecture(path).checkpoint_dtypes["mlp"] == "fp8"


def test_config_json_in_a_folder_takes_the_folders_name(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    by_file, by_folder = load_architecture(folder / "config.json"), load_architecture(str(folder))
    assert by_file == by_folder
    assert by_file.name == "my-model"
    assert by_file.source == str(folder / "config.json")


def test_file_inline_and_catalogue_form_agree(tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text(json.dumps({"source": {"reference": "a paper"}, "config": CONFIG}))
    entry = load_architecture(path)
    assert entry.layer_groups == load_architecture(CONFIG).layer_groups
    assert entry.source == "a paper"
    path.write_text(json.dumps({"config": CONFIG}))
    with pytest.raises(ForerunError, match="source is missing"):
        load_architecture(path)


def test_own_fields():
    architecture = load_architecture(OWN)
    assert architecture.num_layers == 4
    assert architecture.layer_groups[0].layer.attention.window == 64
    assert architecture.layer_groups[1].layer.attention.kv_elements_per_token == 40
    assert architecture.checkpoint_dtypes["mlp"] == "bf16"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("hiden_size",), 3, "did you mean 'hidden_size'"),
        (("layers",), [], "layers must list"),
        (("layers",), [3], r"layers\[0\]"),
        (("layers", 0, "attention", "num_heads"), 7, r"layers\[0\]\.attention\.num_kv_heads 2 does not divide"),
        (("layers", 0, "attention", "kv_lora_rank"), 7, "belongs to kind: mla"),
        (("layers", 0, "attention", "kind"), "mqa", r"attention\.kind 'mqa' is not one of .*Mamba-2.*gqa"),
        (("layers", 0, "mlp", "intermediate"), 7, "did you mean 'intermediate_size'"),
        (("layers", 1, "mlp", "experts_per_token"), 9, r"layers\[1\]\.mlp\.experts_per_token 9 exceeds"),
        (("layers", 1, "count"), 0, r"layers\[1\]\.count must be from 1"),
        (("checkpoint_dtypes",), {"mpl": "fp8"}, "did you mean 'mlp'"),
    ],
)
def test_wrong_own_field_is_refused_by_place(path, value, message):
    values = json.loads(json.dumps(OWN))
    target = values
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    with pytest.raises(ForerunError, match=message):
        load_architecture(values)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("broken.json", b"{\n 'a': 1}", "line 2 is not valid JSON"),
        ("list.json", b"[1, 2]", "must be an object of fields"),
        ("number.json", b"1" * 5000, "broken"),
        ("nested.json", b"[" * 200_000, "cannot be parsed"),
        ("empty.json", b"", "line 1"),
        ("nan.json", b'{"model_type": "llama", "num_hidden_layers": NaN}', "num_hidden_layers must be a whole number"),
        ("binary.json", b"\xff\xfe\x00", "cannot be read as text"),
        ("broken.yaml", b"a: [1\nb: 2", "line 2 is not valid YAML"),
        ("text.yaml", b"just text", "must be an object of fields"),
        ("object.yaml", b"!!python/object/apply:os.getcwd []", "not valid YAML"),
        ("keys.yaml", b"1: 2", "must be text"),
        ("weights.bin", b"x", "a model file ends in .json"),
        ("large.json", b" " * 5 * 1024**2, "larger than"),
    ],
)
def test_unreadable_file_is_one_line_naming_it(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ForerunError) as error:
        load_architecture(path)
    assert str(error.value).startswith(str(path))
    assert len(str(error.value).splitlines()) == 1
    if message != "broken":
        with pytest.raises(ForerunError, match=message):
            load_architecture(str(path))


def test_missing_file_and_folder_without_config(tmp_path):
    with pytest.raises(ForerunError, match="no such file"):
        load_architecture(str(tmp_path / "config.json"))
    with pytest.raises(ForerunError, match=r"config\.json: no such file"):
        load_architecture(tmp_path)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty Hugging Face cache, and no network."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("the network was used"))
    return tmp_path / "models--acme--tiny"


def test_a_config_of_the_hugging_face_cache_is_read_by_its_repository(cache):
    (cache / "snapshots" / COMMIT).mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(COMMIT)
    (cache / "snapshots" / COMMIT / "config.json").write_text(json.dumps(LLAMA))
    for name in ("hf:acme/tiny", f"hf:acme/tiny@{COMMIT}"):
        architecture = load_architecture(name)
        assert (architecture.hidden_size, architecture.name) == (256, "tiny")


def test_the_network_is_used_only_on_request(cache, monkeypatch):
    with pytest.raises(
        ForerunError, match=r"no config.json in the Hugging Face cache .*; forerun models show hf:acme/ti"
    ):
        load_architecture("hf:acme/tiny")
    answers = {"config.json": json.dumps(LLAMA)}

    def urlopen(url, timeout):
        name = url.rsplit("/", 1)[1]
        assert (url, timeout > 0) == (f"https://huggingface.co/acme/tiny/resolve/main/{name}", True)
        if name not in answers:
            raise HTTPError(url, 404, "Not Found", {}, None)
        answer = io.BytesIO(answers[name].encode())
        answer.headers = {"X-Repo-Commit": COMMIT}
        return answer

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    hub_folder("hf:acme/tiny", download=True)
    assert load_architecture("hf:acme/tiny").hidden_size == 256
    answers.clear()
    with pytest.raises(ForerunError, match=r"config.json cannot be fetched: Not Found"):
        hub_folder("hf:acme/tiny", download=True)


@pytest.mark.parametrize("name", ["hf:acme", "hf:../x", "hf:a/../../x", "hf:a/b@../c", "hf:"])
def test_a_name_that_is_no_repository_is_refused(cache, name):
    with pytest.raises(ForerunError, match="must be hf:OWNER/NAME"):
        load_architecture(name)
