{{/*
run.trainjob: Kubeflow Trainer v2. The TrainJob names a TrainingRuntime of this release, because a TrainJob alone cannot
say security contexts or how often a pod is started anew. Facts of v2.2:

- Its webhook refuses a TrainJob whose runtime is not there. Helm sorts what it does not know by kind, the TrainJob first;
  of a List it keeps the order, and creates one kind after the other.
- The trainer's container is called `node`, in a job `node` whose label says that it is the trainer's.
- The torch policy gives the pods a static rendezvous; its environment comes after the rendered one.
- podFailurePolicy is what ExitCode is to a PyTorchJob: these codes of the trainer end the job, any other gets a new pod.
  The trainer counts its starts; backoffLimit only has to be larger.
*/}}
{{- define "run.trainjob" -}}
apiVersion: v1
kind: List
items:
  -
    {{- include "run.trainjob.runtime" . | nindent 4 }}
  -
    {{- include "run.trainjob.job" . | nindent 4 }}
{{- end }}

{{- define "run.trainjob.job" -}}
{{- $run := .Values.run -}}
{{ include "run.workload.head" . }}
spec:
  activeDeadlineSeconds: {{ (include "run.deadlines" . | fromYaml).workload | int64 }}
  {{- with include "run.workload.suspend" . }}
  {{- . | nindent 2 }}
  {{- end }}
  runtimeRef:
    apiGroup: trainer.kubeflow.org
    kind: TrainingRuntime
    name: {{ include "run.name" . | quote }}
  trainer:
    numNodes: {{ int $run.nodes }}
    numProcPerNode: {{ int $run.processesPerNode }}
{{- end }}

{{- define "run.trainjob.runtime" -}}
{{- $run := .Values.run -}}
{{- $attempts := int64 ($run.config.max_attempts | default 3) -}}
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata:
  name: {{ include "run.name" . | quote }}
  namespace: {{ .Release.Namespace | quote }}
  labels:
    {{- include "run.labels" (dict "context" . "component" "training") | nindent 4 }}
    trainer.kubeflow.org/framework: torch
spec:
  mlPolicy:
    numNodes: {{ int $run.nodes }}
    torch: {}
  {{- with include "run.trainjob.gang" . }}
  {{- . | nindent 2 }}
  {{- end }}
  template:
    {{- if and $run.scheduling.queue (eq $run.scheduling.gang "volcano") }}
    metadata:
      annotations:
        scheduling.volcano.sh/queue-name: {{ $run.scheduling.queue | quote }}
    {{- end }}
    spec:
      replicatedJobs:
        - name: node
          template:
            metadata:
              labels:
                trainer.kubeflow.org/trainjob-ancestor-step: trainer
            spec:
              backoffLimit: {{ mul $attempts (int $run.nodes) 2 }}
              podFailurePolicy:
                rules:
                  - action: FailJob
                    onExitCodes:
                      containerName: node
                      operator: In
                      values: [1, 2, 3, 4, 10, 12, 13, 14, 15]
                  - action: Ignore # told to stop, behind a checkpoint: no failure, however often a node is drained
                    onExitCodes:
                      containerName: node
                      operator: In
                      values: [143]
                  - action: Ignore
                    onPodConditions:
                      - type: DisruptionTarget
                        status: "True"
              template:
                {{- include "run.training.template" (dict "context" . "name" "node" "accelerated" true "restartPolicy" "Never") | nindent 16 }}
{{- end }}

{{- define "run.trainjob.gang" -}}
{{- if eq .Values.run.scheduling.gang "volcano" -}}
podGroupPolicy:
  volcano: {}
{{- else if eq .Values.run.scheduling.gang "scheduler-plugins" -}}
podGroupPolicy:
  coscheduling: {}
{{- end -}}
{{- end }}
