{{/*
run.mpijob.v1, run.mpijob.v2beta1: a launcher that starts `python -m trainer` in every worker pod with mpirun.

- cleanPodPolicy Running: the workers would wait for ever, with their accelerators. The launcher's log stays.
- slotsPerWorker 1: mpirun starts one trainer per pod, that starts a process per accelerator.
- v1: its operator starts a failed launcher never again, and calls the job Failed. restartPolicy Never says so; with
  ExitCode the conditions contradict each other.
- A worker that is told to go, as from a node that is drained, stays until its trainer has saved and ended, and ends well
  then: v1 calls the job Failed when a worker has failed; so it gets a successor, and the launcher tries again. Past the
  deadline a worker fails.
- v1 reaches the workers by `kubectl exec`: the launcher needs the token of its ServiceAccount, which the operator makes.
- v2beta1: the launcher is a Job that cannot tell permanent failures from others, so backoffLimit bounds both.
- The operators give the variables of torch's rendezvous to a PyTorchJob only.
*/}}
{{- define "run.mpijob.v1" -}}
{{- $extra := include "run.mpijob.environment" . -}}
{{- $launcher := dict "context" . "name" "pytorch" "extra" $extra "command" (list "python" "-m" "trainer.mpi_launcher") -}}
{{- $deadline := include "run.scalar" (include "run.deadlines" . | fromYaml).workload -}}
{{- $wait := list "python" "-m" "trainer.program" "worker_pod" $deadline -}}
{{ include "run.workload.head" . }}
spec:
  slotsPerWorker: 1
  runPolicy:
    {{- include "run.mpijob.policy" . | nindent 4 }}
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      restartPolicy: Never
      template:
        {{- include "run.training.template" (set $launcher "token" true) | nindent 8 }}
    Worker:
      replicas: {{ int .Values.run.nodes }}
      restartPolicy: Never
      template:
        {{- include "run.training.template" (dict "context" . "name" "pytorch" "extra" $extra "command" $wait "accelerated" true) | nindent 8 }}
{{- end }}

{{- define "run.mpijob.v2beta1" -}}
{{- $extra := include "run.mpijob.environment" . -}}
{{- $launcher := dict "context" . "name" "pytorch" "extra" $extra "command" (list "python" "-m" "trainer.mpi_launcher") -}}
{{- $attempts := int64 (.Values.run.config.max_attempts | default 3) -}}
{{- /* What ssh starts does not see the container's environment. The first SetEnv counts alone: with what the image's sshd_config sets. */ -}}
{{- $deadline := include "run.scalar" (include "run.deadlines" . | fromYaml).workload -}}
{{- $sshd := list "python" "-m" "trainer.program" "worker_pod" $deadline "/usr/sbin/sshd" "-De" "-o" "SetEnv=PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin HOME=/tmp STRATLAB_NODE=$(STRATLAB_NODE)" -}}
{{ include "run.workload.head" . }}
spec:
  slotsPerWorker: 1
  mpiImplementation: OpenMPI
  launcherCreationPolicy: WaitForWorkersReady
  sshAuthMountPath: /home/mpiuser/.ssh
  runPolicy:
    backoffLimit: {{ sub $attempts 1 }}
    {{- include "run.mpijob.policy" . | nindent 4 }}
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      restartPolicy: Never
      template:
        {{- include "run.training.template" $launcher | nindent 8 }}
    Worker:
      replicas: {{ int .Values.run.nodes }}
      restartPolicy: Never
      template:
        {{- include "run.training.template" (dict "context" . "name" "pytorch" "extra" $extra "command" $sshd "accelerated" true) | nindent 8 }}
{{- end }}

{{- define "run.mpijob.policy" -}}
cleanPodPolicy: Running
activeDeadlineSeconds: {{ (include "run.deadlines" . | fromYaml).workload | int64 }}
{{- with include "run.workload.suspend" . }}
{{ . }}
{{- end }}
{{- with include "run.scheduling.policy" (dict "context" . "pods" (add (int .Values.run.nodes) 1)) }}
{{ . }}
{{- end }}
{{- end }}

{{- define "run.mpijob.environment" -}}
{{- $run := .Values.run -}}
- name: PET_NNODES
  value: {{ include "run.scalar" $run.nodes | quote }}
- name: PET_NPROC_PER_NODE
  value: {{ include "run.scalar" $run.processesPerNode | quote }}
- name: PET_RDZV_BACKEND
  value: c10d
- name: PET_RDZV_ID
  value: {{ include "run.name" . | quote }}
- name: PET_MAX_RESTARTS
  value: "0"
{{- end }}
