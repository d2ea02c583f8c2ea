{{/* run.scheduling.label: the label by which Kueue takes an object into a `queue`, where it is the `gang` scheduler. */}}
{{- define "run.scheduling.label" -}}
{{- if and .queue (eq .gang "kueue") -}}
kueue.x-k8s.io/queue-name: {{ .queue | quote }}
{{- end -}}
{{- end }}

{{- define "run.scheduling.check" -}}
{{- $scheduling := .Values.run.scheduling -}}
{{- if and $scheduling.queue (not (has $scheduling.gang (list "kueue" "volcano"))) -}}
{{- fail (printf "run.scheduling.queue=%s: needs run.scheduling.gang=kueue or volcano, it is %s [SL-queue-without-gang]" $scheduling.queue $scheduling.gang) -}}
{{- end -}}
{{- end }}

{{/* run.scheduling.policy: of a kubeflow.org runPolicy. The operator itself must be started with --gang-scheduler-name. */}}
{{- define "run.scheduling.policy" -}}
{{- $scheduling := .context.Values.run.scheduling -}}
{{- if has $scheduling.gang (list "volcano" "scheduler-plugins") -}}
schedulingPolicy:
  minAvailable: {{ .pods }}
  {{- if $scheduling.queue }}
  queue: {{ $scheduling.queue | quote }}
  {{- end }}
  {{- with $scheduling.priorityClass }}
  priorityClass: {{ . | quote }}
  {{- end }}
{{- end -}}
{{- end }}
