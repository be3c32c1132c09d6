from __future__ import annotations

import json
import os

import pytest

from pulsetrain.core.caller import caller
from pulsetrain.core.errors import AuthError, PulsetrainError, Unavailable, UsageError
from pulsetrain.core.process_identity import process_identity
from pulsetrain.protocol.client import HubAddress, HubClient, find_hub, leading
from tests.protocol.fake_hub import fake_hub


def client(hub):
    return HubClient(HubAddress(url=hub.url, token="t"), timeout_s=5.0)


def environ(tmp_path, **more):
    return {"PULSETRAIN_DATA": str(tmp_path), **more}


def running_hub(tmp_path):
    (tmp_path / "hub.json").write_text(json.dumps({"url": "http://here:1", "token": "known"}))


def test_arguments_come_before_the_environment_and_that_before_the_running_hub(tmp_path):
    running_hub(tmp_path)
    named = environ(tmp_path, PULSETRAIN_HUB="http://env:2", PULSETRAIN_TOKEN="e")
    assert find_hub("http://arg:3/", "a", named) == HubAddress(url="http://arg:3", token="a")
    assert find_hub(environ=named) == HubAddress(url="http://env:2", token="e")
    assert find_hub(environ=environ(tmp_path)) == HubAddress(url="http://here:1", token="known")


def test_the_running_hubs_token_is_not_given_to_another_hub(tmp_path):
    running_hub(tmp_path)
    assert find_hub("http://other:1", environ=environ(tmp_path)).token == ""
    assert find_hub("http://here:1/", environ=environ(tmp_path)).token == "known"


def run_hub(tmp_path, name, url, pid=None):
    """A run has started a hub of its own. It has ended where `pid` is that of no process."""
    folder = tmp_path / "runs" / name
    folder.mkdir(parents=True)
    write_hub(folder, url, pid)
    return folder


def write_hub(folder, url, pid=None):
    facts = {"url": url, "token": f"of {url}", "pid": pid or os.getpid()}
    facts["process"] = process_identity(os.getpid())
    (folder / "hub.json").write_text(json.dumps(facts))


NOBODY = 2**22 + 1  # above the largest pid


def test_the_hub_that_a_run_has_started_is_found(tmp_path):
    run_hub(tmp_path, "old", "http://old:1", NOBODY)
    run_hub(tmp_path, "new", "http://new:1")
    new = HubAddress(url="http://new:1", token="of http://new:1")
    assert find_hub(environ=environ(tmp_path)) == new
    assert find_hub("http://new:1/", environ=environ(tmp_path)) == new
    assert find_hub("http://old:1", environ=environ(tmp_path)).token == ""


def test_the_hub_of_the_data_folder_goes_before_that_of_a_run_unless_it_has_ended(tmp_path):
    run_hub(tmp_path, "new", "http://new:1")
    write_hub(tmp_path, "http://here:1")
    assert find_hub(environ=environ(tmp_path)).url == "http://here:1"
    write_hub(tmp_path, "http://here:1", NOBODY)
    assert find_hub(environ=environ(tmp_path)).url == "http://new:1"


def test_a_hub_of_another_machine_that_serves_the_folder_is_not_taken_for_ended(tmp_path):
    run_hub(tmp_path, "new", "http://new:1")
    facts = {"url": "http://there:1", "pid": NOBODY, "process": "another-boot pid:[1] 7"}
    (tmp_path / "hub.json").write_text(json.dumps(facts))
    assert find_hub(environ=environ(tmp_path)).url == "http://there:1"


def test_of_the_hubs_of_several_runs_a_person_has_to_choose(tmp_path):
    folders = [run_hub(tmp_path, name, f"http://{name}:1") for name in ("a", "b")]
    with pytest.raises(UsageError, match=f"2 runs have a hub.*--data.*{folders[0]}, {folders[1]}"):
        find_hub(environ=environ(tmp_path))
    assert find_hub(environ=environ(tmp_path), data=folders[1]).url == "http://b:1"


def test_several_hubs_are_named_with_commas_and_none_of_them_gets_the_running_hubs_token(tmp_path):
    running_hub(tmp_path)
    found = find_hub("http://here:1/, http://b:2", environ=environ(tmp_path))
    assert (found.urls, found.token) == (("http://here:1", "http://b:2"), "")


def test_of_several_hubs_the_one_that_leads_is_asked_and_one_alone_is_not_asked():
    with fake_hub((503, {"role": "waiting"})) as waiting, fake_hub((200, {"role": "leader"})) as leader:
        both = HubAddress(url=waiting.url, token="t", others=("http://127.0.0.1:9", leader.url))
        assert leading(both) == HubAddress(url=leader.url, token="t")
        assert [(a.path, a.headers["Authorization"].strip()) for a in leader.asked] == [
            ("/v1/leader", "Bearer")
        ]
        alone = HubAddress(url=waiting.url, token="t")
        assert leading(alone) == alone
    assert len(waiting.asked) == 1


def test_where_no_hub_leads_the_first_is_taken():
    nobody = HubAddress(url="http://127.0.0.1:9", token="t", others=("http://127.0.0.1:10",))
    assert leading(nobody) == HubAddress(url="http://127.0.0.1:9", token="t")


@pytest.mark.parametrize("content", [None, "", "{}", "no json"])
def test_without_a_hub_the_error_says_how_to_name_one(tmp_path, content):
    if content is not None:
        (tmp_path / "hub.json").write_text(content)
    with pytest.raises(UsageError, match=r"give --hub URL, set PULSETRAIN_HUB.*hub\.json"):
        find_hub(environ=environ(tmp_path))


def test_a_token_has_no_end_of_line_and_an_impossible_one_is_not_shown(tmp_path):
    assert find_hub("http://a", "tok\n", environ(tmp_path)).token == "tok"
    with pytest.raises(AuthError) as refused:
        find_hub("http://a", "s3\u201dcr", environ(tmp_path))
    assert "s3" not in str(refused.value)


def test_an_address_at_which_no_hub_answers_is_one_line():
    for page in (b"<html>", ["no", "object"]):
        with fake_hub((200, page)) as hub, pytest.raises(PulsetrainError, match="not as a hub does"):
            client(hub).status()


def test_a_user_without_a_name_acts_by_number(monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: {}["nobody"])
    assert caller() == f"uid-{os.getuid()}"


def test_lists_are_what_is_under_their_name():
    with fake_hub((200, {"nodes": [{"node": "n1"}]})) as hub:
        assert client(hub).nodes() == [{"node": "n1"}]
    assert hub.asked[0].path == "/v1/nodes"


def test_actions_are_sent_in_the_callers_name(monkeypatch):
    monkeypatch.setenv("LOGNAME", "ann")
    with fake_hub((200, {"allowed": True})) as hub:
        assert client(hub).evict("n7", "smoke", dry_run=True) == {"allowed": True}
        client(hub).acknowledge("a1", "seen")
        client(hub).silence({"node": "n7"}, 60.0)
    evict, acknowledge, silence = (json.loads(asked.body) for asked in hub.asked)
    assert evict == {"node": "n7", "reason": "smoke", "dry_run": True, "actor": "ann"}
    assert acknowledge == {"actor": "ann", "note": "seen"}
    assert silence == {"actor": "ann", "matchers": {"node": "n7"}, "seconds": 60.0, "comment": ""}
    assert {asked.headers["Content-Type"] for asked in hub.asked} == {"application/json"}


def test_a_jobs_name_is_quoted_and_fresh_stacks_are_asked_for_by_post():
    with fake_hub((200, {})) as hub:
        client(hub).stacks("a/b c")
        client(hub).stacks("a/b c", fresh=False)
    assert [(a.method, a.path) for a in hub.asked] == [
        ("POST", "/v1/jobs/a%2Fb%20c/stacks"),
        ("GET", "/v1/jobs/a%2Fb%20c/stacks"),
    ]


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        ((401, {"error": "no"}), AuthError, "refuses the token \\(no\\): set PULSETRAIN_TOKEN or --token"),
        ((503, b"store away"), PulsetrainError, "failed: store away"),
        ((404, {"error": "no such job"}), UsageError, "^no such job$"),
        ((404, b"not json"), UsageError, "^not json$"),
        ((302, b""), UsageError, "answers 302"),
    ],
)
def test_a_refusal_is_one_line_that_says_why(answer, error, text):
    with fake_hub(answer) as hub, pytest.raises(error, match=text):
        client(hub).status()


def test_an_absent_hub_is_unavailable():
    with pytest.raises(Unavailable, match="does not answer"):
        HubClient(HubAddress(url="http://127.0.0.1:9", token="")).status()
