{{/*
run.analysis: waits for the run's end, then analyses it, also one that failed.

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
backoffLimit: 2
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
        {{- include "run.analysis.container" . | nindent 8 }}
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
        {{- include "run.analysis.container" . | nindent 8 }}
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

{{/* run.analysis.container: of the lab image, all but name, command and mounts. */}}
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
{{- end }}
