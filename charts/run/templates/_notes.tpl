{{/* run.notes: what to type next. The only template that a strategy chart's NOTES.txt includes. */}}
{{- define "run.notes" -}}
{{- $_ := set .Values.run.workload "api" (include "run.workload.chosen" .) -}}
{{- $run := .Values.run -}}
{{- $name := include "run.name" . -}}
{{- $namespace := .Release.Namespace -}}
{{- $directory := include "run.directory" . -}}
{{- $api := include "run.workload.api" . | fromJson -}}
{{- $kubectl := printf "kubectl -n %s" $namespace -}}
{{- $resource := printf "%s/%s" (lower $api.kind) $name -}}
Run {{ $name }}: {{ .Chart.Name }} on {{ $run.nodes }} x {{ $run.processesPerNode }} processes ({{ $api.kind }}).
{{ include "run.notes.resources" . }}
{{- if not (include "run.checks" .) }}
{{ include "run.notes.grace" . }}
{{- end }}
{{- with include "run.notes.warnings" . }}
{{ . }}
{{- end }}

{{- if and $run.accelerator (not (include "run.checks" .)) }}

Will it fit its GPUs?     stratlab predict CHART, with the values of this release; run.config.memory_forecast=false starts in spite of it
{{- end }}

Now:
  stratlab watch {{ $name }} --namespace {{ $namespace }}
  stratlab logs {{ $name }} --namespace {{ $namespace }}
or without stratlab:
  {{ $kubectl }} get {{ $resource }} --watch
  {{ $kubectl }} logs {{ include "run.notes.pod" . }} --follow
  {{ $kubectl }} describe {{ $resource }}     where no pod comes
{{- with ternary "" $run.mlflow.trackingUri (eq (include "run.checks" .) "true") }}

Metrics: {{ . }}, experiment {{ $run.config.comparison | default "default" }}, run {{ $name }}
{{- if regexMatch "^http://[a-z0-9-]+:[0-9]+/?$" . }}
{{- $service := regexSplit "[:/]+" . -1 }}
  {{ $kubectl }} port-forward service/{{ index $service 1 }} 5000:{{ index $service 2 }}     then http://localhost:5000
{{- end }}
{{- end }}

When it has ended:
{{- if include "run.checks" . }}
  {{ $kubectl }} logs {{ include "run.notes.pod" . }}     has the table, also as {{ $run.results.mountPath }}/_environment/{{ $name }}.json on the claim {{ $run.results.claim }}
  helm -n {{ $namespace }} uninstall {{ $name }}
{{- else }}
{{- if $run.analysis.enabled }}
  the report is {{ $directory }}/analysis/report.html on the claim {{ $run.results.claim }}
  {{- if $run.mlflow.trackingUri }}, and an artifact of the run in MLflow{{ end }}
{{- end }}
  helm -n {{ $namespace }} test {{ $name }}     is it FINISHED, is everything there? If not: {{ $kubectl }} logs {{ $name }}-test
  stratlab compare {{ base (dir $directory) }} --on-cluster --namespace {{ $namespace }}     with the other runs
  helm -n {{ $namespace }} uninstall {{ $name }}     {{ $directory }} stays, and the run in MLflow; pods and their logs go
{{- end }}
{{- end }}

{{/* run.notes.resources: what a pod reserves on its node, as it is rendered. */}}
{{- define "run.notes.resources" -}}
{{- $run := .Values.run -}}
{{- $resources := include "run.training.resources" (dict "context" . "accelerated" true) | fromYaml -}}
{{- $limits := $resources.limits | default dict -}}
{{- $parts := list -}}
{{- range $name := list "cpu" "memory" -}}
  {{- $parts = append $parts (printf "%s %s" $name (get ($resources.requests | default dict) $name | default (get $limits $name))) -}}
{{- end -}}
{{- with $run.accelerator -}}
  {{- $parts = append $parts (printf "%s %s" . (get $limits .)) -}}
{{- end -}}
Each pod requests {{ join ", " $parts }}; run.resources.requests sets cpu and memory of a pod.
{{- end }}

{{/* run.notes.pod: whose log is that of rank 0, as an argument of kubectl. */}}
{{- define "run.notes.pod" -}}
{{- $name := include "run.name" . -}}
{{- $pods := dict
    "pytorchjob" (printf "pod/%s-%s-0" $name (ternary "worker" "master" (eq .Values.run.workload.topology "worker-only")))
    "mpijob-v1" (printf "pod/%s-launcher" $name)
    "mpijob-v2beta1" (printf "job/%s-launcher" $name)
    "trainjob" (printf "job/%s-node-0" $name)
-}}
{{- get $pods .Values.run.workload.api -}}
{{- end }}

{{- define "run.notes.grace" -}}
A stop (suspend, eviction, uninstall) leaves its pods {{ int64 .Values.run.graceSeconds }} s for a last checkpoint; where checkpoints take longer, the
run's log says what to set in run.graceSeconds.
{{- end }}

{{- define "run.notes.warnings" -}}
{{- $run := .Values.run -}}
{{- if $run.suspend }}
Suspended: there are no pods until `helm upgrade {{ .Release.Name }} CHART --reuse-values --set run.suspend=false`.
{{- end }}
{{- range $key, $level := include "run.security.needs" . | fromYaml }}
{{ $key }} needs a namespace with Pod Security `{{ $level }}`.
{{- end }}
{{- end }}
