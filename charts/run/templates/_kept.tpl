{{/*
run.kept: the workload as `rendered` for an upgrade, with the pods of the run that is there already. Its settings are equal
(run.workload.check.unchanged), so what differs is an image or the chart itself; operators would give it to pods that they
start anew, and to no others. run.scheduling.waitSeconds may change.
*/}}
{{- define "run.kept" -}}
{{- $namespace := .context.Release.Namespace -}}
{{- $wait := include "run.scalar" (int64 .context.Values.run.scheduling.waitSeconds) -}}
{{- $workload := .rendered | fromYaml -}}
{{- $kept := list -}}
{{- range $object := $workload.items | default (list $workload) -}}
  {{- $spec := dig "spec" dict (lookup $object.apiVersion $object.kind $namespace $object.metadata.name | default dict) -}}
  {{- if $spec -}}
    {{- if eq $object.kind "TrainingRuntime" -}}
      {{- $_ := set $object.spec "template" $spec.template -}}
      {{- range $spec.template.spec.replicatedJobs -}}
        {{- $kept = append $kept .template.spec.template -}}
      {{- end -}}
    {{- end -}}
    {{- range $field := list "pytorchReplicaSpecs" "mpiReplicaSpecs" -}}
      {{- range $role, $replica := get $object.spec $field | default dict -}}
        {{- with dig $field $role "template" dict $spec -}}
          {{- $_ := set $replica "template" . -}}
          {{- $kept = append $kept . -}}
        {{- end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- range $kept -}}
  {{- range (first .spec.containers).env -}}
    {{- if eq .name "TRAINER_WAIT_S" -}}
      {{- $_ := set . "value" $wait -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- toYaml $workload -}}
{{- end }}
