"""The log of one rank of a run on the cluster: from its pod, or from the results volume."""
