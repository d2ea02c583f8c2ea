{{/*
run.pod: what all pods of a run share. Pod Security `restricted`.

Service links would put TRAINER_WORKER_0_PORT and the like into a pod beside a release `trainer`: an unknown setting.
*/}}
{{- define "run.pod" -}}
enableServiceLinks: false
{{- with .Values.run.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "run.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* run.volumes, run.mounts: the results, and /tmp because the root file system is read-only. */}}
{{- define "run.volumes" -}}
- name: results
  persistentVolumeClaim:
    claimName: {{ .Values.run.results.claim | quote }}
- name: tmp
  emptyDir: {}
{{- end }}

{{- define "run.mounts" -}}
- name: results
  mountPath: {{ .Values.run.results.mountPath | quote }}
- name: tmp
  mountPath: /tmp
{{- end }}

{{/* run.resources: limits and requests, every amount as text. */}}
{{- define "run.resources" -}}
{{- range $kind, $amounts := . }}
{{- if $amounts }}
{{ $kind }}:
  {{- range $name, $amount := $amounts }}
  {{ $name | quote }}: {{ include "run.scalar" $amount | quote }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}
