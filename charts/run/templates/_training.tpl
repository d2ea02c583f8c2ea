{{/*
run.training.pod: the one definition of a training pod, whatever API starts it. Given
context      the chart's context
name         of the container; the operators of PyTorchJob and TrainJob insist on theirs
command      list; none = `python -m trainer`
extra        further variables, as YAML: what an operator does not inject by itself
accelerated  whether it trains, with its accelerators and what run.pod says; false for the launcher of an MPIJob
token        whether the API server's token is there
restartPolicy  of the pod, where no operator sets it
*/}}
{{- define "run.training.pod" -}}
{{- $run := .context.Values.run -}}
{{- include "run.pod" .context }}
{{- with .restartPolicy }}
restartPolicy: {{ . }}
{{- end }}
{{- with $run.pod.serviceAccount }}
{{- if not $.token }}{{/* a launcher with a token has an account that its operator makes */}}
serviceAccountName: {{ . | quote }}
{{- end }}
{{- end }}
automountServiceAccountToken: {{ .token | default false }}
{{- with $run.scheduling.priorityClass }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $run.scheduling.nodeSelector }}
nodeSelector:
  {{- range $name, $value := . }}
  {{ $name | quote }}: {{ $value | quote }}
  {{- end }}
{{- end }}
{{- with $run.scheduling.tolerations }}
tolerations:
  {{- range $toleration := . }}
  -
    {{- range $field, $value := $toleration }}
    {{ $field }}: {{ toJson $value }}
    {{- end }}
  {{- end }}
{{- end }}
terminationGracePeriodSeconds: {{ int64 $run.graceSeconds }} # for a last checkpoint
{{- if .accelerated }}
{{- with include "run.cluster.pod" .context }}
{{ . | trim }}
{{- end }}
{{- end }}
containers:
  - name: {{ .name }}
    {{- include "run.training.container" . | nindent 4 }}
volumes:
  {{- include "run.volumes" .context | nindent 2 }}
  - name: shm # 64 MiB without it
    emptyDir:
      medium: Memory
      sizeLimit: {{ $run.sharedMemory.sizeLimit | quote }}
  {{- if .accelerated }}
  {{- with include "run.cluster.volumes" .context }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- end }}
{{- end }}

{{- define "run.training.container" -}}
{{- $run := .context.Values.run -}}
image: {{ include "run.image" $run.image | quote }}
imagePullPolicy: {{ $run.image.pullPolicy | quote }}
command:
  {{- range .command | default (list "python" "-m" "trainer") }}
  - {{ . | quote }}
  {{- end }}
env:
  {{- include "run.environment" .context | nindent 2 }}
  {{- with .extra }}
  {{- . | nindent 2 }}
  {{- end }}
{{- with include "run.training.resources" . }}
resources:
  {{- . | nindent 2 }}
{{- end }}
{{ include "run.container" .context }}
    {{- with include "run.cluster.capabilities" . }}
    add: {{ . }}
    {{- end }}
volumeMounts:
  {{- include "run.mounts" .context | nindent 2 }}
  - name: shm
    mountPath: /dev/shm
  {{- if .accelerated }}
  {{- with include "run.cluster.mounts" .context }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- end }}
{{- end }}

{{/*
run.training.each: what a pod requests with each of its processes where run.resources names neither. Without requests a pod
is BestEffort, however many accelerators it has: the first to be evicted, without a CPU of its own to feed them, and
refused under a quota. Small enough for the smallest machines with one accelerator (4 CPUs, 16 GiB).
*/}}
{{- define "run.training.each" -}}
{{- if .Values.run.accelerator }}
cpu: {amount: 2, unit: ""}
memory: {amount: 8, unit: Gi}
{{- else }}
cpu: {amount: 100, unit: m}
memory: {amount: 1, unit: Gi}
{{- end }}
{{- end }}

{{/* run.training.requests: run.resources.requests, and the defaults. A limit alone is a request too, by Kubernetes. */}}
{{- define "run.training.requests" -}}
{{- $run := .Values.run -}}
{{- $limits := $run.resources.limits | default dict -}}
{{- $requests := deepCopy ($run.resources.requests | default dict) -}}
{{- range $name, $each := include "run.training.each" . | fromYaml -}}
  {{- if not (or (hasKey $requests $name) (hasKey $limits $name)) -}}
    {{- $_ := set $requests $name (printf "%d%s" (mul (int64 $each.amount) (int64 $run.processesPerNode)) $each.unit) -}}
  {{- end -}}
{{- end -}}
{{- toYaml $requests -}}
{{- end }}

{{/* run.training.resources: run.resources, one accelerator for every process, and the network card; a launcher has its own. */}}
{{- define "run.training.resources" -}}
{{- $run := .context.Values.run -}}
{{- if not .accelerated -}}
{{- include "run.resources" (merge (dict "key" "run.workload.launcherResources") $run.workload.launcherResources) | trim -}}
{{- else -}}
{{- $limits := $run.resources.limits | default dict -}}
{{- $given := merge dict $limits ($run.resources.requests | default dict) -}}
{{- with $run.accelerator -}}
  {{- if hasKey $given . -}}
    {{- fail (printf "run.resources: %s is one per process by run.accelerator, leave it out or set run.accelerator=\"\" [SL-accelerator-twice]" .) -}}
  {{- end -}}
  {{- $limits = merge (dict . $run.processesPerNode) $limits -}}
{{- end -}}
{{- if $run.rdma.enabled -}}
  {{- if eq $run.rdma.resource $run.accelerator -}}
    {{- fail (printf "run.rdma.resource: %s is the accelerator's resource, name the network card's [SL-rdma-is-accelerator]" $run.rdma.resource) -}}
  {{- end -}}
  {{- if hasKey $given $run.rdma.resource -}}
    {{- fail (printf "run.resources: run.rdma already sets %s, leave it out here [SL-rdma-twice]" $run.rdma.resource) -}}
  {{- end -}}
  {{- $limits = merge (dict $run.rdma.resource $run.rdma.count) $limits -}}
{{- end -}}
{{- $requests := include "run.training.requests" .context | fromYaml -}}
{{- include "run.resources" (dict "key" "run.resources" "limits" $limits "requests" $requests) | trim -}}
{{- end -}}
{{- end }}

{{/* run.training.template: metadata and spec of a pod template, given the same as run.training.pod. */}}
{{- define "run.training.template" -}}
metadata:
  labels:
    {{- include "run.labels" (dict "context" .context "component" "training") | nindent 4 }}
  {{- if and .accelerated .context.Values.run.pod.annotations }}
  annotations:
    {{- range $name, $value := .context.Values.run.pod.annotations }}
    {{ $name | quote }}: {{ $value | quote }}
    {{- end }}
  {{- end }}
spec:
  {{- include "run.training.pod" . | nindent 2 }}
{{- end }}
