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
{{- if and $run.config.fault (not $run.allowFaults) -}}
{{- fail (printf "run.config.fault=%s: plants a fault in the run, which is allowed only with run.allowFaults=true [SL-chart-fault-not-allowed]" $run.config.fault) -}}
{{- end -}}
- name: TRAINER_RUN
  value: {{ include "run.name" . | quote }}
- name: TRAINER_RESULTS
  value: {{ include "run.literal" $run.results.mountPath | quote }}
- name: STRATLAB_NAMESPACE # of the commands that messages name
  value: {{ .Release.Namespace | quote }}
- name: STRATLAB_NODE # runs on one node at one time disturb each other
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- if $run.pod.hostNetwork }}
- name: HOSTNAME # else the node's: pods are told apart by it
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- end }}
- name: TRAINER_IMAGE
  value: {{ include "run.image" $run.image | quote }}
- name: TRAINER_WAIT_S
  value: {{ include "run.scalar" (int64 $run.scheduling.waitSeconds) | quote }}
- name: TRAINER_GRACE_S
  value: {{ include "run.scalar" (int64 $run.graceSeconds) | quote }}
{{- if $run.allowFaults }}
- name: TRAINER_ALLOW_FAULTS
  value: "true"
{{- end }}
- name: TRAINER_ACCELERATOR
  value: {{ include "run.literal" $run.accelerator | quote }}
{{- range $name, $value := $run.config }}
{{- if not (kindIs "invalid" $value) }}{{/* null = as if nobody had named it */}}
- name: TRAINER_{{ upper $name }}
  value: {{ include "run.literal" $value | quote }}
{{- end }}
{{- end }}
{{- with include "run.environment.mlflow" . }}
{{ . }}
{{- end }}
{{- with include "run.certificates.environment" . }}
{{ . }}
{{- end }}
{{- include "run.environment.env" . }}
{{- range $run.secrets }}
- name: {{ .name | quote }}
  valueFrom:
    secretKeyRef:
      name: {{ .secret | quote }}
      key: {{ .key | quote }}
{{- end }}
{{- end }}

{{- define "run.environment.mlflow" -}}
{{- $mlflow := .Values.run.mlflow -}}
{{- if $mlflow.trackingUri -}}
- name: MLFLOW_TRACKING_URI
  value: {{ include "run.literal" $mlflow.trackingUri | quote }}
{{- with $mlflow.existingSecret }}
- name: MLFLOW_TRACKING_USERNAME
  valueFrom:
    secretKeyRef:
      name: {{ . | quote }}
      key: username
- name: MLFLOW_TRACKING_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ . | quote }}
      key: password
{{- end }}
{{- else if $mlflow.existingSecret -}}
{{- fail "run.mlflow.existingSecret: there is no run.mlflow.trackingUri to use it for [SL-login-without-server]" -}}
{{- end -}}
{{- end }}

{{/* run.environment.env: folders that can be written, and a user's name, unless run.env says otherwise, then run.env. */}}
{{- define "run.environment.env" -}}
{{- $folders := dict
    "HOME" "/tmp"
    "HF_HOME" "/tmp/huggingface"
    "MPLCONFIGDIR" "/tmp/matplotlib"
    "TORCH_EXTENSIONS_DIR" "/tmp/torch_extensions"
    "TRITON_CACHE_DIR" "/tmp/triton"
-}}
{{- if ne (include "run.identity" .Values.run.pod.securityContext.runAsUser) "10001" -}}
  {{- $_ := set $folders "USER" "trainer" -}}{{/* the image knows no other user, and some libraries ask for a name */}}
{{- end -}}
{{- $given := dict -}}
{{- range .Values.run.env -}}
  {{- include "run.environment.check" (dict "list" "run.env" "name" .name "given" $given) -}}
  {{- $secrets := printf "name that in run.secrets: [{name: %s, secret: my-secret, key: my-key}]" .name -}}
  {{- include "run.environment.check.plain" (dict "list" "run.env" "name" .name "instead" $secrets) -}}
  {{- $_ := set $given .name true -}}
{{- end -}}
{{- range .Values.run.secrets -}}
  {{- include "run.environment.check" (dict "list" "run.secrets" "name" .name "given" $given) -}}
  {{- $_ := set $given .name true -}}
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

{{/* run.environment.check.plain: `name` of a `list` does not look like a secret's, whose value belongs elsewhere: `instead`. */}}
{{- define "run.environment.check.plain" -}}
{{- if regexMatch "(?i)(^|_)(TOKEN|PASSWORD|PASSWD|SECRET|CREDENTIALS?|(API|ACCESS|PRIVATE)?KEY)(_|$)" .name -}}
  {{- fail (printf "%s: %s looks like a secret, and values can be read by everyone who sees the release: put it into a Secret and %s [SL-secret-in-values]" .list .name .instead) -}}
{{- end -}}
{{- end }}

{{/* run.environment.check: `name` of a `list` is not one that the chart sets itself, nor one of `given`. */}}
{{- define "run.environment.check" -}}
{{- if hasPrefix "TRAINER_" .name -}}
  {{- fail (printf "%s: %s is a setting of the trainer, write run.config.%s [SL-env-setting]" .list .name (trimPrefix "TRAINER_" .name | lower)) -}}
{{- else if eq "MLFLOW_TRACKING_URI" .name -}}
  {{- fail (printf "%s: for MLFLOW_TRACKING_URI write run.mlflow.trackingUri, the analysis needs it too [SL-env-mlflow-address]" .list) -}}
{{- else if has .name (list "MLFLOW_TRACKING_USERNAME" "MLFLOW_TRACKING_PASSWORD") -}}
  {{- fail (printf "%s: for %s write run.mlflow.existingSecret, the analysis needs it too [SL-env-mlflow-login]" .list .name) -}}
{{- else if eq "STRATLAB_CA_FILE" .name -}}
  {{- fail (printf "%s: for %s write run.certificates, the analysis needs it too [SL-env-certificates]" .list .name) -}}
{{- else if has .name (include "run.environment.ranks" . | fromYamlArray) -}}
  {{- fail (printf "%s: %s follows from run.nodes, run.processesPerNode and run.workload [SL-env-ranks]" .list .name) -}}
{{- else if eq "HOSTNAME" .name -}}
  {{- fail (printf "%s: %s is the name of the pod [SL-env-hostname]" .list .name) -}}
{{- else if eq "STRATLAB_NAMESPACE" .name -}}
  {{- fail (printf "%s: %s is the namespace of the release [SL-env-namespace]" .list .name) -}}
{{- else if eq "STRATLAB_NODE" .name -}}
  {{- fail (printf "%s: %s is the node that the pod is on [SL-env-node]" .list .name) -}}
{{- else if hasKey .given .name -}}
  {{- fail (printf "%s: %s is repeated, keep one of them [SL-env-twice]" .list .name) -}}
{{- end -}}
{{- end }}

{{/* run.environment.ranks: who is which rank, and where they meet: said by operators, mpirun and the trainer's launcher. */}}
{{- define "run.environment.ranks" -}}
{{- range $name := list "RANK" "WORLD_SIZE" "LOCAL_RANK" "LOCAL_WORLD_SIZE" "GROUP_RANK" "GROUP_WORLD_SIZE" "NODE_RANK" "ROLE_NAME" "ROLE_RANK" "ROLE_WORLD_SIZE" "MASTER_ADDR" "MASTER_PORT" }}
- {{ $name }}
{{- end }}
{{- range $name := list "NNODES" "NPROC_PER_NODE" "NODE_RANK" "MAX_RESTARTS" "MASTER_ADDR" "MASTER_PORT" "RDZV_BACKEND" "RDZV_CONF" "RDZV_ENDPOINT" "RDZV_ID" "LOCAL_ADDR" "STANDALONE" "ROLE" "START_METHOD" "MODULE" "NO_PYTHON" "RUN_PATH" "SHUTDOWN_TIMEOUT" }}
- PET_{{ $name }}
{{- end }}
{{- end }}
