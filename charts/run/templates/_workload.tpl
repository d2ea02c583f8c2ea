{{/*
run.workload: the training, as the custom resource of run.workload.api; and what all of these APIs have in common.
*/}}
{{- define "run.workload" -}}
{{- $workload := .Values.run.workload -}}
{{- if and (ne $workload.topology "worker-only") (ne $workload.api "pytorchjob") -}}
{{- fail (printf "run.workload.topology=%s: only a pytorchjob has a master, run.workload.api is %s [SL-topology-needs-pytorchjob]" $workload.topology $workload.api) -}}
{{- end -}}
{{- include "run.scheduling.check" . -}}
{{- include "run.workload.check.served" . -}}
{{- include "run.workload.check.unchanged" . -}}
{{- $templates := dict "pytorchjob" "run.pytorchjob" "mpijob-v1" "run.mpijob.v1" "mpijob-v2beta1" "run.mpijob.v2beta1" -}}
{{- $rendered := include (get $templates $workload.api | default "run.trainjob") . -}}
{{- if .Release.IsUpgrade -}}
{{- $rendered = include "run.kept" (dict "context" . "rendered" $rendered) -}}
{{- end -}}
{{ $rendered }}
{{- end }}

{{/* run.workload.apis: by the value of run.workload.api: version, kind, and how its operator is installed. */}}
{{- define "run.workload.apis" -}}
pytorchjob:
  version: kubeflow.org/v1
  kind: PyTorchJob
  install: 'the Kubeflow training operator v1.9: kubectl apply --server-side -k "github.com/kubeflow/trainer.git/manifests/overlays/standalone?ref=v1.9.4"'
mpijob-v1:
  version: kubeflow.org/v1
  kind: MPIJob
  install: 'the Kubeflow training operator v1.9: kubectl apply --server-side -k "github.com/kubeflow/trainer.git/manifests/overlays/standalone?ref=v1.9.4" (not beside the MPI operator: both own mpijobs.kubeflow.org)'
mpijob-v2beta1:
  version: kubeflow.org/v2beta1
  kind: MPIJob
  install: 'the MPI operator: kubectl apply --server-side -k "github.com/kubeflow/mpi-operator.git/manifests/overlays/standalone?ref=v0.8.0" (not beside the MPIJob of the training operator v1.9: both own mpijobs.kubeflow.org)'
trainjob:
  version: trainer.kubeflow.org/v1alpha1
  kind: TrainJob
  install: 'Kubeflow Trainer v2: kubectl apply --server-side -k "github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v2.2.0"'
{{- end }}

{{/*
run.workload.chosen: run.workload.api. Instead of `auto`: of a release that is upgraded the API of its run, whatever has
been installed since; else the first that the cluster serves; without a cluster to ask, and for a master, pytorchjob.
*/}}
{{- define "run.workload.chosen" -}}
{{- $chosen := list -}}
{{- if ne .Values.run.workload.api "auto" -}}
  {{- $chosen = list .Values.run.workload.api -}}
{{- else if eq .Values.run.workload.topology "worker-only" -}}
  {{- $apis := include "run.workload.apis" . | fromYaml -}}
  {{- $served := list -}}
  {{- range $name := list "pytorchjob" "trainjob" "mpijob-v2beta1" "mpijob-v1" -}}
    {{- $api := get $apis $name -}}
    {{- if $.Capabilities.APIVersions.Has (printf "%s/%s" $api.version $api.kind) -}}
      {{- $served = append $served $name -}}
    {{- end -}}
  {{- end -}}
  {{- if .Release.IsUpgrade -}}
    {{- range $name := $served -}}
      {{- $api := get $apis $name -}}
      {{- if lookup $api.version $api.kind $.Release.Namespace $.Release.Name }}{{ $chosen = append $chosen $name }}{{ end -}}
    {{- end -}}
  {{- end -}}
  {{- $chosen = concat $chosen $served -}}
{{- end -}}
{{- append $chosen "pytorchjob" | first -}}
{{- end }}

{{- define "run.workload.api" -}}
{{- get (include "run.workload.apis" . | fromYaml) .Values.run.workload.api | toJson -}}
{{- end }}

{{/* run.workload.head: the custom resource down to its metadata. The annotations tell `stratlab` where the results are. */}}
{{- define "run.workload.head" -}}
{{- $run := .Values.run -}}
{{- $api := include "run.workload.api" . | fromJson -}}
apiVersion: {{ $api.version }}
kind: {{ $api.kind }}
metadata:
  name: {{ include "run.name" . | quote }}
  namespace: {{ .Release.Namespace | quote }}
  labels:
    {{- include "run.labels" (dict "context" . "component" "training") | nindent 4 }}
    {{- with include "run.scheduling.label" (dict "queue" $run.scheduling.queue "gang" $run.scheduling.gang) }}
    {{- . | nindent 4 }}
    {{- end }}
  annotations:
    {{- if not (include "run.checks" .) }}
    stratlab/run-directory: {{ include "run.directory" . | quote }}
    {{- end }}
    stratlab/results-claim: {{ $run.results.claim | quote }}
    stratlab/results-mount: {{ $run.results.mountPath | quote }}
    stratlab/lab-image: {{ include "run.image" $run.analysis.image | quote }}
    stratlab/tracking-uri: {{ $run.mlflow.trackingUri | quote }}
    {{- with include "run.certificates" . }}
    stratlab/certificates: {{ . | quote }}
    {{- end }}
    stratlab/processes: {{ mul (int $run.nodes) (int $run.processesPerNode) | quote }}
    stratlab/settings-sha256: {{ include "run.workload.settings" . | quote }}
{{- end }}

{{/*
run.workload.settings: hash of the values that a run may not change. Images are no settings: who upgrades to another tag
keeps the pods that there are (_kept.tpl). A chart that brings new values has another hash. A value that is empty counts like one that is not there.
*/}}
{{- define "run.workload.settings" -}}
{{- $run := deepCopy .Values.run -}}
{{- $_ := set $run "scheduling" (omit $run.scheduling "waitSeconds") -}}
{{- $config := dict -}}
{{- range $name, $value := $run.config -}}
  {{- if not (kindIs "invalid" $value) -}}
    {{- $_ := set $config $name (include "run.scalar" $value) -}}
  {{- end -}}
{{- end -}}
{{- $_ := set $run "config" $config -}}
{{- $settings := dict -}}
{{- range $name, $value := omit $run "global" "image" "analysis" "suspend" "podSecurity" -}}
  {{- if $value -}}
    {{- $_ := set $settings $name $value -}}
  {{- end -}}
{{- end -}}
{{- $settings | toJson | sha256sum -}}
{{- end }}

{{/* run.workload.suspend: as a line of the resource's policy; left out unless it is wanted, because Kueue and people set it too. */}}
{{- define "run.workload.suspend" -}}
{{- if .Values.run.suspend -}}
suspend: true
{{- end -}}
{{- end }}

{{/*
run.workload.check.served: the cluster knows the chosen API. Every API server has apiregistration.k8s.io, and Helm's
own list for `helm template` does not: without it there is no cluster to ask.
*/}}
{{- define "run.workload.check.served" -}}
{{- $known := .Capabilities.APIVersions -}}
{{- $api := include "run.workload.api" . | fromJson -}}
{{- if and ($known.Has "apiregistration.k8s.io/v1") (not ($known.Has (printf "%s/%s" $api.version $api.kind))) -}}
{{- fail (printf "run.workload.api=%s: this cluster has no %s %s [SL-chart-api-not-served]. Install %s" .Values.run.workload.api $api.version $api.kind $api.install) -}}
{{- end -}}
{{- end }}

{{/*
run.workload.check.unchanged: `helm upgrade` leaves the settings of a run alone: the operators would take half of a
change, and another API would start the run once more.
*/}}
{{- define "run.workload.check.unchanged" -}}
{{- if .Release.IsUpgrade -}}
{{- $settings := include "run.workload.settings" . -}}
{{- range $value, $api := include "run.workload.apis" . | fromYaml -}}
{{- if $.Capabilities.APIVersions.Has (printf "%s/%s" $api.version $api.kind) -}}
{{- $found := lookup $api.version $api.kind $.Release.Namespace (include "run.name" $) -}}
{{- if and $found (ne $settings (dig "metadata" "annotations" "stratlab/settings-sha256" "" $found)) -}}
{{- fail (printf "release %s: the settings of a run cannot change, and these differ from its %s. Install another release for other settings; an upgrade with --reuse-values may change run.suspend, run.analysis, run.scheduling.waitSeconds, run.podSecurity and run.image (pods keep their image) [SL-settings-changed]" $.Release.Name $api.kind) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
