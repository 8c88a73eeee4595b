"""Files for NVIDIA FLARE: the job that is submitted, and what a site allows. FLARE is not needed to write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sottovoce.app.job_file import TrainingTable
from sottovoce.app.jobs import Job
from sottovoce.errors import InputError
from sottovoce.files import parse_file, write_data, write_text
from sottovoce.transports.certificates import check_name

CLASSES: Final = {"server": "sottovoce.app.flare.Coordinator", "client": "sottovoce.app.flare.Party"}
# What nobody may do at a site, in whatever role: bring code, read files, run somebody else's application.
FORBIDDEN: Final = ("byoc", "shell_commands", "server-predeployed-flwr")
_COMMANDS: Final = ("cat", "grep", "head", "ls", "pwd", "tail")  # of a shell; one that is named goes before its kind
_ALL: Final = "*"  # every right, whatever else is said
_RIGHTS: Final = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")
_NO_FILTERS: Final[Mapping[str, Any]] = {
    "format_version": 2,
    "task_data_filters": [],
    "task_result_filters": [],
    "components": [],
}


def check_job(job: Job) -> TrainingTable:
    """The federation of a job that can run on a FLARE server, where a path of the job would be one of the server's."""
    if job.federation is None:
        raise InputError(f"{job.path}: a job for NVIDIA FLARE has [federation], with its clients as parties.")
    for name in job.federation.ends:
        check_name(name)
    if job.schema_table is not None and (file := job.schema_table.file) is not None and Path(file).name != file:
        raise InputError(f"{job.path}: schema.file = {file!r} must be beside the job, to be submitted with it.")
    for path in [] if (schema := job.known_schema) is None else schema.level_files:
        if path != job.resolve(path.name):
            raise InputError(f"{job.path}: levels_file {path} must be beside the job, to be submitted with it.")
    return job.federation


def write_flare_job(job: Job, folder: Path, *, restart: bool = False) -> Path:
    """A job as FLARE takes it, in a folder that is not there yet: `nvflare job submit -j FOLDER`.

    With `restart` a fit of this job that was stopped is given up; else it goes on.
    """
    table = check_job(job)
    check_name(job.path.stem)
    if folder.exists():
        raise InputError(f"{folder} exists; choose another folder, or remove it.")
    coordinator, party = folder / "coordinator" / "config", folder / "party" / "config"
    for made in (coordinator, party):
        made.mkdir(parents=True)
    told = {"job": job.path.name, **({"restart": True} if restart else {})}
    workflow = {"id": "coordinator", "path": CLASSES["server"], "args": told}
    executor = {"tasks": ["none"], "executor": {"path": CLASSES["client"], "args": {}}}
    texts = {
        folder / "meta.json": {
            "name": job.path.stem,
            "resource_spec": {},
            "min_clients": len(table.ends),
            "mandatory_clients": list(table.ends),
            "deploy_map": {"coordinator": ["server"], "party": list(table.ends)},
        },
        coordinator / "config_fed_server.json": {**_NO_FILTERS, "workflows": [workflow]},
        party / "config_fed_client.json": {**_NO_FILTERS, "executors": [executor]},
    }
    for path, content in texts.items():
        write_text(path, json.dumps(content, indent=2) + "\n", "out")
    schema = None if job.schema_table is None else job.schema_table.file
    levels = [] if job.known_schema is None else [path.name for path in job.known_schema.level_files]
    for name in filter(None, (job.path.name, schema, *dict.fromkeys(levels))):
        write_data(coordinator / name, (job.path.parent / name).read_bytes(), "out")
    return folder


def restrict_site(kit: Path) -> dict[str, Path]:
    """Write what a provisioned site allows, `resources.json` and `authorization.json` in the folder `local` of its kit.

    Guarantee: FLARE then loads no class that a job names but ours, takes no job that brings code, gives nobody a shell,
    and streams no log of the site to the server. What else the site's files say is kept.
    """
    local = kit / "local"
    kind = "server" if (kit / "startup" / "fed_server.json").exists() else "client"
    resources, permissions = _read_site_file(local, "resources.json"), _read_site_file(local, "authorization.json")
    resources |= {"class_list_enforcement_mode": "enforce", "class_allow_list": [CLASSES[kind]]}
    if kind == "client":
        resources["allow_log_streaming"] = False
        kept = []  # all but those that send logs to the server, by their id or their class
        for each in resources.get("components", []):
            said = {"id": "", "path": "", "name": "", **each}
            if said["id"] != "site_log_streamer" and "LogStreamer" not in f"{said['path']} {said['name']}":
                kept.append(each)
        resources["components"] = kept
    roles = permissions.setdefault("permissions", {})
    for (
        role,
        rights,
    ) in roles.items():  # without what is forbidden; who had one right to everything keeps it for the rest
        given = rights if isinstance(rights, dict) else {_ALL: rights}
        known = {str(right).strip().lower(): who for right, who in given.items()}
        if _ALL in known:
            known = {**dict.fromkeys(_RIGHTS, known[_ALL]), **known}
        for right in (*FORBIDDEN, *_COMMANDS, _ALL):
            known.pop(right, None)
        roles[role] = known | dict.fromkeys(FORBIDDEN, "none")
    written = {"resources.json": resources, "authorization.json": permissions}
    for name, content in written.items():
        write_text(local / name, json.dumps(content, indent=2) + "\n", name, overwrite=True)
    return {name: local / name for name in written}


def _read_site_file(local: Path, name: str) -> dict[str, Any]:
    """What the site has configured, or what provisioning proposed."""
    for path in (local / name, local / f"{name}.default"):
        if path.exists():
            found: dict[str, Any] = parse_file(path, json.loads, "JSON", "correct it, or take that of the startup kit.")
            return found
    raise InputError(f"{local} has neither {name} nor {name}.default; give the folder of a startup kit of FLARE.")
