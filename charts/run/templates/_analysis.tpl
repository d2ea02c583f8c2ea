{{/*
run.analysis: waits for the run's end, then analyses it, also one that failed.

A plain Job, no Helm hook: a hook would block `helm install` until the training ends. Its name carries the hash of its
spec, because the spec of a Job cannot change: `helm upgrade` makes a new one. With run.analysis.shares it is an Indexed Job:
each pod reads its share of the ranks, and the one that finds all shares there brings them together (docs/analysis.md).
*/}}
{{- define "run.analysis" -}}
{{- $spec := include "run.analysis.spec" . -}}
{{- $shares := include "run.analysis.shares" . | int -}}
{{- $longest := ternary 45 41 (eq $shares 1) -}}{{/* host names of an Indexed Job's pods end in -0 to -999, in 63 characters */}}
{{- $hash := $spec | fromYaml | toJson | sha256sum | trunc 8 -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ printf "%s-analysis-%s" (include "run.name" . | trunc $longest) $hash | quote }}
  namespace: {{ .Release.Namespace | quote }}
  labels:
    {{- include "run.labels" (dict "context" . "component" "analysis") | nindent 4 }}
    {{- with include "run.scheduling.label" (dict "queue" .Values.run.analysis.queue "gang" "kueue") }}
    {{- . | nindent 4 }}
    {{- end }}
spec:
  {{- $spec | nindent 2 }}
{{- end }}

{{- define "run.analysis.spec" -}}
{{- $run := .Values.run -}}
{{- $analysis := $run.analysis -}}
{{- $directory := include "run.directory" . -}}
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
activeDeadlineSeconds: {{ int64 $deadlines.analysis }}
ttlSecondsAfterFinished: {{ int $analysis.ttlSecondsAfterFinished }}
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
template:
  metadata:
    labels:
      {{- include "run.labels" (dict "context" . "component" "analysis") | nindent 6 }}
  spec:
    restartPolicy: Never
    {{- with $analysis.serviceAccount }}
    serviceAccountName: {{ . | quote }}
    {{- end }}
    automountServiceAccountToken: false
    {{- include "run.pod" . | nindent 4 }}
    initContainers:
      - name: wait
        command:
          - stratlab
          - wait
          - {{ include "run.literal" $directory | quote }}
          {{- if $analysis.serviceAccount }}
          - --resource
          - {{ printf "%s/%s" $run.workload.api (include "run.name" .) | quote }}
          - --namespace
          - {{ .Release.Namespace | quote }}
          {{- end }}
          - --deadline-s
          - {{ include "run.scalar" $deadlines.waiter | quote }}
        {{- include "run.analysis.container" (dict "context" .) | nindent 8 }}
        volumeMounts:
          {{- include "run.mounts" . | nindent 10 }}
          {{- if $analysis.serviceAccount }}
          - name: token # of the API server, for the waiter alone
            mountPath: /var/run/secrets/kubernetes.io/serviceaccount
            readOnly: true
          {{- end }}
    containers:
      - name: analyze
        command:
          - stratlab
          - analyze
          - {{ include "run.literal" $directory | quote }}
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
      {{- if $analysis.serviceAccount }}
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
{{- end }}

{{/* run.analysis.container: of the lab image, all but name, command and mounts; `inJob`: it has to know which Job it belongs to. */}}
{{- define "run.analysis.container" -}}
{{- $analysis := .context.Values.run.analysis -}}
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
{{- with include "run.resources" (merge (dict "key" "run.analysis.resources") $analysis.resources) | trim }}
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
  {{- fail (printf "run.analysis.shares=%d: the run has %d ranks (run.nodes x run.processesPerNode), a share is one of them at least" $shares $ranks) -}}
{{- end -}}
{{- $shares -}}
{{- end }}
