{{/*
run.analysis: waits for the run's files, then analyses them, also those of a failed run.

A plain Job, no Helm hook: a hook would block `helm install` until the training ends. Its name carries the hash of its
spec, because the spec of a Job cannot change: `helm upgrade` makes a new one.
*/}}
{{- define "run.analysis" -}}
{{- $spec := include "run.analysis.spec" . -}}
{{- $hash := $spec | fromYaml | toJson | sha256sum | trunc 8 -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ printf "%s-analysis-%s" (include "run.name" . | trunc 45) $hash | quote }}
  namespace: {{ .Release.Namespace | quote }}
  labels:
    {{- include "run.labels" (dict "context" . "component" "analysis") | nindent 4 }}
spec:
  {{- $spec | nindent 2 }}
{{- end }}

{{- define "run.analysis.spec" -}}
{{- $run := .Values.run -}}
{{- $analysis := $run.analysis -}}
{{- $directory := include "run.directory" . -}}
backoffLimit: 2
activeDeadlineSeconds: {{ add (int $analysis.deadlineSeconds) 3600 }} # one hour to analyse after the last moment of waiting
ttlSecondsAfterFinished: {{ int $analysis.ttlSecondsAfterFinished }}
podFailurePolicy:
  rules:
    - action: FailJob # 2 bad arguments, 3 nothing to analyse: the same again would fail again
      onExitCodes:
        operator: In
        values: [2, 3]
    - action: Ignore # a drained node
      onPodConditions:
        - type: DisruptionTarget
          status: "True"
template:
  metadata:
    labels:
      {{- include "run.labels" (dict "context" . "component" "analysis") | nindent 6 }}
  spec:
    restartPolicy: Never
    {{- include "run.pod" . | nindent 4 }}
    initContainers:
      - name: wait
        command:
          - stratlab
          - wait
          - {{ include "run.literal" $directory | quote }}
          - --deadline-s
          - {{ include "run.scalar" $analysis.deadlineSeconds | quote }}
        {{- include "run.analysis.container" . | nindent 8 }}
    containers:
      - name: analyze
        command:
          - stratlab
          - analyze
          - {{ include "run.literal" $directory | quote }}
        {{- include "run.analysis.container" . | nindent 8 }}
    volumes:
      {{- include "run.volumes" . | nindent 6 }}
{{- end }}

{{- define "run.analysis.container" -}}
{{- $analysis := .Values.run.analysis -}}
image: {{ include "run.image" $analysis.image | quote }}
imagePullPolicy: {{ $analysis.image.pullPolicy | quote }}
env:
  - name: HOME
    value: /tmp
  - name: MPLCONFIGDIR
    value: /tmp/matplotlib
  {{- with include "run.environment.mlflow" . }}
  {{- . | nindent 2 }}
  {{- end }}
{{- with include "run.resources" $analysis.resources | trim }}
resources:
  {{- . | nindent 2 }}
{{- end }}
{{ include "run.container" . }}
volumeMounts:
  {{- include "run.mounts" . | nindent 2 }}
{{- end }}
