"""A scheduler and kubelets for the emulator: the containers of pods run as processes of this machine."""

import os
import re
import signal
import subprocess
import sys
import threading

from tests.hub.kubernetes.emulator import Refused, over

TERMS = "requiredDuringSchedulingIgnoredDuringExecution"


class Kubelets:
    """Runs every pod of the emulator. `log(pod)` is what its agent has printed.

    A pod is put on a free node that is not cordoned and not excluded, one pod of a job to a node. It gets
    SIGTERM when it is deleted, and its phase when its process ends.
    """

    def __init__(self, emulator, folder, **environ):
        self.emulator, self.folder = emulator, folder
        self.environ = os.environ | environ
        self.processes, self.lost = {}, set()
        emulator.has_kubelets = True
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(60)

    def log(self, pod):
        return (self.folder / f"{pod}.log").read_text()

    def on(self, node):
        """The pod that runs there."""
        pods = self.emulator.all("pods")
        return next(p["metadata"]["name"] for p in pods if p["spec"].get("nodeName") == node and not over(p))

    def lose(self, node):
        """A machine dies. Nobody says so: the pod seems to run."""
        self.lost.add(node)
        process = self.processes[self.on(node)]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)

    def _run(self):
        while not self._ended.wait(0.03):
            with self.emulator.changed:
                pods = self.emulator.all("pods")
                for pod in pods:
                    try:
                        self._look(pod, pods)
                    except Refused:
                        continue  # gone meanwhile

    def _look(self, pod, pods):
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        node, process = pod["spec"].get("nodeName"), self.processes.get(name)
        if over(pod) or node in self.lost:
            return
        if node is None:
            node = self._node_for(pod, pods)
            if node is not None:
                pod["spec"]["nodeName"] = node
                self.emulator.patch("pods", namespace, name, {"spec": {"nodeName": node}})
        elif process is None:
            self.processes[name] = self._start(pod)
            status = {"phase": "Running", "podIP": "127.0.0.1"}
            self.emulator.patch("pods", namespace, name, {"status": status}, status=True)
        elif process.poll() is not None:
            del self.processes[name]
            if pod["metadata"].get("deletionTimestamp"):
                self.emulator.remove("pods", namespace, name)
            else:
                phase = "Failed" if process.returncode else "Succeeded"
                self.emulator.patch("pods", namespace, name, {"status": {"phase": phase}}, status=True)
        elif pod["metadata"].get("deletionTimestamp") and not hasattr(process, "told"):
            process.told = True
            process.terminate()

    def _node_for(self, pod, pods):
        taken = {p["spec"].get("nodeName") for p in pods if not over(p)}
        affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get(TERMS, {})
        fields = [f for term in affinity.get("nodeSelectorTerms", ()) for f in term.get("matchFields", ())]
        excluded = {value for f in fields for value in f["values"]}
        for node in self.emulator.all("nodes"):
            name = node["metadata"]["name"]
            if not node["spec"].get("unschedulable") and name not in taken | excluded | self.lost:
                return name
        return None

    def _start(self, pod):
        (container,) = pod["spec"]["containers"]
        values = {}
        for each in container["env"]:
            field = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            known = {"spec.nodeName": pod["spec"]["nodeName"], "status.podIP": "127.0.0.1"}
            values[each["name"]] = known[field] if field else each["value"]
        args = [re.sub(r"\$\((\w+)\)", lambda m: values[m[1]], word) for word in container["args"]]
        name = pod["metadata"]["name"]
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "pulsetrain.cli", *args],
                env=self.environ | values | {"PULSETRAIN_DATA": str(self.folder / f"{name}.data")},
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
