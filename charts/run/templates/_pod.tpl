{{/*
run.pod: what all pods of a run share. Pod Security `restricted`, unless run.podSecurity allows more (_security.tpl).

Service links would put TRAINER_WORKER_0_PORT and the like into a pod beside a release `trainer`: an unknown setting.
*/}}
{{- define "run.pod" -}}
enableServiceLinks: false
{{- with .Values.run.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- $security := .Values.run.pod.securityContext }}
securityContext:
  runAsNonRoot: {{ ne (include "run.identity" $security.runAsUser) "0" }}
  {{- range $name := list "runAsUser" "runAsGroup" "fsGroup" }}
  {{- with include "run.identity" (get $security $name) }}{{/* "" = the cluster chooses */}}
  {{ $name }}: {{ . }}
  {{- end }}
  {{- end }}
  fsGroupChangePolicy: OnRootMismatch
  {{- with $security.supplementalGroups }}
  supplementalGroups: {{ toJson . }}
  {{- end }}
  {{- with $security.seLinuxType }}
  seLinuxOptions:
    type: {{ . | quote }}
  {{- end }}
  seccompProfile:
    type: {{ $security.seccompProfile }}
{{- end }}

{{/* run.identity: the number of a user or a group as text, "" where the cluster chooses: -0.0 is a whole number too, and root. */}}
{{- define "run.identity" -}}
{{- if not (kindIs "string" .) }}{{ int64 . }}{{ end -}}
{{- end }}

{{- define "run.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: {{ .Values.run.pod.securityContext.readOnlyRootFilesystem }}
  capabilities:
    drop: [ALL]
{{- end }}

{{/*
run.certificates: of an authority of one's own, which programs trust beside those they know (STRATLAB_CA_FILE). A projected
volume, which a rehearsal leaves out.
*/}}
{{- define "run.certificates" -}}
{{- $given := .Values.run.certificates -}}
{{- if and $given.configMap $given.secret -}}
  {{- fail (printf "run.certificates: configMap=%s and secret=%s: name one of them [SL-certificates-two-places]" $given.configMap $given.secret) -}}
{{- end -}}
{{- with $given.configMap }}configMap/{{ . }}/{{ $given.key }}{{ end -}}
{{- with $given.secret }}secret/{{ . }}/{{ $given.key }}{{ end -}}
{{- end }}

{{- define "run.certificates.volume" -}}
{{- with include "run.certificates" . -}}
{{- $parts := splitList "/" . }}
- name: certificates
  projected:
    sources:
      - {{ index $parts 0 }}:
          name: {{ index $parts 1 | quote }}
          items:
            - key: {{ index $parts 2 | quote }}
              path: ca.crt
{{- end }}
{{- end }}

{{- define "run.certificates.mount" -}}
{{- if include "run.certificates" . }}
- name: certificates
  mountPath: /etc/stratlab/certificates
  readOnly: true
{{- end }}
{{- end }}

{{- define "run.certificates.environment" -}}
{{- if include "run.certificates" . -}}
- name: STRATLAB_CA_FILE
  value: /etc/stratlab/certificates/ca.crt
{{- end -}}
{{- end }}

{{/* run.volumes, run.mounts: the results, and /tmp because the root file system is read-only; the certificates. */}}
{{- define "run.volumes" -}}
- name: results
  persistentVolumeClaim:
    claimName: {{ .Values.run.results.claim | quote }}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.run.tmp.sizeLimit | quote }}
{{- include "run.certificates.volume" . }}
{{- end }}

{{- define "run.mounts" -}}
- name: results
  mountPath: {{ .Values.run.results.mountPath | quote }}
- name: tmp
  mountPath: /tmp
{{- include "run.certificates.mount" . }}
{{- end }}

{{/* run.resources: limits and requests that the values say below `key`, every amount as text. */}}
{{- define "run.resources" -}}
{{- $limits := .limits | default dict -}}
{{- $requests := .requests | default dict -}}
{{- range $name, $amount := $requests -}}
  {{- if and (hasKey $limits $name) (gt (include "run.amount" $amount | float64) (include "run.amount" (get $limits $name) | float64)) -}}
    {{- fail (printf "%s: requests.%s=%s is above limits.%s=%s: a request must not be above its limit [SL-request-over-limit]" $.key $name (include "run.scalar" $amount) $name (include "run.scalar" (get $limits $name))) -}}
  {{- end -}}
{{- end -}}
{{- range $kind, $amounts := dict "limits" $limits "requests" $requests }}
{{- if $amounts }}
{{ $kind }}:
  {{- range $name, $amount := $amounts }}
  {{ $name | quote }}: {{ include "run.scalar" $amount | quote }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* run.amount: a quantity of Kubernetes as a number: 500m is 0.5, 1Ki is 1024. */}}
{{- define "run.amount" -}}
{{- $text := include "run.scalar" . -}}
{{- $suffix := regexFind "[A-Za-z]+$" $text -}}
{{- $units := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18
    "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- mulf (trimSuffix $suffix $text | float64) (get $units $suffix) -}}
{{- end }}
