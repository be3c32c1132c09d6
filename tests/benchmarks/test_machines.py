"""Group tests on simulated nodes and real processes, and DLRover's scheme beside them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from machinecheck import namespaces, policies, simulated

from pulsetrain.diagnostics.link_search import MOST_ROUNDS
from pulsetrain.recovery.response import Response


@pytest.mark.parametrize("faulty", [0, 1, 4])
def test_faulty_nodes_are_named_exactly_within_the_stated_rounds(faulty):
    found = simulated.faults(32, faulty, seeds=5)
    assert (found["exact"], found["healthy_named"]) == (5, 0)
    assert found["most_rounds"] <= found["rounds_bound"]


@pytest.mark.integration
@pytest.mark.long
def test_processes_that_die_or_do_not_answer_are_named_exactly():
    script = [sys.executable, "-m", "machinecheck.real_groups", "--nodes", "8", "--seeds", "3"]
    folder = Path(simulated.__file__).parents[1]
    done = subprocess.run(script, cwd=folder, capture_output=True, text=True, check=True, timeout=300)
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["seeds"], found["exact"], found["healthy_named"]) == (3, 3, 0)


def test_dlrovers_scheme_names_the_node_of_its_own_example():
    nodes = list("123456")
    both, _ = simulated.dlrover(nodes, lambda g, _: simulated.TIMEOUT_S if "6" in g else 1.0)
    assert both == {"6"}


def test_a_slow_node_is_named_and_a_clean_fleet_is_left_alone():
    assert simulated.slow(24, 1.5, trials=2)["named"] == 2
    assert simulated.slow(24, 1.0, trials=2)["trials_with_a_healthy_node_named"] == 0


@pytest.mark.integration
@pytest.mark.alone
@pytest.mark.skipif(bool(namespaces.missing()), reason=namespaces.missing() or "all is there")
def test_a_lossy_link_between_network_namespaces_is_named():
    network = namespaces.Network()
    port = namespaces.ports()[3]
    try:
        network.open()
        network.check()  # opens neighbour tables
        with namespaces.lossy(network, port):
            verdict = network.check()
        assert [(c.kind, c.name) for c in verdict.culprits] == [("port", port.name)]
    finally:
        network.close()


def test_the_hardware_cases_ask_for_what_the_policy_table_has():
    assert {case.response for case in policies.MILD} == {Response.INFORM, Response.CORDON}
    assert {case.response for case in policies.EVICTING} == {Response.EVICT_NOW, Response.EVICT_AT_STEP}


@pytest.mark.parametrize(("seen", "right"), [("evict_at_step", True), ("evict_now", False), ("", False)])
def test_a_hardware_case_is_right_only_with_the_response_of_the_table(seen, right):
    case = next(case for case in policies.EVICTING if case.response == "evict_at_step")
    assert policies._row(case, seen, 3.0, done=True)["right"] is right


def test_the_strictest_response_of_several_findings_counts():
    evidence = ['{"response": "cordon"}', '{"response": "evict_at_step"}', '{"kind": "x"}']
    assert policies.strictest(evidence) == "evict_at_step"
    assert policies.strictest([]) == ""


@pytest.mark.integration
@pytest.mark.alone
@pytest.mark.skipif(bool(namespaces.missing()), reason=namespaces.missing() or "all is there")
def test_the_hubs_rounds_name_a_port_a_switch_and_a_memory_between_network_namespaces_and_nobody_else():
    network = namespaces.Network()
    port = namespaces.ports()[5]
    try:
        network.open()
        assert not network.check().culprits
        with namespaces.half_rate(network, port):
            slow = network.check()
        with namespaces.bad_uplink(network, port):
            uplink = network.check()
        with namespaces.far_memory(network, port):
            memory = network.check()
    finally:
        network.close()
    assert [c.name for c in slow.culprits] == [port.name]
    assert [(c.kind, c.name) for c in uplink.culprits] == [("switch", f"{port.switch}/{port.rail}")]
    assert [(c.kind, c.name) for c in memory.culprits] == [("memory", f"{port.name} to memory 1")]
    assert max(slow.rounds, uplink.rounds) <= MOST_ROUNDS


def test_what_other_programs_read_stands_beside_the_details():
    import machines

    rows = [simulated.faults(16, k, seeds=3) for k in (0, 2)]
    links = {"clean": 100, "clean_checks_that_name_somebody": 1}
    found = {"simulated": {"faulty": rows}, "links": links, "light": {"light_check_s": 1.5}}
    told = machines.summary(found)
    assert (told["clean_runs"], told["false_alarms"], told["light_check_s"]) == (100, 1, 1.5)
    assert (told["groups"]["seeds"], told["groups"]["exact"]) == (6, 6)
    assert told["groups"]["rounds"] <= told["groups"]["rounds_bound"]
    assert machines.summary({"light": {"light_check_s": 1.5}})["groups"] is None


@pytest.mark.integration
@pytest.mark.long
def test_a_light_check_of_eight_healthy_nodes_takes_two_rounds():
    import machines

    cost = machines.light_check()
    assert (cost["nodes"], cost["passed"], cost["rounds"]) == (8, True, 2)
    assert 0 < cost["self_check_cpu_s"] < cost["cpu_s"]


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.slow
def test_trouble_of_a_gpu_on_a_running_job_gets_its_response():
    told = policies.run(quick=True)
    assert (told["cases"], told["right"]) == (2, 2), told
