{{/*
run.pytorchjob: facts of the training operator v1.9:

- Workers only, with an elasticPolicy: a Master makes the operator inject an init container that Pod Security
  `restricted` refuses; without elasticPolicy workers get no rendezvous and hang. min = max: nothing is elastic.
- restartPolicy ExitCode: exit codes below 128 end the job, the others get new pods. maxRestarts 0: not in the pod too.
- No backoffLimit: it does not bound ExitCode, and reaching it deletes the pods and their logs. The trainer counts.
- nprocPerNode left out means as many processes as the node has CPUs.
- cleanPodPolicy None keeps the pods, and so their logs.
- read_timeout: after the loss of a pod the others wait so many seconds for its ghost, 60 without it.
*/}}
{{- define "run.pytorchjob" -}}
{{- $run := .Values.run -}}
{{- $nodes := int $run.nodes -}}
{{- $template := include "run.training.template" (dict "context" . "name" "pytorch" "accelerated" true) -}}
{{- $workers := eq $run.workload.topology "worker-only" -}}
{{ include "run.workload.head" . }}
spec:
  nprocPerNode: {{ include "run.scalar" $run.processesPerNode | quote }}
  runPolicy:
    cleanPodPolicy: None
    activeDeadlineSeconds: {{ (include "run.deadlines" . | fromYaml).workload | int64 }}
    {{- with include "run.workload.suspend" . }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with include "run.scheduling.policy" (dict "context" . "pods" $nodes) }}
    {{- . | nindent 4 }}
    {{- end }}
  {{- if $workers }}
  elasticPolicy:
    rdzvBackend: c10d
    rdzvId: {{ include "run.name" . | quote }}
    rdzvConf:
      - key: read_timeout
        value: "15"
    minReplicas: {{ $nodes }}
    maxReplicas: {{ $nodes }}
    maxRestarts: 0
  {{- end }}
  pytorchReplicaSpecs:
    {{- if not $workers }}
    Master:
      replicas: 1
      restartPolicy: ExitCode
      template:
        {{- $template | nindent 8 }}
    {{- end }}
    {{- with ternary $nodes (sub $nodes 1) $workers }}
    Worker:
      replicas: {{ . }}
      restartPolicy: ExitCode
      template:
        {{- $template | nindent 8 }}
    {{- end }}
{{- end }}
