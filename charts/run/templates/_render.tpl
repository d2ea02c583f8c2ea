{{/*
run.render: all objects of a run, the only template that a strategy chart's run.yaml includes.

Every string is quoted, nothing goes through `tpl` or a shell: a hostile value stays a string.
*/}}
{{- define "run.render" -}}
{{- $_ := set .Values.run.workload "api" (include "run.workload.chosen" .) -}}
{{- include "run.security.check" . -}}
{{ include "run.workload" . }}
{{- if not (include "run.checks" .) }}
{{- if .Values.run.analysis.enabled }}
---
{{ include "run.analysis" . }}
{{- end }}
---
{{ include "run.verification" . }}
{{- end }}
{{- end }}

{{/* run.checks: "true" where the pods only look at what a run would find there (run.config.mode=check): it has no run directory. */}}
{{- define "run.checks" -}}
{{- ternary "true" "" (eq (.Values.run.config.mode | default "train") "check") -}}
{{- end }}
