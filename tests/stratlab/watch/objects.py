"""Small Kubernetes objects for the fake API."""

NAMESPACE = "/api/v1/namespaces/lab"
PODS, EVENTS = f"{NAMESPACE}/pods", f"{NAMESPACE}/events"
RUNS = "/apis/kubeflow.org/v1/namespaces/lab/pytorchjobs"


def labels(release, component):
    return {"app.kubernetes.io/instance": release, "app.kubernetes.io/component": component}


def build_run(*conditions, name="demo", workers=2, processes=4):
    listed = [{"type": kind, "status": "True", "message": f"{name} is {kind}."} for kind in conditions]
    notes = {
        "stratlab/run-directory": f"/results/c/{name}",
        "stratlab/results-claim": "volume",
        "stratlab/results-mount": "/results",
        "stratlab/lab-image": "lab:1",
        "stratlab/processes": str(processes),
    }
    return {
        "metadata": {"name": name, "labels": labels(name, "training"), "annotations": notes},
        "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": workers}}},
        "status": {"conditions": listed} if listed else {},
    }


def build_pod(index, phase="Running", *, run="demo", role="worker", state=None, uid="", **status):
    name = f"{run}-{role}-{index}"
    kubeflow = {"training.kubeflow.org/replica-type": role, "training.kubeflow.org/replica-index": str(index)}
    container = {"name": "pytorch", "ready": phase == "Running", "restartCount": 0}
    return {
        "metadata": {
            "name": name,
            "labels": labels(run, "training") | kubeflow,
            **({"uid": uid} if uid else {}),
        },
        "spec": {"nodeName": "node-a", "containers": [{"name": "pytorch"}]},
        "status": {
            "phase": phase,
            "containerStatuses": [container | {"state": state or {"running": {}}}],
            **status,
        },
    }


def ended(code, message="", reason="Error", at="2026-01-01T00:00:00Z"):
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": at}}


def build_event(uid, reason, message, name="demo", count=1):
    return {
        "metadata": {"name": f"{name}.{reason}"},
        "type": "Warning",
        "reason": reason,
        "message": message,
        "count": count,
        "involvedObject": {"uid": uid, "name": name},
    }


def build_analysis(*conditions):
    return {
        "metadata": {
            "name": "demo-analysis-1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": labels("demo", "analysis"),
        },
        "status": {"conditions": [{"type": kind, "status": "True"} for kind in conditions]},
    }
