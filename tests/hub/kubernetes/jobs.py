"""PulsetrainJobs of tests."""


def pulsetrain_job(name="gpt", **spec):
    container = {"name": "agent", "image": "pulsetrain", "env": [{"name": "PULSETRAIN_TOKEN", "value": "t"}]}
    template = {"metadata": {"labels": {"team": "a"}}, "spec": {"containers": [container]}}
    given = {"nnodes": 2, "standbys": 1, "script": ["train.py", "--steps", "9"], "template": template}
    return {
        "apiVersion": "pulsetrain.io/v1alpha1", "kind": "PulsetrainJob",
        "metadata": {"name": name}, "spec": given | spec,
    }  # fmt: skip


def node(name, **spec):
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": None}
    return {"metadata": {"name": name}, "spec": spec, "status": {"conditions": [ready]}}
