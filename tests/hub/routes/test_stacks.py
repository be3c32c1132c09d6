"""Stacks over HTTP."""

from pulsetrain.core.errors import UsageError
from pulsetrain.hub.routes import stacks
from tests.hub.fakes import TOKEN, Client


class FakeStacks:
    """One job, j, of which no report was made yet."""

    def __init__(self):
        self.report = {}

    def latest(self, job):
        if job != "j":
            raise UsageError(f"no job {job!r} runs here; jobs here: j")
        return self.report

    async def take(self, job, why):
        self.latest(job)
        self.report = {"outliers": "3", "why": why}
        return self.report


def test_stacks_are_taken_and_kept_and_an_unknown_job_is_one_line():
    client = Client(stacks.routes(FakeStacks(), TOKEN))
    assert client.get("/v1/jobs/j/stacks").json() == {}
    assert client.post("/v1/jobs/j/stacks", json={"actor": "ann"}).json()["outliers"] == "3"
    assert client.get("/v1/jobs/j/stacks").json()["why"] == "ann"
    refused = client.get("/v1/jobs/k/stacks")
    assert (refused.status_code, refused.json()["error"]) == (400, "no job 'k' runs here; jobs here: j")
    assert client.get("/v1/jobs/j/stacks", token="no").status_code == 401
