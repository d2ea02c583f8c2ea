{{- define "prepare.name" -}}
{{- .Values.prepare.name | default (include "run.name" .) -}}
{{- end }}

{{/* prepare.kind: dataset or model, whichever is given. */}}
{{- define "prepare.kind" -}}
{{- $prepare := .Values.prepare -}}
{{- if and $prepare.dataset $prepare.model -}}
{{- fail "prepare.dataset, prepare.model: both are given, use one release for each" -}}
{{- else if $prepare.dataset -}}
{{- if eq $prepare.dataset "digits" -}}
{{- fail "prepare.dataset=digits: is built into the trainer, there is nothing to prepare" -}}
{{- end -}}
dataset
{{- else if $prepare.model -}}
{{- if $prepare.subset -}}
{{- fail (printf "prepare.subset=%s: a model has none" $prepare.subset) -}}
{{- end -}}
model
{{- else -}}
{{- fail "prepare.dataset, prepare.model: give one of them, such as --set prepare.dataset=microsoft/cats_vs_dogs" -}}
{{- end -}}
{{- end }}

{{- define "prepare.directory" -}}
{{- printf "%s/_prepared/%s" .Values.run.results.mountPath (include "prepare.name" .) -}}
{{- end }}
