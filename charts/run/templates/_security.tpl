{{/*
run.security.needs: the values that leave Pod Security `restricted`, as YAML: what is said about each -> the level that allows it.
https://kubernetes.io/docs/concepts/security/pod-security-standards/
*/}}
{{- define "run.security.needs" -}}
{{- $run := .Values.run -}}
{{- $security := $run.pod.securityContext -}}
{{- $needs := dict -}}
{{- range $key := list "hostNetwork" "hostIPC" -}}
  {{- if get $run.pod $key }}{{ $_ := set $needs (printf "run.pod.%s=true" $key) "privileged" }}{{ end -}}
{{- end -}}
{{- if and $run.rdma.enabled $run.rdma.lockMemory -}}
  {{- $_ := set $needs "run.rdma.lockMemory=true (the capability IPC_LOCK)" "privileged" -}}
{{- end -}}
{{- range $run.pod.volumes -}}
  {{- if .hostPath }}{{ $_ := set $needs (printf "run.pod.volumes: %s (hostPath %s)" .name .hostPath.path) "privileged" }}{{ end -}}
{{- end -}}
{{- range $security.capabilities -}}
  {{- if has . (list "AUDIT_WRITE" "CHOWN" "DAC_OVERRIDE" "FOWNER" "FSETID" "KILL" "MKNOD" "SETFCAP" "SETGID" "SETPCAP" "SETUID" "SYS_CHROOT") -}}
    {{- $_ := set $needs (printf "run.pod.securityContext.capabilities: %s" .) "baseline" -}}
  {{- else if ne . "NET_BIND_SERVICE" -}}
    {{- $_ := set $needs (printf "run.pod.securityContext.capabilities: %s" .) "privileged" -}}
  {{- end -}}
{{- end -}}
{{- if eq (include "run.identity" $security.runAsUser) "0" -}}
  {{- $_ := set $needs "run.pod.securityContext.runAsUser=0" "baseline" -}}
{{- end -}}
{{- if eq $security.seccompProfile "Unconfined" -}}
  {{- $_ := set $needs "run.pod.securityContext.seccompProfile=Unconfined" "privileged" -}}
{{- end -}}
{{- if not (has $security.seLinuxType (list "" "container_t" "container_init_t" "container_kvm_t" "container_engine_t")) -}}
  {{- $_ := set $needs (printf "run.pod.securityContext.seLinuxType=%s" $security.seLinuxType) "privileged" -}}
{{- end -}}
{{- range $name, $profile := $run.pod.annotations -}}
  {{- if and (hasPrefix "container.apparmor.security.beta.kubernetes.io/" $name) (not (or (has $profile (list "" "runtime/default")) (hasPrefix "localhost/" $profile))) -}}
    {{- $_ := set $needs (printf "run.pod.annotations: %s=%s (not runtime/default or localhost/*)" $name $profile) "privileged" -}}
  {{- end -}}
{{- end -}}
{{- $added := "its operator adds an init container without a security context" -}}
{{- if eq $run.workload.api "mpijob-v1" -}}
  {{- $_ := set $needs (printf "run.workload.api=mpijob-v1 (%s)" $added) "baseline" -}}
{{- else if and (eq $run.workload.api "pytorchjob") (eq $run.workload.topology "master-worker") -}}
  {{- $_ := set $needs (printf "run.workload.topology=master-worker (%s)" $added) "baseline" -}}
{{- end -}}
{{- toYaml $needs -}}
{{- end }}

{{/*
run.security.check: refuses by name what the namespace would refuse, as far as run.podSecurity says what it allows: the API
server takes a run whose pods it refuses, and only events say why no pod comes.
*/}}
{{- define "run.security.check" -}}
{{- $run := .Values.run -}}
{{- $ranks := dict "restricted" 0 "baseline" 1 "privileged" 2 -}}
{{- $level := $run.podSecurity.level -}}
{{- $highest := $level -}}
{{- $beyond := list -}}
{{- range $key, $needed := include "run.security.needs" . | fromYaml -}}
  {{- if gt (get $ranks $needed | int) (get $ranks $level | int) -}}
    {{- $beyond = append $beyond (printf "%s needs `%s`" $key $needed) -}}
    {{- if gt (get $ranks $needed | int) (get $ranks $highest | int) }}{{ $highest = $needed }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- with $beyond -}}
{{- fail (printf "%s; run.podSecurity.level is %s. Leave it out, or set run.podSecurity.level=%s if the namespace allows it [SL-security-level]" (join "; " .) $level $highest) -}}
{{- end -}}
{{- include "run.security.check.volumes" . -}}
{{- include "run.security.check.containers" . -}}
{{- end }}

{{- define "run.security.check.volumes" -}}
{{- $run := .Values.run -}}
{{- $names := list "results" "tmp" "shm" "token" "ssh-auth" "mpi-job-config" "mpi-job-kubectl" -}}{{/* the last three: of operators */}}
{{- $own := list (trimSuffix "/" $run.results.mountPath) "/tmp" "/dev/shm" -}}
{{- $paths := $own -}}
{{- $claims := list $run.results.claim -}}
{{- range $volume := $run.pod.volumes -}}
  {{- $path := trimSuffix "/" $volume.mountPath -}}
  {{- if has $volume.name $names -}}
    {{- fail (printf "run.pod.volumes: %s is repeated, or a volume of the chart's own (results, tmp, shm, token) or an operator's (ssh-auth, mpi-job-config, mpi-job-kubectl) [SL-volume-name-taken]" $volume.name) -}}
  {{- else if has $path $paths -}}
    {{- fail (printf "run.pod.volumes: %s is mounted at %s, where another volume is [SL-mount-path-taken]" $volume.name $path) -}}
  {{- end -}}
  {{- range $folder := $own -}}
    {{- if and (ne $folder "/tmp") (hasPrefix (printf "%s/" $folder) $path) -}}{{/* a run's results would lie in it, and go with the pod; below /tmp caches may */}}
      {{- fail (printf "run.pod.volumes: %s is mounted at %s, below %s, which is the pods' own; mount it elsewhere, as at /mnt/%s [SL-mount-below-own]" $volume.name $path $folder $volume.name) -}}
    {{- else if hasPrefix (printf "%s/" $path) $folder -}}
      {{- fail (printf "run.pod.volumes: %s is mounted at %s, above %s, which is the pods' own; mount it elsewhere [SL-mount-above-own]" $volume.name $path $folder) -}}
    {{- end -}}
  {{- end -}}
  {{- with $volume.persistentVolumeClaim -}}
    {{- if has .claimName $claims -}}{{/* seen on a cluster: scheduled, and then no start and no event */}}
      {{- fail (printf "run.pod.volumes: %s is the claim %s, which the pods have already; a pod with one claim in two volumes never starts [SL-claim-twice]" $volume.name .claimName) -}}
    {{- end -}}
    {{- $claims = append $claims .claimName -}}
  {{- end -}}
  {{- $names = append $names $volume.name -}}
  {{- $paths = append $paths $path -}}
  {{- with $volume.hostPath -}}
    {{- if not $volume.readOnly -}}
      {{- fail (printf "run.pod.volumes: %s is a folder of the node, %s, which may only be read: readOnly must be true [SL-host-path-writable]" $volume.name .path) -}}
    {{- end -}}
    {{- $listed := false -}}
    {{- range $allowed := $run.podSecurity.hostPaths -}}
      {{- $allowed = trimSuffix "/" $allowed -}}
      {{- if or (eq $allowed (trimSuffix "/" $volume.hostPath.path)) (hasPrefix (printf "%s/" $allowed) $volume.hostPath.path) }}{{ $listed = true }}{{ end -}}
    {{- end -}}
    {{- if not $listed -}}
      {{- fail (printf "run.pod.volumes: %s is the folder %s of the node, which run.podSecurity.hostPaths does not list [SL-host-path-unlisted]" $volume.name .path) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end }}

{{- define "run.security.check.containers" -}}
{{- $names := list "pytorch" "node" "init-pytorch" "kubectl-delivery" -}}
{{- range .Values.run.pod.initContainers -}}
  {{- if has .name $names -}}
    {{- fail (printf "run.pod.initContainers: %s is repeated, or a container of the chart's or an operator's own [SL-init-container-twice]" .name) -}}
  {{- end -}}
  {{- if not .command -}}
    {{- fail (printf "run.pod.initContainers: %s has no command [SL-init-without-command]" .name) -}}
  {{- end -}}
  {{- $list := printf "run.pod.initContainers: %s: env" .name -}}
  {{- $given := list -}}
  {{- range .env -}}
    {{- if has .name $given -}}
      {{- fail (printf "%s: %s is repeated, keep one of them [SL-init-env-twice]" $list .name) -}}
    {{- end -}}
    {{- include "run.environment.check.plain" (dict "list" $list "name" .name "instead" "mount that by run.pod.volumes, which init containers see") -}}
    {{- $given = append $given .name -}}
  {{- end -}}
  {{- $names = append $names .name -}}
{{- end -}}
{{- $user := include "run.identity" .Values.run.pod.securityContext.runAsUser -}}
{{- if and (eq .Values.run.workload.api "mpijob-v2beta1") (ne $user "10001") -}}
{{- fail (printf "run.pod.securityContext.runAsUser=%s: sshd of an mpijob-v2beta1 only knows the image's user 10001 [SL-sshd-user]" $user) -}}
{{- end -}}
{{- end }}
