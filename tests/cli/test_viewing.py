"""The options of commands that operators watch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sottovoce.app.cli.console import change_view
from sottovoce.app.job_file import ViewTable
from sottovoce.app.jobs import load_dealer_job, load_job
from sottovoce.app.view.watched import Watch, watching
from sottovoce.errors import InputError


def test_a_fit_here_is_logged_and_watched_if_asked(write_job, invoke, folder, open_ledger):
    open_ledger("all.db", 2.0)
    path = write_job(data={"ledger": '"all.db"'}, solver={"name": '"gradient"', "rounds": "3"})
    said = invoke("fit", path, "--log-json", folder / "fit.jsonl", "--view", "0").stderr
    assert "for operators, in a browser here: http://127.0.0.1:" in said
    assert "is done" not in said  # which the summary says
    lines = [json.loads(line) for line in (folder / "fit.jsonl").read_text().splitlines()]
    events = [line["event"] for line in lines]
    assert events[0] == "started"
    assert events[-1] == "ended"
    assert lines[-1]["outcome"] == "done"
    rounds = [line for line in lines if line["event"] == "round"]
    assert [line["done"] for line in rounds] == list(range(1, rounds[0]["of"] + 1))
    assert {line["seconds"] for line in rounds} == {-1.0}  # how long they took depends on rows, which are here
    assert all(line["time"].endswith(".000Z") for line in lines)
    [first, last] = [line for line in lines if line["event"] == "budget"]
    assert first["left"] == last["left_before"] > last["left"]

    done = invoke("fit", path, "--overwrite", "--log-json", "-")
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == events  # and nothing for people
    assert "in a browser" not in invoke("fit", path, "--overwrite", "--quiet").stderr
    refused = invoke("fit", path, "--overwrite", "--quiet", "--log-json", folder / "fit.jsonl", code=3)
    assert "would fit" in refused.stderr
    last = json.loads((folder / "fit.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["level"], last["outcome"], last["error"]) == ("ended", "error", "failed", "BudgetError")


def test_what_a_file_and_the_command_line_say_of_the_view(write_job, folder):
    table = ViewTable(port=8650, log="a.jsonl")
    assert change_view(table) == table
    assert change_view(table, off=True).off
    assert change_view(ViewTable(off=True), port=0, log="-") == ViewTable(port=0, log="-")
    with pytest.raises(InputError, match="--view and --no-view"):
        change_view(table, port=0, off=True)
    plain, asked = load_job(write_job()), load_job(write_job("b.toml", view={"port": "8650"}))
    assert change_view(plain.view, if_asked=True).off
    assert not change_view(plain.view, port=0, if_asked=True).off
    assert not change_view(asked.view, if_asked=True).off
    (folder / "dealer.toml").write_text(
        '[dealer]\nname = "notary"\n[federation]\ncoordinator = "localhost:1"\ncertificates = "c"\n[view]\noff = true\n'
    )
    assert load_dealer_job(folder / "dealer.toml").view.off


def test_without_an_address_here_there_is_no_page_unless_it_was_asked_for(write_job, invoke, monkeypatch):
    monkeypatch.setattr("sottovoce.app.view.server.HOST", "203.0.113.1")  # of nobody: kept for documents
    path = write_job("quick.toml", solver={"name": '"gradient"', "rounds": "2"})
    assert "view.port=0 cannot be listened on" in invoke("fit", path, "--view", "0", code=2).stderr
    said, heard = list[str](), list[str]()
    with watching(Watch("party", "north"), ViewTable(), path.parent.joinpath, said.append) as watch:
        watch.add(lambda _, event: heard.append(event.name))
    assert said == ["no page for operators: this machine has no address 127.0.0.1 to listen on"]
    assert heard == ["started", "ended"]


def test_a_log_that_cannot_be_written_is_said_before_anything_is_charged(write_job, invoke, folder):
    said = invoke("fit", write_job(), "--quiet", "--log-json", folder / "nowhere" / "fit.jsonl", code=2).stderr
    assert "view.log" in said
    if Path("/dev/full").exists():
        assert "view.log" in invoke("fit", write_job(), "--quiet", "--log-json", "/dev/full", code=2).stderr
    assert "--view and --no-view" in invoke("fit", write_job(), "--view", "0", "--no-view", code=2).stderr


@pytest.mark.skipif(os.name != "posix", reason="how large a file may be is a limit of processes there")
def test_a_log_whose_disk_fills_up_fails_no_run(tmp_path):
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with watching(Watch("party", "north"), ViewTable(log="log", off=True), tmp_path.joinpath, list) as watch:
            resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "log").stat().st_size, limits[1]))
            watch.tell("done", plan="")
            watch.tell("done", plan="")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(watch._readers) == 1  # the terminal's
    assert json.loads((tmp_path / "log").read_text())["event"] == "started"
