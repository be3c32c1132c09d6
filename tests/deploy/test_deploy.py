"""Files of deploy/ against their published schemas, offline; the Slurm scripts with a fake scontrol."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess

import compose_spec
import kubernetes_validate
import pytest
import yaml

from pulsetrain.hub.attempt_stores import stores_of
from pulsetrain.hub.kubernetes.job_spec import job_spec
from pulsetrain.hub.kubernetes.pods import pod_of
from pulsetrain.hub.node_metrics import NodeCollector
from pulsetrain.hub.settings import load_settings
from pulsetrain.recovery.store_host import NoStores
from pulsetrain.stream.ingest_metrics import IngestMetrics
from tests.hub.kubernetes.models import check
from tests.repository import ROOT

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
YAML = sorted(path for path in DEPLOY.rglob("*.y*ml") if "target" not in path.parts)
CUSTOM = {
    "ScaledObject",
    "Kustomization",
    "PulsetrainJob",
}  # not the cluster's own kinds: their schemas come with their tools
ASK_THE_API = {"pulsetrain-hub", "pulsetrain-job-operator"}
VERSIONS = ("1.29", "1.32", kubernetes_validate.latest_version())


def objects():
    for path in sorted(KUBERNETES.glob("*.yaml")):
        for each in yaml.safe_load_all(path.read_text()):
            yield pytest.param(each, id=f"{each['kind']}-{each.get('metadata', {}).get('name', '')}")


OBJECTS = list(objects())
PODS = [p for p in OBJECTS if p.values[0]["kind"] in ("Deployment", "StatefulSet", "DaemonSet")]


@pytest.mark.parametrize("path", YAML, ids=lambda p: str(p.relative_to(DEPLOY)))
def test_yaml_parses(path):
    assert list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("each", [p for p in OBJECTS if p.values[0]["kind"] not in CUSTOM])
def test_objects_follow_the_published_schema(each, version):
    kubernetes_validate.validate(each, version, strict=True)


def test_the_schema_would_notice():
    broken = yaml.safe_load((KUBERNETES / "ingest.yaml").read_text())
    broken["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"] = "many"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


def test_kustomize_names_every_file():
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    assert sorted([*listed, "kustomization.yaml"]) == sorted(p.name for p in KUBERNETES.glob("*.yaml"))


@pytest.mark.parametrize("each", PODS)
def test_pods_are_confined_probed_and_limited(each):
    pod = each["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is (pod["serviceAccountName"] in ASK_THE_API)
    for container in pod["containers"]:
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        if container["name"] != "agent":
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert {"startupProbe", "livenessProbe"} <= container.keys()
        assert "memory" in container["resources"]["limits"]
        mounts = {m["name"] for m in container["volumeMounts"]}
        claims = [c["metadata"]["name"] for c in each["spec"].get("volumeClaimTemplates", [])]
        assert mounts <= {v["name"] for v in pod["volumes"]} | set(claims)


EXAMPLE = yaml.safe_load((KUBERNETES / "examples/job.yaml").read_text())


def test_the_example_job_is_one_that_the_crd_and_the_operator_take():
    check("pulsetrainjobs", EXAMPLE)
    pod = pod_of(job_spec(EXAMPLE), "gpt-0", standby=True, exclude=("n1",))
    for version in VERSIONS:
        kubernetes_validate.validate(pod, version, strict=True)
    mounted = {m["name"] for m in pod["spec"]["containers"][0]["volumeMounts"]}
    assert mounted == {v["name"] for v in pod["spec"]["volumes"]}
    assert EXAMPLE["spec"]["script"][0].startswith("/job/")


def test_what_pods_of_agents_mount_is_made_by_a_file_or_a_command_of_the_docs():
    examples = [yaml.safe_load(path.read_text()) for path in (KUBERNETES / "examples").glob("*.yaml")]
    claims = [each for each in examples if each["kind"] == "PersistentVolumeClaim"]
    for claim in claims:
        kubernetes_validate.validate(claim, VERSIONS[-1], strict=True)
    made = {(c["metadata"]["name"], *c["spec"]["accessModes"]) for c in claims}
    told = (ROOT / "docs/deploy.md").read_text()
    for pod in agents():
        for volume in pod["volumes"]:
            if "persistentVolumeClaim" in volume:
                assert (volume["persistentVolumeClaim"]["claimName"], "ReadWriteMany") in made
            if "configMap" in volume:
                assert f"create configmap {volume['configMap']['name']} " in told


def agents():
    daemons = yaml.safe_load((KUBERNETES / "agent.yaml").read_text())
    return daemons["spec"]["template"]["spec"], EXAMPLE["spec"]["template"]["spec"]


@pytest.mark.parametrize("pod", agents(), ids=["daemon set", "job"])
def test_agents_reach_the_kernels_log_and_the_gpus(pod):
    """A device of the host that is only mounted cannot be opened: the container must be privileged."""
    (container,) = pod["containers"]
    assert container["securityContext"]["privileged"] is True
    assert container["securityContext"]["runAsUser"] == 0
    mount = next(m for m in container["volumeMounts"] if m["mountPath"] == "/dev/kmsg")
    volume = next(v for v in pod["volumes"] if v["name"] == mount["name"])
    assert volume["hostPath"] == {"path": "/dev/kmsg", "type": "CharDevice"}
    assert container["resources"]["limits"]["nvidia.com/gpu"]
    assert "[hub,kafka,gpu]" in (DEPLOY / "Dockerfile").read_text()


@pytest.mark.parametrize("pod", agents(), ids=["daemon set", "job"])
def test_agents_have_a_token_of_their_own_and_no_other_secret(pod):
    """The scripts of people can read it. The Secret `pulsetrain` has the token that may do everything."""
    (container,) = pod["containers"]
    secrets = [v["valueFrom"]["secretKeyRef"] for v in container["env"] if "secretKeyRef" in str(v)]
    assert secrets == [{"name": "pulsetrain-agent", "key": "token"}]


@pytest.fixture
def container(tmp_path):
    """Starts what the agent's container runs, with a `pulsetrain` that does as told."""
    processes = []

    def start(pulsetrain):
        (tmp_path / "pulsetrain").write_text(f"#!/bin/sh\n{pulsetrain}\n")
        (tmp_path / "pulsetrain").chmod(0o755)
        agent = agents()[0]["containers"][0]
        process = subprocess.Popen(
            [*agent["command"], *agent["args"]],
            env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_job_of_the_daemon_set_that_has_finished_does_not_begin_again(container):
    """A container that ends is started again, and its agent would begin a new job of the same name."""
    process = container('echo "$@"')
    assert process.stdout.readline().startswith("agent --hub=http://hub:8780 ")
    assert "finished" in process.stdout.readline()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    process.terminate()
    assert process.wait(20) == 0


def test_an_agent_of_the_daemon_set_ends_with_its_status(container):
    assert container("exit 3").wait(20) == 3


def test_an_agent_of_the_daemon_set_gets_the_signal_that_ends_its_pod(container):
    process = container('trap "exit 143" TERM; echo ready; while :; do sleep 0.02; done')
    process.stdout.readline()
    process.terminate()
    assert process.wait(20) == 143


@pytest.mark.parametrize("each", PODS)
def test_secrets_come_by_reference_and_pods_have_a_network_policy(each):
    container = each["spec"]["template"]["spec"]["containers"][0]
    for variable in container["env"]:
        if re.search("TOKEN|PASSWORD|STORE", variable["name"]):
            assert variable["valueFrom"]["secretKeyRef"]["name"] in ("pulsetrain", "pulsetrain-agent")
    labels = each["spec"]["template"]["metadata"]["labels"]
    policies = [p.values[0] for p in OBJECTS if p.values[0]["kind"] == "NetworkPolicy"]
    assert any(p["spec"]["podSelector"].get("matchLabels") == labels for p in policies)


def test_ranks_meet_where_the_network_policy_lets_agents_go():
    """A store beside the hub takes a free port, and agents may reach only that of the API."""
    policies = yaml.safe_load_all((KUBERNETES / "network-policy.yaml").read_text())
    (agent,) = (p for p in policies if p["metadata"]["name"] == "agent")
    to_hub = next(rule for rule in agent["spec"]["egress"] if "'hub'" in str(rule["to"]))
    assert [port["port"] for port in to_hub["ports"]] == [8780]
    hub = next(p.values[0] for p in PODS if p.values[0]["metadata"]["name"] == "hub")
    (container,) = hub["spec"]["template"]["spec"]["containers"]
    environ = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    assert isinstance(stores_of(load_settings(None, {}, {}, environ).hub), NoStores)


def test_nobody_reads_secrets_and_only_the_hub_may_write_to_nodes():
    every = [p.values[0] for p in OBJECTS if p.values[0]["kind"] in ("Role", "ClusterRole")]
    roles = {(each["kind"], each["metadata"]["name"]): each for each in every}
    for role in roles.values():
        for rule in role["rules"]:
            assert not {"*", "secrets"} & {*rule["resources"], *rule["verbs"], *rule["apiGroups"]}
    (cluster,) = [each for (kind, _), each in roles.items() if kind == "ClusterRole"]
    assert cluster["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]
    people = roles["Role", "pulsetrain-operator"]
    assert not {"update", "patch", "delete"} & {verb for rule in people["rules"] for verb in rule["verbs"]}
    bound = [s for p in OBJECTS for s in p.values[0].get("subjects", [])]
    assert {s["name"] for s in bound if s["kind"] == "ServiceAccount"} == ASK_THE_API


def test_ingest_scales_by_the_lag_of_its_own_group_and_topic():
    scaled = yaml.safe_load((KUBERNETES / "scaled-object.yaml").read_text())
    (trigger,) = scaled["spec"]["triggers"]
    deployment = yaml.safe_load((KUBERNETES / "ingest.yaml").read_text())
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert trigger["type"] == "kafka"
    assert trigger["metadata"]["consumerGroup"] == "pulsetrain"
    assert trigger["metadata"]["topic"] == "pulsetrain.spans"
    assert int(trigger["metadata"]["lagThreshold"]) > 0


def test_compose_follows_its_specification():
    text = re.sub(r"\$\{(\w+)(:\?[^}]*)?\}", r"\1", (DEPLOY / "compose.yaml").read_text())
    merged = yaml.safe_dump(yaml.safe_load(text))  # the parser knows no merge keys; compose does
    parsed = compose_spec.PyCompose.from_yaml(merged)
    wanted = {"kafka", "clickhouse", "hub", "ingest", "prometheus", "grafana"}
    assert wanted <= set(parsed.service_names())


def test_compose_names_each_volume_it_uses_and_publishes_on_loopback_only():
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert "latest" not in service.get("image", "")
        assert set(service.get("depends_on", [])) <= set(compose["services"])


def _metric_names():
    names = set()
    for family in (*IngestMetrics().registry.collect(), *NodeCollector({}).describe()):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(
            family.type, ("",)
        )
        names |= {family.name + suffix for suffix in suffixes}
    return names


def _asked(text):
    return set(re.findall(r"\bpulsetrain_\w+", text))


def test_rules_ask_for_metrics_that_exist_and_no_data_is_an_alert():
    rules = yaml.safe_load((DEPLOY / "prometheus/pulsetrain.rules.yml").read_text())
    each = [rule for group in rules["groups"] for rule in group["rules"]]
    assert _asked(" ".join(rule["expr"] for rule in each)) <= _metric_names()
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for rule in each)
    exprs = {rule["alert"]: rule["expr"] for rule in each}
    assert "absent(" in exprs["PulsetrainNoData"]
    assert exprs["PulsetrainNoData"].endswith(" and on () count(pulsetrain_job_node) > 0")
    assert exprs["PulsetrainNodeSilent"].endswith(" and on (node) pulsetrain_job_node")


def test_prometheus_leaves_the_hubs_label_for_the_training_job_as_it_is():
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    scraped = {each["job_name"]: each for each in config["scrape_configs"]}
    assert scraped["pulsetrain-hub"]["honor_labels"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
def test_promtool_takes_the_rules():
    rules = DEPLOY / "prometheus/pulsetrain.rules.yml"
    subprocess.run(["promtool", "check", "rules", rules], check=True, capture_output=True)


def test_the_dashboard_is_provisioned_and_asks_for_metrics_that_exist():
    dashboard = json.loads((DEPLOY / "grafana/dashboards/pipeline.json").read_text())
    assert {"uid", "title", "schemaVersion", "panels", "time"} <= dashboard.keys()
    source = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())
    uid = source["datasources"][0]["uid"]
    for panel in dashboard["panels"]:
        assert panel["datasource"]["uid"] == uid
        assert _asked(panel["targets"][0]["expr"]) <= _metric_names()
        assert panel["fieldConfig"]["defaults"]["noValue"] == "no data"
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    assert len({p["id"] for p in dashboard["panels"]}) == len(dashboard["panels"])


SCRIPTS = (
    DEPLOY / "slurm/prolog",
    DEPLOY / "slurm/epilog",
    DEPLOY / "slurm/train.sbatch",
    DEPLOY / "kafka/start",
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_scripts_parse_and_may_run(script):
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.integration
def test_units_are_what_systemd_takes(tmp_path):
    program = tmp_path / "pulsetrain"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for unit in (DEPLOY / "systemd").glob("*.service"):
        text = unit.read_text().replace("/opt/pulsetrain/bin/pulsetrain", str(program))
        (tmp_path / unit.name.replace("@", "@job")).write_text(text)
    units = sorted(tmp_path.glob("*.service"))
    assert len(units) == 3
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if "pulsetrain-" in line]
    assert not complaints


def test_the_agents_unit_lets_a_script_have_arguments_and_write():
    unit = (DEPLOY / "systemd/pulsetrain-agent@.service").read_text()
    assert "${SCRIPT}" not in unit  # systemd would pass it as one argument
    assert " $SCRIPT\n" in unit
    assert "ProtectSystem=strict" not in unit
    assert "LimitMEMLOCK=infinity" in unit


@pytest.fixture
def prolog(tmp_path):
    """Runs the prolog with a `pulsetrain` that ends as told; (its status, what scontrol was told)."""

    def run(diagnose, squeue="echo 79", scontrol="exit 0", script="prolog"):
        for name in ("prolog", "epilog"):
            shutil.copy(DEPLOY / "slurm" / name, tmp_path)
        for name, body in (
            ("pulsetrain", diagnose),
            ("scontrol", f'echo "$@" >>{tmp_path}/scontrol.log; {scontrol}'),
            ("squeue", squeue),
            ("logger", ":"),
        ):
            (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
            (tmp_path / name).chmod(0o755)
        env = os.environ | {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PULSETRAIN_BIN": str(tmp_path / "pulsetrain"),
            "PULSETRAIN_CHECK_LIMIT": "1",
            "PULSETRAIN_CGROUPS": str(tmp_path / "cgroup"),
            "SLURMD_NODENAME": "node-7",
            "SLURM_JOB_ID": "79",
        }
        done = subprocess.run([tmp_path / script], env=env, check=False, timeout=60)
        log = tmp_path / "scontrol.log"
        return done.returncode, log.read_text() if log.exists() else ""

    return run


@pytest.mark.parametrize("scope", ["system.slice/slurmstepd.scope", "cpuset/slurm/uid_7"])
@pytest.mark.parametrize(("jobs", "checked"), [((79,), True), ((79, 80), False), ((), True)])
def test_the_node_itself_knows_its_jobs_and_the_controller_is_not_asked(
    prolog, tmp_path, scope, jobs, checked
):
    for number in jobs:
        (tmp_path / "cgroup" / scope / f"job_{number}").mkdir(parents=True)
    (tmp_path / "cgroup" / scope).mkdir(parents=True, exist_ok=True)
    assert prolog(f"touch {tmp_path}/checked; exit 0", squeue=f"touch {tmp_path}/asked; exit 1") == (0, "")
    assert (tmp_path / "checked").exists() == checked
    assert not (tmp_path / "asked").exists()


def test_a_healthy_node_takes_the_job(prolog):
    assert prolog("""echo '{"ok": true, "failed": []}'""") == (0, "")


def test_a_failed_check_drains_the_node_with_its_name(prolog):
    status, told = prolog(
        """printf '{\\n "ok": false,\\n "failed": [\\n  "gemm_checksum"\\n ]\\n}'; exit 1"""
    )
    assert status == 1
    assert told == "update NodeName=node-7 State=DRAIN Reason=pulsetrain: gemm_checksum\n"


@pytest.mark.parametrize(
    ("scontrol", "script", "status"),
    [("exit 0", "epilog", 0), ("exit 1", "epilog", 1), ("exit 1", "prolog", 3)],
)
def test_slurm_itself_drains_a_node_that_failed_and_could_not_be_drained(prolog, scontrol, script, status):
    failed = """echo '{"failed": ["gemm"]}'; exit 1"""
    assert prolog(failed, scontrol=scontrol, script=script)[0] == status


@pytest.mark.integration
def test_a_check_that_hangs_drains_the_node(prolog):
    assert prolog("exec sleep 30")[0] == 1


def test_a_check_that_cannot_run_drains_nobody(prolog):
    assert prolog("exit 2") == (0, "")
    assert prolog("echo Traceback >&2; exit 1") == (0, "")


@pytest.mark.parametrize("squeue", ["echo 79; echo 80", "exit 1"], ids=["another job", "nobody knows"])
def test_a_node_that_another_job_may_use_is_not_checked(prolog, tmp_path, squeue):
    assert prolog(f'touch {tmp_path}/checked; echo \'{{"failed": ["gemm"]}}\'; exit 1', squeue) == (0, "")
    assert not (tmp_path / "checked").exists()


def test_the_manifests_of_hub_and_operator_can_be_put_into_one_file():
    texts = [(DEPLOY / "kubernetes" / name).read_text() for name in ("hub.yaml", "operator.yaml")]
    apart = [part for text in texts for part in yaml.safe_load_all(text) if part]
    assert [part for part in yaml.safe_load_all("".join(texts)) if part] == apart


def test_the_epilog_ends_only_what_the_job_left(tmp_path):
    def sleeper(**env):
        return subprocess.Popen(["sleep", "60"], env=os.environ | env)

    mine = sleeper(SLURM_JOB_ID="77", PULSETRAIN_JOB="j")
    others = [sleeper(SLURM_JOB_ID="78", PULSETRAIN_JOB="j"), sleeper(SLURM_JOB_ID="77")]
    epilog = tmp_path / "epilog"
    shutil.copy(DEPLOY / "slurm/epilog", epilog)  # no prolog beside it: only the first half runs
    try:
        env = os.environ | {"SLURM_JOB_ID": "77"}
        subprocess.run([epilog], env=env, check=True, timeout=60)
        assert mine.wait(timeout=40) == -9
        assert [p.poll() for p in others] == [None, None]
    finally:
        for process in (mine, *others):
            process.kill()
            process.wait()
