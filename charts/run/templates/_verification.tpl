{{/*
run.verification: `helm test` checks what is left of the run: FINISHED in MLflow, the report beside it. No part of the run.

`helm uninstall` leaves pods of hooks behind: one that succeeded goes by itself, one that failed stays for its log.
*/}}
{{- define "run.verification" -}}
apiVersion: v1
kind: Pod
metadata:
  name: {{ printf "%s-test" (include "run.name" .) | quote }}
  namespace: {{ .Release.Namespace | quote }}
  labels:
    {{- include "run.labels" (dict "context" . "component" "test") | nindent 4 }}
  annotations:
    helm.sh/hook: test
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  {{- include "run.pod" . | nindent 2 }}
  containers:
    - name: verify
      command:
        - stratlab
        - verify
        - {{ include "run.literal" (include "run.directory" .) | quote }}
        {{- if not .Values.run.analysis.enabled }}
        - --no-report
        {{- end }}
      {{- include "run.analysis.container" (dict "context" .) | nindent 6 }}
      volumeMounts:
        {{- include "run.mounts" . | nindent 8 }}
  volumes:
    {{- include "run.volumes" . | nindent 4 }}
{{- end }}
