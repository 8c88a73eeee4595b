"""Jobs and sites for NVIDIA FLARE; it is not needed to write them."""

from __future__ import annotations

import json

import pytest

from sottovoce.app.flare_files import CLASSES, FORBIDDEN

FEDERATION = '[federation]\nparties = ["north", "south"]\n'
RESOURCES = {
    "format_version": 2,
    "class_allow_list": ["nvflare.app_common.np.np_trainer.NPTrainer"],
    "allow_log_streaming": True,
    "components": [{"id": "resource_manager"}, {"id": "site_log_streamer"}],
}
ROLES = {
    "project_admin": "any",
    "lead": {"submit_job": "any", "byoc": "any"},
    "member": {"view": "any", " Cat": "any", "ls": "any"},
    "org_admin": {"*": "o:site", "view": "any"},
}


def test_a_job_of_flare_names_our_classes_and_tells_a_party_nothing(write_job, invoke, folder):
    path = write_job("trial.toml", data=None, more=FEDERATION)
    invoke("nvflare", "job", path, "--out", folder / "made")
    meta = json.loads((folder / "made" / "meta.json").read_text())
    assert meta["mandatory_clients"] == ["north", "south"]
    assert meta["deploy_map"] == {"coordinator": ["server"], "party": ["north", "south"]}
    party = json.loads((folder / "made" / "party" / "config" / "config_fed_client.json").read_text())
    assert [each["executor"] for each in party["executors"]] == [{"path": CLASSES["client"], "args": {}}]
    assert sum(file.is_file() for file in (folder / "made" / "party").rglob("*")) == 1
    server = json.loads((folder / "made" / "coordinator" / "config" / "config_fed_server.json").read_text())
    assert server["workflows"] == [{"id": "coordinator", "path": CLASSES["server"], "args": {"job": "trial.toml"}}]
    assert (folder / "made" / "coordinator" / "config" / "trial.toml").read_text() == path.read_text()
    assert "exists" in invoke("nvflare", "job", path, "--out", folder / "made", code=2).stderr


def test_a_job_whose_paths_would_be_the_servers_is_refused(write_job, invoke, folder):
    central = write_job()
    assert "[federation]" in invoke("nvflare", "job", central, "--out", folder / "made", code=2).stderr
    (folder / "elsewhere").mkdir()
    schema = '[schema]\nlabel = "out"\n[schema.columns]\na = { range = [0, 1] }\n'
    (folder / "elsewhere" / "schema.toml").write_text(schema)
    more = '[schema]\nfile = "elsewhere/schema.toml"\n' + FEDERATION
    path = write_job("trial.toml", data=None, bounds={"entry_bound": None}, more=more)
    assert "must be beside the job" in invoke("nvflare", "job", path, "--out", folder / "made", code=2).stderr
    assert not (folder / "made").exists()


def test_files_of_levels_go_with_the_job(write_job, invoke, folder):
    (folder / "elsewhere").mkdir()
    for place in (folder, folder / "elsewhere"):
        (place / "codes.csv").write_text("x\ny\n")
    for file, code in (("codes.csv", 0), ("elsewhere/codes.csv", 2)):
        schema = f'[schema]\nlabel = "out"\n[schema.columns]\na = {{ levels_file = "{file}" }}\n' + FEDERATION
        path = write_job("trial.toml", data=None, bounds={"entry_bound": None}, more=schema)
        said = invoke("nvflare", "job", path, "--out", folder / f"made{code}", code=code).stderr
        assert ("must be beside the job" in said) == bool(code)
    assert (folder / "made0" / "coordinator" / "config" / "codes.csv").read_text() == "x\ny\n"


def test_a_job_without_an_address_is_not_for_grpc(write_job, invoke):
    said = invoke("fit", write_job("trial.toml", data=None, more=FEDERATION), code=2).stderr
    assert "lacks listen or certificates" in said
    assert "sottovoce nvflare job" in said


@pytest.mark.parametrize("kind", ["client", "server"])
def test_a_site_is_restricted_and_keeps_the_rest(invoke, tmp_path, kind):
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / f"fed_{kind}.json").write_text("{}")
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "resources.json.default").write_text(json.dumps(RESOURCES))
    (tmp_path / "local" / "authorization.json.default").write_text(json.dumps({"permissions": ROLES}))
    for _ in range(2):  # the second time from what the first has written
        invoke("nvflare", "site", tmp_path)
        found = json.loads((tmp_path / "local" / "resources.json").read_text())
        assert found["class_allow_list"] == [CLASSES[kind]]
        assert found["class_list_enforcement_mode"] == "enforce"
        assert found["allow_log_streaming"] == (kind == "server")
        assert [each["id"] for each in found["components"]] == [
            "resource_manager",
            *(["site_log_streamer"] if kind == "server" else []),
        ]
        roles = json.loads((tmp_path / "local" / "authorization.json").read_text())["permissions"]
        assert all(rights[each] == "none" for rights in roles.values() for each in FORBIDDEN)
        assert roles["project_admin"]["submit_job"] == roles["lead"]["submit_job"] == "any"
        assert roles["member"]["view"] == "any"
        assert "submit_job" not in roles["member"]
        assert set(roles["member"]) == {"view", *FORBIDDEN}  # a command that is named would go before its kind
        assert "*" not in roles["org_admin"]
        assert (roles["org_admin"]["submit_job"], roles["org_admin"]["view"]) == ("o:site", "any")


def test_a_site_streams_no_log_under_another_name(invoke, tmp_path):
    for folder, name, content in (
        ("startup", "fed_client.json", {}),
        ("local", "authorization.json", {"permissions": ROLES}),
        ("local", "resources.json", {"components": [{"id": "own", "path": "nvflare.logging.SiteLogStreamer"}]}),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(json.dumps(content))
    invoke("nvflare", "site", tmp_path)
    assert json.loads((tmp_path / "local" / "resources.json").read_text())["components"] == []


def test_a_folder_that_is_no_kit_is_told(invoke, tmp_path):
    assert "startup kit" in invoke("nvflare", "site", tmp_path, code=2).stderr
