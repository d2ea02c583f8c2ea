{{/*
run.pod: what all pods of a run share. Pod Security `restricted`, unless run.podSecurity allows more (_security.tpl).

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
{{- $security := .Values.run.pod.securityContext }}
securityContext:
  runAsNonRoot: {{ ne (include "run.identity" $security.runAsUser) "0" }}
  {{- range $name := list "runAsUser" "runAsGroup" "fsGroup" }}
  {{- with include "run.identity" (get $security $name) }}{{/* "" = the cluster chooses */}}
  {{ $name }}: {{ . }}
  {{- end }}
  {{- end }}
  fsGroupChangePolicy: OnRootMismatch
  {{- with $security.supplementalGroups }}
  supplementalGroups: {{ toJson . }}
  {{- end }}
  {{- with $security.seLinuxType }}
  seLinuxOptions:
    type: {{ . | quote }}
  {{- end }}
  seccompProfile:
    type: {{ $security.seccompProfile }}
{{- end }}

{{/* run.identity: the number of a user or a group as text, "" where the cluster chooses: -0.0 is a whole number too, and root. */}}
{{- define "run.identity" -}}
{{- if not (kindIs "string" .) }}{{ int64 . }}{{ end -}}
{{- end }}

{{- define "run.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: {{ .Values.run.pod.securityContext.readOnlyRootFilesystem }}
  capabilities:
    drop: [ALL]
{{- end }}

{{/* run.volumes, run.mounts: the results, and /tmp because the root file system is read-only. */}}
{{- define "run.volumes" -}}
- name: results
  persistentVolumeClaim:
    claimName: {{ .Values.run.results.claim | quote }}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.run.tmp.sizeLimit | quote }}
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
