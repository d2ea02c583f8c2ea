{{/* run.notes: what to type next. The only template that a strategy chart's NOTES.txt includes. */}}
{{- define "run.notes" -}}
{{- $run := .Values.run -}}
{{- $name := include "run.name" . -}}
{{- $namespace := .Release.Namespace -}}
Run {{ $name }}: {{ .Chart.Name }} on {{ $run.nodes }} x {{ $run.processesPerNode }} processes.

  watch     kubectl -n {{ $namespace }} get pytorchjob {{ $name }} --watch
  log       kubectl -n {{ $namespace }} logs {{ $name }}-worker-0 --follow
  events    kubectl -n {{ $namespace }} describe pytorchjob {{ $name }}
  remove    helm -n {{ $namespace }} uninstall {{ $name }}

Results: {{ include "run.directory" . }} on the claim {{ $run.results.claim }}. They stay when the run is removed.
{{- if $run.analysis.enabled }}
Analysis: {{ include "run.directory" . }}/analysis/report.html, when the run has ended.
{{- end }}
{{- with $run.mlflow.trackingUri }}
Metrics: {{ . }}
{{- end }}
{{- end }}
