"""Pod Security Standards, checked on a pod's spec, and what the API server refuses although the schema allows it.

Admission sees pods only: a job that breaks a standard is accepted, and then its pods never come.
https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

import re
from collections import Counter

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")


def pod_problems(template):
    """One sentence per broken rule in a pod template{metadata, spec} of the right structure."""
    spec = template["spec"]
    containers, volumes = [*spec.get("initContainers", []), *spec["containers"]], spec.get("volumes", [])
    known = [volume["name"] for volume in volumes]
    used = {mount["name"] for each in containers for mount in each.get("volumeMounts", [])}
    found = label_problems(template.get("metadata", {}).get("labels", {}))
    found += [f"container {name} is there twice" for name in _repeated(each["name"] for each in containers)]
    found += [f"volume {name} is there twice" for name in _repeated(known)]
    found += [f"volume {v['name']} has {len(v) - 1} sources" for v in volumes if len(v) != 2]
    found += [f"{c['name']}: {text}" for c in containers for text in _container_problems(c, known)]
    return found + [f"volume {name} is not mounted" for name in sorted({*known} - used)]


def _container_problems(container, volumes):
    mounts, paths = (
        container.get("volumeMounts", []),
        [m["mountPath"] for m in container.get("volumeMounts", [])],
    )
    if not LABEL.fullmatch(container["name"]) or len(container["name"]) > 63:
        yield "name is no DNS label"
    if not container.get("image") or container.get("imagePullPolicy", "Always") not in PULL_POLICIES:
        yield "no image, or no known imagePullPolicy"
    yield from (f"volumeMount {m['name']} has no volume" for m in mounts if m["name"] not in volumes)
    yield from (f"mountPath {path} is there twice" for path in _repeated(paths))
    yield from (f"mountPath {path} has a colon" for path in paths if ":" in path)
    yield from (
        f"env {name} is there twice" for name in _repeated(e["name"] for e in container.get("env", []))
    )


def label_problems(labels):
    return [
        f"label {name}={value!r}: at most 63 characters of A-Z, a-z, 0-9, -, _ and ."
        for name, value in labels.items()
        if len(value) > 63 or not LABEL_VALUE.fullmatch(value)
    ]


def _repeated(names):
    return [name for name, count in Counter(names).items() if count > 1]


VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"),
    *("projected", "secret"),
}
APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
SECCOMP = ("RuntimeDefault", "Localhost")
SELINUX_TYPES = (None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")


def security(part):
    return part.get("securityContext") or {}


def inherited(pod, container, field):
    return security(container).get(field, security(pod).get(field))


def selinux_is_harmless(part):
    options = security(part).get("seLinuxOptions", {})
    return options.get("type") in SELINUX_TYPES and not options.get("user") and not options.get("role")


def apparmor_is_harmless(part):
    return security(part).get("appArmorProfile", {}).get("type", "RuntimeDefault") in SECCOMP


# What a pod must be: sentence when it is not -> whether it is
POD_CONTROLS = {
    "hostNetwork": lambda pod: not pod.get("hostNetwork"),
    "hostPID": lambda pod: not pod.get("hostPID"),
    "hostIPC": lambda pod: not pod.get("hostIPC"),
    "volume type": lambda pod: all(set(v) - {"name"} <= VOLUMES for v in pod.get("volumes", [])),
    "sysctls": lambda pod: not security(pod).get("sysctls"),  # the charts set none
    "seLinuxOptions": selinux_is_harmless,
    "appArmorProfile": apparmor_is_harmless,
    "runAsUser 0": lambda pod: security(pod).get("runAsUser") != 0,
}

# The same for a container, which may inherit from its pod
CONTAINER_CONTROLS = {
    "privileged": lambda pod, c: not security(c).get("privileged"),
    "allowPrivilegeEscalation": lambda pod, c: security(c).get("allowPrivilegeEscalation") is False,
    "capabilities.drop": lambda pod, c: "ALL" in security(c).get("capabilities", {}).get("drop", []),
    "capabilities.add": lambda pod, c: (
        set(security(c).get("capabilities", {}).get("add", [])) <= {"NET_BIND_SERVICE"}
    ),
    "runAsNonRoot": lambda pod, c: inherited(pod, c, "runAsNonRoot") is True,
    "runAsUser 0": lambda pod, c: security(c).get("runAsUser") != 0,
    "seccompProfile": lambda pod, c: (inherited(pod, c, "seccompProfile") or {}).get("type") in SECCOMP,
    "procMount": lambda pod, c: security(c).get("procMount", "Default") == "Default",
    "hostPort": lambda pod, c: not any(port.get("hostPort") for port in c.get("ports", [])),
    "seLinuxOptions": lambda pod, c: selinux_is_harmless(c),
    "appArmorProfile": lambda pod, c: apparmor_is_harmless(c),
}


def restricted_problems(pod):
    """Which controls of `restricted` the pod breaks, with the container's name."""
    found = [f"pod: {name}" for name, holds in POD_CONTROLS.items() if not holds(pod)]
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in pod.get(kind, []):
            found += [
                f"{container['name']}: {name}"
                for name, holds in CONTAINER_CONTROLS.items()
                if not holds(pod, container)
            ]
    return found


LEVELS = ("restricted", "baseline", "privileged")
BASELINE_CAPABILITIES = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
    *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}
RESTRICTED_ALONE = (
    *("allowPrivilegeEscalation", "capabilities.drop", "runAsNonRoot", "runAsUser 0"),
    *("volume type", "capabilities.add", "seccompProfile"),
)
"""Controls of `restricted` that `baseline` does not have, or has with more allowed."""


def baseline_problems(pod):
    found = [each for each in restricted_problems(pod) if not each.endswith(RESTRICTED_ALONE)]
    found += [f"volume {v['name']}: hostPath" for v in pod.get("volumes", []) if "hostPath" in v]
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        added = security(container).get("capabilities", {}).get("add", [])
        if not set(added) <= BASELINE_CAPABILITIES:
            found.append(f"{container['name']}: capabilities.add")
        if (inherited(pod, container, "seccompProfile") or {}).get("type") == "Unconfined":
            found.append(f"{container['name']}: seccompProfile")
    return found


def find_level(pod, annotations=None):
    """The strictest level that the pod passes, with the annotations by which AppArmor is set."""
    profiles = [value for name, value in (annotations or {}).items() if name.startswith(APPARMOR)]
    if not all(value in ("", "runtime/default") or value.startswith("localhost/") for value in profiles):
        return "privileged"
    if not restricted_problems(pod):
        return "restricted"
    return "privileged" if baseline_problems(pod) else "baseline"


def find_pods(node):
    """The spec of every pod template, wherever an object of any kind hides it."""
    if isinstance(node, list):
        for item in node:
            yield from find_pods(item)
    elif isinstance(node, dict):
        if isinstance(node.get("containers"), list):
            yield node
        else:
            for value in node.values():
                yield from find_pods(value)
