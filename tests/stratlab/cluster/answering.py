"""A connection whose API server answers what it was given: for whoever only reads."""

from stratlab.cluster import ClusterError
from tests.stratlab.cluster.fake_api import matches


class Answering:
    """Has `things`: path -> object, list, or the status of its refusal."""

    def __init__(self, **things):
        self.things = things
        self.client = None
        self.namespace = "lab"
        self.core, self.jobs = "/api/v1/namespaces/lab", "/apis/batch/v1/namespaces/lab/jobs"

    def get(self, path, query=None):
        thing = self.things.get(path, 404)
        if isinstance(thing, int):
            raise ClusterError("said no", thing)
        if isinstance(thing, list):
            return {"items": [each for each in thing if matches(each, query or {})]}
        return dict(thing)
