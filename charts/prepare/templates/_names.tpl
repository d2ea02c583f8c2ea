{{- define "prepare.name" -}}
{{- .Values.prepare.name | default (include "run.name" .) -}}
{{- end }}

{{/* prepare.kind: dataset, model or weights, whichever is given. A data set with a tokenizer gives a token cache. */}}
{{- define "prepare.kind" -}}
{{- $prepare := .Values.prepare -}}
{{- $given := list -}}
{{- range $name := list "dataset" "model" "weights" -}}
{{- if get $prepare $name -}}
{{- $given = append $given (printf "prepare.%s" $name) -}}
{{- end -}}
{{- end -}}
{{- if gt (len $given) 1 -}}
{{- fail (printf "%s: %s are set, use one release for each [SL-prepare-several]" (join ", " $given) (ternary "both" "all" (eq (len $given) 2))) -}}
{{- else if $prepare.dataset -}}
{{- if eq $prepare.dataset "digits" -}}
{{- fail "prepare.dataset=digits: is built into the trainer and needs no preparation [SL-prepare-built-in]" -}}
{{- end -}}
{{- if $prepare.tokenize -}}
{{- range $name := list "name" "revision" "subset" -}}
{{- with get $prepare $name -}}
{{- fail (printf "prepare.%s=%s: not with prepare.tokenize: its folder is named after its content [SL-prepare-tokens-named]" $name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
dataset
{{- else if or $prepare.model $prepare.weights -}}
{{- if and $prepare.weights $prepare.revision -}}
{{- fail (printf "prepare.revision=%s: torchvision's weights do not have revisions [SL-prepare-weights-revision]" $prepare.revision) -}}
{{- end -}}
{{- if $prepare.subset -}}
{{- fail (printf "prepare.subset=%s: only for a data set, not for a model [SL-prepare-model-subset]" $prepare.subset) -}}
{{- end -}}
{{- if $prepare.tokenize -}}
{{- fail (printf "prepare.tokenize=%s: needs prepare.dataset, the texts [SL-prepare-tokens-of-nothing]" $prepare.tokenize) -}}
{{- end -}}
{{ ternary "weights" "model" (ne $prepare.weights "") }}
{{- else -}}
{{- fail "prepare.dataset, prepare.model, prepare.weights: give one of them, such as --set prepare.dataset=microsoft/cats_vs_dogs [SL-prepare-nothing]" -}}
{{- end -}}
{{- end }}

{{/* prepare.tokens: the further arguments of a token cache. What run.config leaves out is the trainer's default. */}}
{{- define "prepare.tokens" -}}
{{- $config := .Values.run.config -}}
- {{ printf "--tokenize=%s" (include "run.literal" .Values.prepare.tokenize) | quote }}
{{- range $name := list "seq_len" "validation_fraction" "train_samples" "text_columns" "chat_roles" "long_documents" }}
{{- if and (hasKey $config $name) (not (kindIs "invalid" (get $config $name))) }}
- {{ printf "--%s=%s" (replace "_" "-" $name) (include "run.literal" (get $config $name)) | quote }}
{{- end }}
{{- end }}
{{- if hasKey $config "packing" }}
{{- if eq (include "run.scalar" $config.packing | lower) "false" }}
- --no-packing
{{- end }}
{{- end }}
{{- end }}

{{- define "prepare.directory" -}}
{{- printf "%s/_prepared/%s" .Values.run.results.mountPath (include "prepare.name" .) -}}
{{- end }}
