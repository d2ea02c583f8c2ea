{{/*
run.cluster.*: what run.pod adds to the pods that train. Free texts are quoted: JSON, as of affinity, whose texts all have
patterns, leaves control characters as they are, which YAML does not know.
*/}}

{{/* run.cluster.pod: of the pod's spec. */}}
{{- define "run.cluster.pod" -}}
{{- $pod := .Values.run.pod -}}
{{- with $pod.runtimeClass }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- if $pod.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet # without it the pods do not find each other
{{- end }}
{{- if $pod.hostIPC }}
hostIPC: true
{{- end }}
{{- with $pod.affinity }}
affinity: {{ include "run.cluster.affinity" $ }}
{{- end }}
{{- with $pod.topologySpread }}
topologySpreadConstraints:
  {{- $spread := list }}
  {{- range . }}
  {{- $pair := printf "%s, %s" .topologyKey .whenUnsatisfiable }}
  {{- if has $pair $spread }}
  {{- fail (printf "run.pod.topologySpread: %s is repeated: one entry for a topologyKey with the same whenUnsatisfiable [SL-spread-twice]" $pair) }}
  {{- end }}
  {{- $spread = append $spread $pair }}
  - {{ merge (dict "labelSelector" (include "run.cluster.own" $ | fromYaml)) . | toJson }}
  {{- end }}
{{- end }}
{{- with $pod.initContainers }}
initContainers:
  {{- range . }}
  - {{- include "run.cluster.initContainer" (dict "context" $ "given" .) | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}

{{/* run.cluster.own: the selector of the run's training pods. */}}
{{- define "run.cluster.own" -}}
matchLabels:
  app.kubernetes.io/instance: {{ .Release.Name | quote }}
  app.kubernetes.io/component: training
{{- end }}

{{/* run.cluster.affinity: as JSON; a term without a selector gets that of the run's own pods. */}}
{{- define "run.cluster.affinity" -}}
{{- $affinity := deepCopy .Values.run.pod.affinity -}}
{{- $own := include "run.cluster.own" . | fromYaml -}}
{{- range $kind := list "podAffinity" "podAntiAffinity" -}}
  {{- $terms := get $affinity $kind | default dict -}}
  {{- range $terms.requiredDuringSchedulingIgnoredDuringExecution -}}
    {{- if not .labelSelector }}{{ $_ := set . "labelSelector" $own }}{{ end -}}
  {{- end -}}
  {{- range $terms.preferredDuringSchedulingIgnoredDuringExecution -}}
    {{- if not .podAffinityTerm.labelSelector }}{{ $_ := set .podAffinityTerm "labelSelector" $own }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- toJson $affinity -}}
{{- end }}

{{- define "run.cluster.initContainer" -}}
{{- $given := .given -}}
name: {{ $given.name | quote }}
image: {{ $given.image | quote }}
imagePullPolicy: {{ $given.pullPolicy | default "IfNotPresent" }}
command:
  {{- range $given.command }}
  - {{ include "run.literal" . | quote }}
  {{- end }}
{{- with $given.env }}
env:
  {{- range . }}
  - name: {{ .name | quote }}
    value: {{ include "run.literal" .value | quote }}
  {{- end }}
{{- end }}
{{- $limits := dig "resources" "limits" dict $given | default dict -}}
{{- $requests := deepCopy (dig "resources" "requests" dict $given | default dict) -}}
{{- range $name, $amount := dict "cpu" "100m" "memory" "128Mi" -}}
  {{- if not (or (hasKey $requests $name) (hasKey $limits $name)) -}}
    {{- $_ := set $requests $name $amount -}}
  {{- end -}}
{{- end }}
resources:
  {{- include "run.resources" (dict "key" (printf "run.pod.initContainers: %s: resources" $given.name) "requests" $requests "limits" $limits) | trim | nindent 2 }}
{{ include "run.container" .context }}
volumeMounts:
  {{- include "run.mounts" .context | nindent 2 }}
  {{- with include "run.cluster.mounts" .context }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "run.cluster.volumes" -}}
{{- range .Values.run.pod.volumes }}
- name: {{ .name | quote }}
  {{- range $source, $fields := omit . "name" "mountPath" "subPath" "readOnly" }}
  {{ $source }}:
    {{- range $field, $value := $fields }}
    {{- if kindIs "map" $value }}
    {{ $field }}:
      {{- range $name, $text := $value }}
      {{ $name | quote }}: {{ $text | quote }}
      {{- end }}
    {{- else }}
    {{ $field }}: {{ kindIs "bool" $value | ternary $value (quote $value) }}
    {{- end }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "run.cluster.mounts" -}}
{{- range .Values.run.pod.volumes }}
- name: {{ .name | quote }}
  mountPath: {{ .mountPath | quote }}
  {{- with .subPath }}
  subPath: {{ . | quote }}
  {{- end }}
  {{- if .readOnly }}
  readOnly: true
  {{- end }}
{{- end }}
{{- end }}

{{/* run.cluster.capabilities: that a training container gets, given the same as run.training.pod; none for a launcher. */}}
{{- define "run.cluster.capabilities" -}}
{{- $run := .context.Values.run -}}
{{- if .accelerated -}}
{{- $add := $run.pod.securityContext.capabilities | default list -}}
{{- if and $run.rdma.enabled $run.rdma.lockMemory -}}
  {{- $add = append $add "IPC_LOCK" | uniq -}}{{/* to pin memory for the network card */}}
{{- end -}}
{{- with $add }}{{ toJson . }}{{ end -}}
{{- end -}}
{{- end }}
