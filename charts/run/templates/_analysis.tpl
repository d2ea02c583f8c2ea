{{/*
run.analysis: analyses the run when it has ended, also one that failed.

Plain Jobs, no Helm hook: a hook would block `helm install` until the training ends. The analysis is suspended, so that it
holds nothing of a quota, until the small Job beside it, the waiter, has seen the end of the run and starts it. Without
run.analysis.serviceAccount nothing could start it: then it waits in a container of its own, with all that it requests.

Names carry the hash of the spec, because the spec of a Job cannot change: `helm upgrade` makes a new one. With
run.analysis.shares it is an Indexed Job: each pod reads its share of the ranks, and the one that finds all shares there
brings them together (docs/analysis.md).
*/}}
{{- define "run.analysis" -}}
{{- $spec := include "run.analysis.spec" . -}}
{{- $shares := include "run.analysis.shares" . | int -}}
{{- $longest := ternary 45 41 (eq $shares 1) -}}{{/* host names of an Indexed Job's pods end in -0 to -999, in 63 characters */}}
{{- $name := printf "%s-analysis-%s" (include "run.name" . | trunc $longest) (include "run.analysis.hash" $spec) -}}
{{- if .Values.run.analysis.serviceAccount -}}
{{- if .Release.IsUpgrade -}}{{/* one that the waiter has started: helm 4 refuses to take the field back, helm 3 would stop it */}}
  {{- $found := lookup "batch/v1" "Job" .Release.Namespace $name -}}
  {{- if and $found (not (dig "spec" "suspend" false $found)) -}}
    {{- $spec = $spec | replace "suspend: true # the waiter ends that" "suspend: false" -}}
  {{- end -}}
{{- end -}}
{{ include "run.analysis.job" (dict "context" . "component" "analysis" "name" $name "spec" $spec) }}
---
{{ $spec = include "run.analysis.waiter" (dict "context" . "job" $name) -}}
{{- $name = printf "%s-waiter-%s" (include "run.name" . | trunc 47) (include "run.analysis.hash" $spec) -}}
{{ include "run.analysis.job" (dict "context" . "component" "waiter" "name" $name "spec" $spec "queue" .Values.run.analysis.queue) }}
{{- else -}}
{{ include "run.analysis.job" (dict "context" . "component" "analysis" "name" $name "spec" $spec "queue" .Values.run.analysis.queue) }}
{{- end }}
{{- end }}

{{- define "run.analysis.hash" -}}
{{- fromYaml . | toJson | sha256sum | trunc 8 -}}
{{- end }}

{{/* run.analysis.job: a Job with this `spec`. The waiter puts the analysis into its `queue`, which would start it at once. */}}
{{- define "run.analysis.job" -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .name | quote }}
  namespace: {{ .context.Release.Namespace | quote }}
  labels:
    {{- include "run.labels" (dict "context" .context "component" .component) | nindent 4 }}
    {{- with include "run.scheduling.label" (dict "queue" .queue "gang" "kueue") }}
    {{- . | nindent 4 }}
    {{- end }}
spec:
  {{- .spec | nindent 2 }}
{{- end }}

{{- define "run.analysis.spec" -}}
{{- $analysis := .Values.run.analysis -}}
{{- $deadlines := include "run.deadlines" . | fromYaml -}}
{{- $shares := include "run.analysis.shares" . | int -}}
{{- if gt $shares 1 -}}
completionMode: Indexed
completions: {{ $shares }}
parallelism: {{ $shares }}
backoffLimitPerIndex: 2
maxFailedIndexes: 0 # a share that is missing is missing for all
{{- else -}}
backoffLimit: 2
{{- end }}
{{- if $analysis.serviceAccount }}
suspend: true # the waiter ends that
activeDeadlineSeconds: {{ sub $deadlines.analysis $deadlines.waiter }} # from then on
{{- else }}
activeDeadlineSeconds: {{ int64 $deadlines.analysis }}
{{- end }}
ttlSecondsAfterFinished: {{ int $analysis.ttlSecondsAfterFinished }}
{{ include "run.analysis.failures" . }}
template:
  metadata:
    labels:
      {{- include "run.labels" (dict "context" . "component" "analysis") | nindent 6 }}
  spec:
    restartPolicy: Never
    automountServiceAccountToken: false
    {{- include "run.pod" . | nindent 4 }}
    {{- if not $analysis.serviceAccount }}
    initContainers:
      - {{- include "run.analysis.wait" (dict "context" .) | nindent 8 }}
    {{- end }}
    containers:
      - name: analyze
        command:
          - stratlab
          - analyze
          - {{ include "run.literal" (include "run.directory" .) | quote }}
          {{- if gt $shares 1 }}
          - --share
          - {{ printf "$(JOB_COMPLETION_INDEX)/%d" $shares | quote }}
          - --job
          - $(STRATLAB_JOB)
          {{- end }}
        {{- include "run.analysis.container" (dict "context" . "inJob" (gt $shares 1)) | nindent 8 }}
        volumeMounts:
          {{- include "run.mounts" . | nindent 10 }}
    volumes:
      {{- include "run.volumes" . | nindent 6 }}
{{- end }}

{{/* run.analysis.waiter: the spec of the Job that waits, in a pod that costs next to nothing, and then starts the `job`. */}}
{{- define "run.analysis.waiter" -}}
{{- $analysis := .context.Values.run.analysis -}}
backoffLimit: 2
activeDeadlineSeconds: {{ int64 (include "run.deadlines" .context | fromYaml).analysis }}
ttlSecondsAfterFinished: {{ int $analysis.ttlSecondsAfterFinished }}
{{ include "run.analysis.failures" .context }}
template:
  metadata:
    labels:
      {{- include "run.labels" (dict "context" .context "component" "analysis") | nindent 6 }}
  spec:
    restartPolicy: Never
    serviceAccountName: {{ $analysis.serviceAccount | quote }}
    automountServiceAccountToken: false
    {{- include "run.pod" .context | nindent 4 }}
    containers:
      - {{- include "run.analysis.wait" . | nindent 8 }}
    volumes:
      {{- include "run.volumes" .context | nindent 6 }}
      - name: token
        projected:
          sources:
            - serviceAccountToken:
                path: token
                expirationSeconds: 3600
            - configMap:
                name: kube-root-ca.crt
                items:
                  - key: ca.crt
                    path: ca.crt
            - downwardAPI:
                items:
                  - path: namespace
                    fieldRef:
                      fieldPath: metadata.namespace
{{- end }}

{{/* run.analysis.wait: the container that waits for the run; with a `job` it asks the API server, and starts that. */}}
{{- define "run.analysis.wait" -}}
{{- $run := .context.Values.run -}}
name: wait
command:
  - stratlab
  - wait
  - {{ include "run.literal" (include "run.directory" .context) | quote }}
  {{- if .job }}
  - --resource
  - {{ printf "%s/%s" $run.workload.api (include "run.name" .context) | quote }}
  - --namespace
  - {{ .context.Release.Namespace | quote }}
  - --then-start
  - {{ .job | quote }}
  {{- with $run.analysis.queue }}
  - --queue
  - {{ . | quote }}
  {{- end }}
  {{- end }}
  - --deadline-s
  - {{ include "run.scalar" (include "run.deadlines" .context | fromYaml).waiter | quote }}
{{ include "run.analysis.container" (dict "context" .context "key" "run.analysis.wait.resources" "resources" $run.analysis.wait.resources) }}
volumeMounts:
  {{- include "run.mounts" .context | nindent 2 }}
  {{- if .job }}
  - name: token # of the API server, for the waiter alone
    mountPath: /var/run/secrets/kubernetes.io/serviceaccount
    readOnly: true
  {{- end }}
{{- end }}

{{- define "run.analysis.failures" -}}
podFailurePolicy:
  rules:
    - action: FailJob # 2 bad arguments, 3 nothing to analyse, 13 storage full: the same again would fail again
      onExitCodes:
        operator: In
        values: [2, 3, 13]
    - action: Ignore # a drained node
      onPodConditions:
        - type: DisruptionTarget
          status: "True"
{{- end }}

{{/* run.analysis.container: of the lab image, all but name, command and mounts; `inJob`: it has to know which Job it belongs to; `resources` and
their `key` in the values, the analysis' own where it has none. */}}
{{- define "run.analysis.container" -}}
{{- $analysis := .context.Values.run.analysis -}}
{{- $key := .key | default "run.analysis.resources" -}}
image: {{ include "run.image" $analysis.image | quote }}
imagePullPolicy: {{ $analysis.image.pullPolicy | quote }}
env:
  - name: HOME
    value: /tmp
  - name: MPLCONFIGDIR
    value: /tmp/matplotlib
  {{- if .inJob }}
  - name: STRATLAB_JOB
    valueFrom:
      fieldRef:
        fieldPath: metadata.labels['batch.kubernetes.io/controller-uid']
  {{- end }}
  {{- with include "run.environment.mlflow" .context }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with include "run.certificates.environment" .context }}
  {{- . | nindent 2 }}
  {{- end }}
{{- with include "run.resources" (merge (dict "key" $key) (.resources | default $analysis.resources)) | trim }}
resources:
  {{- . | nindent 2 }}
{{- end }}
{{ include "run.container" .context }}
{{- end }}

{{/* run.analysis.shares: how many pods read the traces. */}}
{{- define "run.analysis.shares" -}}
{{- $run := .Values.run -}}
{{- $shares := int $run.analysis.shares -}}
{{- $ranks := mul $run.nodes $run.processesPerNode -}}
{{- if gt $shares (int $ranks) -}}
  {{- fail (printf "run.analysis.shares=%d: the run has %d ranks (run.nodes x run.processesPerNode), a share is one of them at least [SL-shares-over-ranks]" $shares $ranks) -}}
{{- end -}}
{{- $shares -}}
{{- end }}
