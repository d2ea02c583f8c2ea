"""The test that types the README's commands on a cluster knows each of them."""

from __future__ import annotations

from tests.cluster.readme.path import LAST, REPLACED, read_path


def test_the_path_is_the_readmes_from_the_operator_to_the_sweep() -> None:
    told = [step.told for step in read_path()]
    path = [
        "make setup",
        "kubectl apply -k manifests/overlays/kind",
        "stratlab check -n stratlab",
        "helm install ddp charts/ddp -n stratlab --values examples/digits.yaml --values examples/cpu.yaml",
        "stratlab watch ddp -n stratlab",
        "stratlab compare demo --on-cluster -n stratlab --output demo-report",
        "helm -n stratlab uninstall ddp fsdp",
        "stratlab list --on-cluster -n stratlab",
        "stratlab fetch demo/ddp -n stratlab",
        "stratlab remove demo/ddp --on-cluster -n stratlab",
        LAST,
    ]
    assert [command for command in told if command in path] == path
    assert set(REPLACED) <= set(told), "what is not told any more needs no replacement"
