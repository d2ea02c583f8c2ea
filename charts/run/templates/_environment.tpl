{{/* run.scalar: any value as text. toJson, because Helm holds numbers as floats: 16777216 would print as 1.6777216e+07. */}}
{{- define "run.scalar" -}}
{{- kindIs "string" . | ternary . (toJson .) -}}
{{- end }}

{{/* run.literal: run.scalar for `env` and `command`, where Kubernetes replaces $(NAME) and $$. */}}
{{- define "run.literal" -}}
{{- include "run.scalar" . | replace "$" "$$" -}}
{{- end }}

{{/* run.environment: of the training container. Names are unique: the API server refuses a job that repeats one. */}}
{{- define "run.environment" -}}
{{- $run := .Values.run -}}
- name: TRAINER_RUN
  value: {{ include "run.name" . | quote }}
- name: TRAINER_RESULTS
  value: {{ include "run.literal" $run.results.mountPath | quote }}
- name: TRAINER_IMAGE
  value: {{ include "run.image" $run.image | quote }}
{{- range $name, $value := $run.config }}
- name: TRAINER_{{ upper $name }}
  value: {{ include "run.literal" $value | quote }}
{{- end }}
{{- with include "run.environment.mlflow" . }}
{{ . }}
{{- end }}
{{- include "run.environment.env" . }}
{{- end }}

{{- define "run.environment.mlflow" -}}
{{- with .Values.run.mlflow.trackingUri -}}
- name: MLFLOW_TRACKING_URI
  value: {{ include "run.literal" . | quote }}
{{- end }}
{{- end }}

{{/* run.environment.env: folders that can be written, unless run.env says otherwise, then run.env. */}}
{{- define "run.environment.env" -}}
{{- $folders := dict
    "HOME" "/tmp"
    "HF_HOME" "/tmp/huggingface"
    "MPLCONFIGDIR" "/tmp/matplotlib"
    "TORCH_EXTENSIONS_DIR" "/tmp/torch_extensions"
    "TRITON_CACHE_DIR" "/tmp/triton"
-}}
{{- $given := dict -}}
{{- range .Values.run.env -}}
  {{- if hasPrefix "TRAINER_" .name -}}
    {{- fail (printf "run.env: %s is a setting of the trainer, write run.config.%s" .name (trimPrefix "TRAINER_" .name | lower)) -}}
  {{- else if eq "MLFLOW_TRACKING_URI" .name -}}
    {{- fail "run.env: for MLFLOW_TRACKING_URI write run.mlflow.trackingUri, the analysis needs it too" -}}
  {{- else if hasKey $given .name -}}
    {{- fail (printf "run.env: %s is there twice" .name) -}}
  {{- end -}}
  {{- $_ := set $given .name .value -}}
{{- end -}}
{{- range $name, $value := $folders }}
{{- if not (hasKey $given $name) }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- range .Values.run.env }}
- name: {{ .name | quote }}
  value: {{ include "run.literal" .value | quote }}
{{- end }}
{{- end }}
