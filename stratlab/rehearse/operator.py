"""The pods that the training operator (v1.9) makes of a PyTorchJob, with the environment it injects.

Host names become 127.0.0.1 and the port a free one; nothing else differs. Observed on a cluster and read in
the operator's `envvar.go`: injected variables come last, so they win over rendered ones of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratlab.rendering.pod_commands import HERE, Pod, build_pod
from stratlab.user_error import UserError


def build_training_pods(job: Mapping[str, Any], port: int) -> list[Pod]:
    """One pod per replica, the master first.

    Raises:
        UserError: the operator would refuse the job, or it would hang for want of a rendezvous.
    """
    name, spec = job["metadata"]["name"], job["spec"]
    replicas = spec["pytorchReplicaSpecs"]
    if unknown := sorted(replicas.keys() - {"Master", "Worker"}):
        raise UserError(
            f"PyTorchJob {name}: replica type {unknown[0]}, expected Master or Worker [SL-replica-type]"
        )
    if "Master" not in replicas and "elasticPolicy" not in spec:
        raise UserError(
            f"PyTorchJob {name}: neither a Master nor an elasticPolicy, its pods would never find each other "
            "[SL-no-rendezvous]"
        )
    pods: list[Pod] = []
    for role in ("Master", "Worker"):
        for index in range(_count(replicas.get(role))):
            pod = replicas[role]["template"]["spec"]
            if "pytorch" not in [container["name"] for container in pod["containers"]]:
                raise UserError(
                    f"PyTorchJob {name}: the operator insists on a container with the name pytorch "
                    "[SL-no-pytorch-container]"
                )
            if first := pod.get("initContainers"):
                raise UserError(
                    f"PyTorchJob {name}: the init container {first[0]['name']} runs in an image of its own, which a "
                    "rehearsal has not: leave the cluster's values file out, or --set run.pod.initContainers=null "
                    "[SL-init-container]"
                )
            injected = _injected(spec, len(pods), port)
            pods.append(
                build_pod(
                    f"{name}-{role.lower()}-{index}",
                    f"node{len(pods)}",
                    pod,
                    namespace=job["metadata"].get("namespace", "default"),
                    injected=injected,
                )
            )
    return pods


def _count(replica: Mapping[str, Any] | None) -> int:
    return int(replica.get("replicas", 1)) if replica else 0


def _injected(spec: Mapping[str, Any], node: int, port: int) -> dict[str, str]:
    replicas = spec["pytorchReplicaSpecs"]
    nodes = sum(_count(replica) for replica in replicas.values())
    per_node = str(spec.get("nprocPerNode", "auto"))  # "auto" means as many as the node has CPUs
    env = {"PYTHONUNBUFFERED": "1", "PET_NPROC_PER_NODE": per_node, "PET_NNODES": str(nodes)}
    env["TRAINER_ACCELERATOR"] = ""  # nobody gives any out here: a rehearsal trains on what this machine has
    if "Master" in replicas:
        world_size = nodes * (int(per_node) if per_node.isdigit() else 1)  # the operator counts "auto" as 1
        env |= {"MASTER_ADDR": HERE, "MASTER_PORT": str(port), "WORLD_SIZE": str(world_size)}
        env |= {"PET_MASTER_ADDR": HERE, "PET_MASTER_PORT": str(port)}
        env |= {"RANK": str(node), "PET_NODE_RANK": str(node)}  # RANK is the pod's index, not a process rank
    if elastic := spec.get("elasticPolicy"):
        env |= _elastic(elastic, _count(replicas.get("Worker")), port)
    return env


def _elastic(policy: Mapping[str, Any], workers: int, port: int) -> dict[str, str]:
    env = {
        "PET_NNODES": f"{policy.get('minReplicas', workers)}:{policy.get('maxReplicas', workers)}",
        "PET_RDZV_BACKEND": policy.get("rdzvBackend", "c10d"),
        "PET_RDZV_ENDPOINT": f"{HERE}:{port}",
        "PET_LOCAL_ADDR": HERE,  # not injected: a pod's own host name resolves, this machine's may not
    }
    if "maxRestarts" in policy:
        env["PET_MAX_RESTARTS"] = str(policy["maxRestarts"])
    if "rdzvId" in policy:  # left out otherwise, as observed on a cluster
        env["PET_RDZV_ID"] = policy["rdzvId"]
    if conf := policy.get("rdzvConf"):
        env["PET_RDZV_CONF"] = ",".join(f"{entry['key']}={entry['value']}" for entry in conf)
    if policy.get("standalone"):
        env["PET_STANDALONE"] = ""
    return env
