"""What NCCL RAS says, over HTTP."""

from pulsetrain.core.errors import UsageError
from pulsetrain.hub.routes import ras
from tests.hub.fakes import TOKEN, Client


class FakeReports:
    """One job, j, of which no report was made yet."""

    def __init__(self):
        self.report = {}

    def latest(self, job):
        if job != "j":
            raise UsageError(f"no job {job!r} runs here; jobs here: j")
        return self.report

    async def take(self, job, why):
        self.latest(job)
        self.report = {"culprits": [3], "why": why}
        return self.report


def test_reports_are_taken_and_kept_and_an_unknown_job_is_one_line():
    client = Client(ras.routes(FakeReports(), TOKEN))
    assert client.get("/v1/jobs/j/ras").json() == {}
    assert client.post("/v1/jobs/j/ras", json={"actor": "ann"}).json()["culprits"] == [3]
    assert client.get("/v1/jobs/j/ras").json()["why"] == "ann"
    refused = client.get("/v1/jobs/k/ras")
    assert (refused.status_code, refused.json()["error"]) == (400, "no job 'k' runs here; jobs here: j")
    assert client.get("/v1/jobs/j/ras", token="no").status_code == 401
