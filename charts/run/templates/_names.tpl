{{/*
run.name: the release. It names the custom resource, the run directory and the MLflow run.

Operators make Services and pods <name>-worker-<index>, Kubeflow Trainer v2 <name>-node-0-<index>-<5 characters>: DNS-1035
labels of 63 characters at most.
*/}}
{{- define "run.name" -}}
{{- $name := .Release.Name -}}
{{- $longest := ternary 46 52 (eq .Values.run.workload.api "trainjob") -}}
{{- if or (gt (len $name) $longest) (not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name)) -}}
{{- fail (printf "release name %q cannot name a %s: use a-z, 0-9 and -, start with a letter, end with no -, at most %d characters [SL-chart-release-name]" $name (include "run.workload.api" . | fromJson).kind $longest) -}}
{{- end -}}
{{- $name -}}
{{- end }}

{{/* run.labels.reserved: the names and beginnings of names of labels that the chart, Kubernetes or an operator sets. */}}
{{- define "run.labels.reserved" -}}
prefixes:
  - app.kubernetes.io/
  - batch.kubernetes.io/
  - training.kubeflow.org/
  - trainer.kubeflow.org/
  - jobset.sigs.k8s.io/
names:
  - job-name
  - controller-uid
  - kueue.x-k8s.io/queue-name
  - kueue.x-k8s.io/managed
  - kueue.x-k8s.io/pod-group-name
{{- end }}

{{/* run.labels: of a `component` of the run, the same on objects and pods. No chart version: a Job's pods cannot change. */}}
{{- define "run.labels" -}}
app.kubernetes.io/name: {{ .context.Chart.Name | quote }}
app.kubernetes.io/instance: {{ .context.Release.Name | quote }}
app.kubernetes.io/component: {{ .component | quote }}
app.kubernetes.io/part-of: stratlab
app.kubernetes.io/managed-by: {{ .context.Release.Service | quote }}
{{- $reserved := include "run.labels.reserved" . | fromYaml }}
{{- range $name, $value := .context.Values.run.pod.labels }}
{{- $taken := has $name $reserved.names }}
{{- range $reserved.prefixes }}
{{- $taken = or $taken (hasPrefix . $name) }}
{{- end }}
{{- if $taken }}
{{- fail (printf "run.pod.labels: %s is set by the chart, Kubernetes or an operator; Kueue's queue is run.scheduling.queue [SL-label-reserved]" $name) }}
{{- end }}
{{ $name | quote }}: {{ $value | quote }}
{{- end }}
{{- end }}

{{/* run.image: the reference of an image{repository, tag}. */}}
{{- define "run.image" -}}
{{- printf "%s:%s" .repository .tag -}}
{{- end }}

{{/* run.directory: <results>/<comparison>/<run>, as in docs/architecture.md. "default" is the default of stratlab_spec/settings/config.py. */}}
{{- define "run.directory" -}}
{{- $comparison := .Values.run.config.comparison | default "default" -}}
{{- printf "%s/%s/%s" .Values.run.results.mountPath $comparison (include "run.name" .) -}}
{{- end }}

{{/*
run.deadlines: seconds, each above the one before.

trainer   the trainer ends by itself, counted from its first start; 86400 is the default of stratlab_spec/settings/config.py
workload  the operator's, counted from the first look at the resource, so that waiting for nodes counts too.
          A backstop: the training operator v1.9 looks at the time only when something else happens
waiter    the analysis stops waiting
analysis  its Job ends: one hour to analyse after the last moment of waiting
*/}}
{{- define "run.deadlines" -}}
{{- $trainer := int64 (.Values.run.config.deadline_s | default 86400) -}}
{{- $workload := add $trainer (int64 .Values.run.scheduling.waitSeconds) 600 -}}
trainer: {{ $trainer }}
workload: {{ $workload }}
waiter: {{ add $workload 600 }}
analysis: {{ add $workload 600 3600 }}
{{- end }}
