"""What hubs keep in the emulator."""

import json

from pulsetrain.hub.kubernetes.state_store import KEY, NAME


def entries(cluster, namespace="train"):
    """The values by key."""
    text = cluster.get("configmaps", namespace, NAME)["data"][KEY]
    return {key: value for key, value, *_ in json.loads(text)["entries"]}
