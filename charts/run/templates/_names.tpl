{{/*
run.name: the release. It names the PyTorchJob, the run directory and the MLflow run.

The operator makes Services <name>-worker-<index>: DNS-1035 labels of 63 characters at most.
*/}}
{{- define "run.name" -}}
{{- $name := .Release.Name -}}
{{- if or (gt (len $name) 52) (not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name)) -}}
{{- fail (printf "release name %q cannot name a PyTorchJob: use a-z, 0-9 and -, start with a letter, end with no -, at most 52 characters" $name) -}}
{{- end -}}
{{- $name -}}
{{- end }}

{{/* run.labels: of a `component` of the run, the same on objects and pods. No chart version: a Job's pods cannot change. */}}
{{- define "run.labels" -}}
app.kubernetes.io/name: {{ .context.Chart.Name | quote }}
app.kubernetes.io/instance: {{ .context.Release.Name | quote }}
app.kubernetes.io/component: {{ .component | quote }}
app.kubernetes.io/part-of: stratlab
app.kubernetes.io/managed-by: {{ .context.Release.Service | quote }}
{{- end }}

{{/* run.image: the reference of an image{repository, tag}. */}}
{{- define "run.image" -}}
{{- printf "%s:%s" .repository .tag -}}
{{- end }}

{{/* run.directory: <results>/<comparison>/<run>, as in docs/architecture.md. "default" is the default of trainer/config.py. */}}
{{- define "run.directory" -}}
{{- $comparison := .Values.run.config.comparison | default "default" -}}
{{- printf "%s/%s/%s" .Values.run.results.mountPath $comparison (include "run.name" .) -}}
{{- end }}
